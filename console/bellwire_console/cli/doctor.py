"""`bellwire doctor`: is this installation well?"""

from typing import Annotated

import typer

from bellwire_console.cli.exits import Exit
from bellwire_console.cli.options import DatabaseUrl, Json
from bellwire_console.cli.output import print_json, print_lines
from bellwire_console.cli.session import reading

__all__ = ["doctor"]

_SIGNS = {"ok": "ok", "note": "note", "wrong": "WRONG"}


def doctor(
    *,
    data: Annotated[
        bool,
        typer.Option(
            "--data", metavar="", help="Also check the invariants of every row; reads whole tables."
        ),
    ] = False,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Check the installation; exit with 1 if something is wrong."""
    from bellwire_schema.doctor import examine

    with reading(database_url) as connection:
        findings = examine(connection, data=data)
    wrong = [finding for finding in findings if finding.level == "wrong"]
    if json:
        print_json({"wrong": len(wrong), "findings": findings})
    else:
        for finding in findings:
            print_lines(f"{_SIGNS[finding.level]:6}{finding.check}: {finding.text}")
            if finding.mend is not None:
                print_lines(f"      → {finding.mend}")
        print_lines(f"{len(wrong)} wrong" if wrong else "nothing is wrong")
    if wrong:
        raise typer.Exit(Exit.FOUND)
