"""`bellwire submit`: one job from the command line, for trying out and for repairs."""

import json as json_text
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.loading import load_app
from bellwire_console.cli.options import DatabaseUrl, Json, OptionalAppPath
from bellwire_console.cli.output import print_json, print_lines
from bellwire_console.cli.parsing import did_you_mean, duration, identifier, instant, within
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
    no_key: Annotated[
        bool,
        typer.Option(
            "--no-key", metavar="", help="Without --app: a job of its own, even where another is the same."
        ),
    ] = False,
    unique_until: Annotated[
        str | None,
        typer.Option("--unique-until", metavar="WHEN", help="Beside --key: started, finished or pruned."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Whose work it is, without --app; by default nobody's.")
    ] = None,
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
        bool,
        typer.Option(
            "--unapplied", metavar="", help="Accept a kind or version that nobody applied yet; it waits."
        ),
    ] = False,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Submit one job. With --app its class checks the payload, and gives key, tenant and version.

    Without it nothing is known of the class's key: give --key with --unique-until, or --no-key.
    """
    _is_kind(kind)
    parsed = _payload(payload)
    delay = None if run_in is None else within("--run-in", run_in, duration("--run-in", run_in))
    at = None if run_at is None else within("--run-at", run_at, instant("--run-at", run_at))
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
    if app is None:
        _says_its_key(key, no_key=no_key)
    else:
        given = [f"--{name.replace('_', '-')}" for name, value in contract.items() if value is not None]
        given += ["--no-key"] if no_key else []
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
        newest = _applied(connection, kind, version, unapplied=unapplied)
        if job is not None:
            import bellwire_outbox

            receipt = bellwire_outbox.submit(
                connection, job, job_id=own_id, run_at=at, run_in=delay, priority=priority
            )
        else:
            receipt = _try_submit(connection, {**arguments, "version": str(newest)})
    if json:
        print_json(receipt)
    else:
        print_lines(f"{receipt.outcome} {receipt.job_id} ({receipt.state})")


def _is_kind(kind: str) -> None:
    from bellwire_outbox.config import KIND

    if KIND.fullmatch(kind) is None:
        raise Failure(
            Exit.USAGE, f"KIND: {kind!r} is no kind: it is [a-z][a-z0-9_.]{{0,62}}, such as render_statement"
        )


def _says_its_key(key: str | None, *, no_key: bool) -> None:
    """The key is the class's: a job that silently goes without it is the same work a second time."""
    if key is not None and no_key:
        raise Failure(Exit.USAGE, "--key and --no-key contradict each other: give one of them")
    if key is None and not no_key:
        raise Failure(
            Exit.USAGE,
            "without the class nothing gives the job its key, and the work could be done twice: give --app "
            "MODULE:ATTRIBUTE, or --key TEXT with --unique-until WHEN, or --no-key (and --tenant TEXT, where "
            "the class has a tenant)",
        )


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
        raise Failure(Exit.USAGE, f"{app} has no handler for {did_you_mean(kind, handlers)}")
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


def _applied(connection: "Connection", kind: str, version: int | None, *, unapplied: bool) -> int:
    """The version to submit: the one given, or the newest applied.

    A kind or version that nobody applied would wait for ever: it is taken for a slip.
    """
    from sqlalchemy import select

    from bellwire_schema.tables import kind as kinds

    rows = connection.execute(select(kinds.c.name, kinds.c.versions))
    known: dict[str, list[int]] = {row.name: row.versions for row in rows}
    if unapplied and (kind not in known or version is not None):
        return version or 1
    if kind not in known:
        raise Failure(
            Exit.USAGE,
            f"nobody applied the kind {did_you_mean(kind, known)}; "
            "run 'bellwire apply' first, or give --unapplied",
        )
    if version is not None and version not in known[kind]:
        there = ", ".join(map(str, sorted(known[kind])))
        raise Failure(
            Exit.USAGE,
            f"--version: nobody applied version {version} of {kind}; applied: {there}; "
            "run 'bellwire apply' first, or give --unapplied",
        )
    return version or int(max(known[kind]))
