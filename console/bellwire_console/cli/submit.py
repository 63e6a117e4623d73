"""`bellwire submit`: one job from the command line, for trying out and for repairs."""

import json as json_text
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.loading import load_app
from bellwire_console.cli.options import DatabaseUrl, Json, OptionalAppPath
from bellwire_console.cli.output import print_json, print_lines
from bellwire_console.cli.parsing import duration, identifier, instant
from bellwire_console.cli.session import writing

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from bellwire_outbox import Job, Receipt

__all__ = ["submit"]

_CASTS = {
    "version": "integer",
    "payload": "jsonb",
    "priority": "integer",
    "run_at": "timestamptz",
    "run_in": "interval",
    "job_id": "uuid",
}


def submit(
    *,
    kind: Annotated[str, typer.Argument(metavar="KIND")],
    payload: Annotated[
        str,
        typer.Option("--payload", metavar="JSON", help="A JSON object; @FILE reads a file, - reads stdin."),
    ],
    app: OptionalAppPath = None,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", help="Of the payload; by default the newest applied.", min=1),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key's text, without --app.")] = None,
    unique_until: Annotated[
        str | None,
        typer.Option("--unique-until", metavar="WHEN", help="Beside --key: started, finished or pruned."),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose work it is, without --app.")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="-100 to 100, higher is sooner.", min=-100, max=100)
    ] = None,
    run_in: Annotated[
        str | None,
        typer.Option("--run-in", metavar="DURATION", help="Not before this long from now, such as 10m."),
    ] = None,
    run_at: Annotated[
        str | None,
        typer.Option("--run-at", metavar="TIME", help="Not before this instant: ISO 8601 with an offset."),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--job-id", metavar="UUID", help="An id of your own: repeating the command makes no second job."
        ),
    ] = None,
    unapplied: Annotated[
        bool, typer.Option("--unapplied", help="Accept a kind that nobody applied yet; it waits.")
    ] = False,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Submit one job. With --app its class checks the payload, and gives key, tenant and version."""
    parsed = _payload(payload)
    delay = None if run_in is None else duration("--run-in", run_in)
    at = None if run_at is None else instant("--run-at", run_at)
    own_id = None if job_id is None else identifier("--job-id", job_id)
    if at is not None and delay is not None:
        raise Failure(Exit.USAGE, "--run-at and --run-in say two things about one time: give one of them")
    if (key is None) != (unique_until is None):
        raise Failure(
            Exit.USAGE, "--key and --unique-until go together: until when does the key keep others away?"
        )
    contract = {
        "key": key,
        "unique_until": unique_until,
        "tenant": tenant,
        "version": None if version is None else str(version),
    }
    job = None
    if app is not None:
        given = [f"--{name.replace('_', '-')}" for name, value in contract.items() if value is not None]
        if given:
            raise Failure(Exit.USAGE, f"with --app the job's class decides {', '.join(given)}: leave it out")
        job = _of_class(app, kind, parsed)
    arguments = {
        **contract,
        "kind": kind,
        "payload": _text(kind, parsed),
        "priority": None if priority is None else str(priority),
        "run_at": None if at is None else at.isoformat(),
        "run_in": None if delay is None else f"{delay.total_seconds()} seconds",
        "job_id": None if own_id is None else str(own_id),
    }
    with writing(database_url) as connection:
        newest = _applied(connection, kind, unapplied=unapplied)
        if job is not None:
            import bellwire_outbox

            receipt = bellwire_outbox.submit(
                connection, job, job_id=own_id, run_at=at, run_in=delay, priority=priority
            )
        else:
            receipt = _try_submit(connection, {**arguments, "version": arguments["version"] or str(newest)})
    if json:
        print_json(receipt)
    else:
        print_lines(f"{receipt.outcome} {receipt.job_id} ({receipt.state})")


def _try_submit(connection: "Connection", arguments: dict[str, str | None]) -> "Receipt":
    """By plain SQL, as any other language would; a refusal is a row."""
    from sqlalchemy import text

    from bellwire_outbox.receipt import Receipt
    from bellwire_outbox.refusals import refusal

    given = {name: value for name, value in arguments.items() if value is not None}
    named = ", ".join(
        f"{name} => CAST(CAST(:{name} AS text) AS {_CASTS.get(name, 'text')})" for name in given
    )
    # Our own names only; what was typed travels as parameters.
    query = f"SELECT row_to_json(r) FROM bellwire.try_submit({named}) AS r"  # noqa: S608
    row: dict[str, Any] = connection.execute(text(query), given).scalar_one()
    if row["code"] is not None:
        raise refusal(row)
    return Receipt.of_row(row)


def _payload(text: str) -> dict[str, Any]:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(Exit.USAGE, f"--payload: cannot read {text[1:]}: {error}") from None
    try:
        parsed = json_text.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise Failure(
            Exit.USAGE, f"--payload is no JSON: {error}; in a shell, quote it: '{{\"id\": 1}}'"
        ) from None
    if not isinstance(parsed, dict):
        raise Failure(Exit.USAGE, f"--payload must be a JSON object, not {type(parsed).__name__}")
    return parsed


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _of_class(app: str, kind: str, payload: dict[str, Any]) -> "Job":
    from bellwire_outbox.payload import decode

    handlers = load_app(app).handlers()
    if kind not in handlers:
        raise Failure(Exit.FOUND, f"{app} has no handler for {_did_you_mean(kind, sorted(handlers))}")
    handler, _ = handlers[kind]
    job: Job = decode(handler.job_class, payload)
    return job


def _text(kind: str, payload: dict[str, Any]) -> str:
    """What no class checks is at least storable, and no larger than others may be."""
    from bellwire_outbox.payload import MAX_BYTES
    from bellwire_schema.errors import PayloadInvalid, PayloadTooLarge

    for name, value in payload.items():
        part = json_text.dumps({name: value}, ensure_ascii=False)
        if "\\u0000" in part or any("\ud800" <= char <= "\udfff" for char in part):
            raise PayloadInvalid(name, "contains a NUL or half a surrogate", kind=kind)
    text = json_text.dumps(payload, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_BYTES:
        largest = max(payload, key=lambda name: len(json_text.dumps(payload[name])))
        raise PayloadTooLarge(size, MAX_BYTES, field=largest, kind=kind)
    return text


def _applied(connection: "Connection", kind: str, *, unapplied: bool) -> int:
    """The newest version applied. A kind that nobody applied would wait for ever: it is taken for a slip."""
    from sqlalchemy import select

    from bellwire_schema.tables import kind as kinds

    rows = connection.execute(select(kinds.c.name, kinds.c.versions))
    known: dict[str, list[int]] = {row.name: row.versions for row in rows}
    if kind in known:
        return int(max(known[kind]))
    if unapplied:
        return 1
    raise Failure(
        Exit.FOUND,
        f"nobody applied the kind {_did_you_mean(kind, sorted(known))}; "
        "run 'bellwire apply' first, or give --unapplied",
    )


def _did_you_mean(kind: str, known: list[str]) -> str:
    near = get_close_matches(kind, known, n=1)
    return f"{kind} (did you mean {near[0]}?)" if near else kind
