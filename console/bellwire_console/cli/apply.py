"""`bellwire apply`: the one writer of what the code declares about its kinds."""

from typing import Annotated, Any

import typer

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.loading import declared, load_app
from bellwire_console.cli.options import Actor, AppPath, DatabaseUrl, Json
from bellwire_console.cli.output import print_json, print_lines, print_table
from bellwire_console.cli.session import actor_or_me, reading, writing

__all__ = ["apply"]


def apply(
    *,
    app: AppPath,
    database_url: DatabaseUrl = None,
    check: Annotated[
        bool,
        typer.Option("--check", metavar="", help="Only show the difference; exit with 1 if there is one."),
    ] = False,
    actor: Actor = None,
    json: Json = False,
) -> None:
    """Write the policy of your app's kinds, shown as a difference. A deploy step, like migrate.

    Touches only kinds that belong to this App's name; what operators set beside it stays.
    """
    from bellwire_schema import policy
    from bellwire_schema.errors import ConfigError

    loaded = load_app(app)
    policies = declared(loaded)
    try:
        if check:
            with reading(database_url) as connection:
                changes = policy.diff(connection, app=loaded.name, declared=policies)
        else:
            with writing(database_url) as connection:
                changes = policy.apply(
                    connection, app=loaded.name, declared=policies, actor=actor_or_me(actor)
                )
    except ConfigError as error:
        raise Failure(Exit.FOUND, str(error)) from None
    _show(changes, loaded.name, applied=not check, json=json)
    if check and changes:
        raise typer.Exit(Exit.FOUND)


def _show(changes: list[Any], name: str, *, applied: bool, json: bool) -> None:
    if json:
        print_json({"app": name, "applied": applied, "changes": changes})
        return
    rows: list[tuple[object, ...]] = []
    for change in changes:
        # Of a new kind, what is not set says nothing.
        new = change.action == "create"
        columns = [c for c in change.columns if not (new and (c.after in (None, False) or c.name == "app"))]
        for n, column in enumerate(columns):
            subject = (change.kind, change.action) if n == 0 else ("", "")
            rows.append((*subject, column.name, "" if new else _value(column.before), _value(column.after)))
    print_table(
        ("kind", "action", "setting", "in the database", "declared"),
        rows,
        empty=f"nothing to do: the database has what {name} declares",
        prose=("in the database", "declared"),
    )
    if changes:
        print_lines(
            f"{len(changes)} kind{'s' if len(changes) > 1 else ''} {'changed' if applied else 'would change'}"
        )


def _value(value: object) -> object:
    return "none" if value is None else value
