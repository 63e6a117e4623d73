"""The commands, put together. Their modules import nothing heavy; their functions do."""

import typer

from bellwire_console.cli import apply, daemons, dev, doctor, explain, jobs, migrate, submit

__all__ = ["app", "application"]

app = typer.Typer(
    name="bellwire",
    help="Durable jobs that commit with your own rows.",
    epilog="Exit codes: 0 fine, 1 something is wrong, 2 usage, 3 no database, 4 schema behind, 5 app.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("migrate")(migrate.migrate)
app.command("apply")(apply.apply)
app.command("relay")(daemons.relay)
app.command("consumer")(daemons.consumer)
app.command("dev")(dev.dev)
app.command("submit")(submit.submit)
app.add_typer(jobs.app, name="jobs")
app.command("explain")(explain.explain)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", metavar="", help="Say which version this is."),
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"bellwire {version_of('bellwire')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


application = typer.main.get_command(app)
