"""`bellwire explain`: why a job, a kind or a tenant stands as it does."""

from typing import Annotated

import typer

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.options import DatabaseUrl, Json
from bellwire_console.cli.output import print_json, print_lines
from bellwire_console.cli.session import reading

__all__ = ["explain"]


def explain(
    *,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A job id, a kind, or a tenant.")],
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Say in plain words what holds work back."""
    from bellwire_schema.explain import explain as explained

    with reading(database_url) as connection:
        answers = explained(connection, target)
    if not answers:
        raise Failure(
            Exit.FOUND,
            f"nothing here is called {target}: no job, no kind, and no tenant with unfinished work or "
            "with one of the newest 100,000 jobs",
        )
    if json:
        print_json({"explanations": answers})
        return
    for answer in answers:
        print_lines(f"{answer.target} {answer.subject}", f"  {answer.headline}")
        print_lines(*(f"  {'!' if reason.wrong else '-'} {reason.text}" for reason in answer.reasons))
        if answer.history:
            print_lines("  so far:", *(f"    {line}" for line in answer.history))
