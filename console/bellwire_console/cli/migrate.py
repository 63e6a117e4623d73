"""`bellwire migrate`."""

from typing import Annotated

import typer

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.options import DatabaseUrl
from bellwire_console.cli.session import address, reached

__all__ = ["migrate"]


def migrate(
    *,
    database_url: DatabaseUrl = None,
    sql: Annotated[
        bool, typer.Option("--sql", metavar="", help="Print the whole SQL for psql, and do nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", metavar="", help="Do nothing; exit with 4 if something is behind.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", help="How long to try for locks and other migrators.", min=0
        ),
    ] = 300.0,
) -> None:
    """Bring the database to this version's schema, functions and roles.

    Safe to run twice, and by several machines at once. Run it before the new code starts.
    """
    if sql and check:
        raise Failure(Exit.USAGE, "--sql and --check are two different questions: give one of them")
    from bellwire_schema import migrate as schema

    if sql:
        typer.echo(schema.sql(), nl=False)
        return
    url = address(database_url)
    with reached(url):
        if check:
            schema.check(url)
            typer.echo(f"up to date at {schema.head()}")
            return
        before = schema.upgrade(url, wait=wait, notice=lambda said: typer.echo(f"note: {said}", err=True))
    if before.ahead:
        typer.echo(f"left alone: the database is at {before.found}, newer than this code's {before.needed}")
    elif before.current:
        typer.echo(f"up to date at {before.needed}; functions and grants created anew")
    elif before.found == before.needed:
        typer.echo(f"at {before.needed} as before; functions and grants brought up to date")
    else:
        typer.echo(f"migrated from {before.found or 'nothing'} to {before.needed}")
