"""`bellwire jobs list | show | cancel | redrive`."""

from typing import TYPE_CHECKING, Annotated

import typer

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.options import Actor, DatabaseUrl, Json
from bellwire_console.cli.output import ago, print_json, print_lines, print_table
from bellwire_console.cli.parsing import did_you_mean, identifier
from bellwire_console.cli.session import actor_or_me, reading, writing

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["app"]

app = typer.Typer(help="Look at jobs, cancel them, and send failed ones back to work.", no_args_is_help=False)

JobId = Annotated[str, typer.Argument(metavar="JOB")]


@app.command("list")
def list_jobs(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="STATE", help="Only this state; may be repeated.", show_default=False
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", metavar="", help="The same as --state failed.")] = False,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind.", show_default=False)] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only this tenant.", show_default=False)
    ] = None,
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="CODE", help="Only with this last error.", show_default=False),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            "--group-by", metavar="WHAT", help="error: failed jobs, counted by it.", show_default=False
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="JOB", help="The next page: older than this one.", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Lines a page.", min=1, max=10_000)] = 50,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """List jobs, the newest first."""
    from bellwire_schema import reads
    from bellwire_schema.states import STATES

    states = [*(state or []), *(["failed"] if failed else [])]
    for name in states:
        if name not in STATES:
            raise Failure(Exit.USAGE, f"--state: there is no state {name!r}; there are {', '.join(STATES)}")
    if failed and set(states) != {"failed"}:
        others = ", ".join(name for name in states if name != "failed")
        raise Failure(
            Exit.USAGE, f"--failed and --state {others} contradict each other: write --state for each state"
        )
    page = None if before is None else identifier("--before", before)
    if group_by is not None:
        if group_by != "error":
            raise Failure(Exit.USAGE, f"--group-by: jobs are grouped by error, not by {group_by!r}")
        if set(states) - {"failed"}:
            raise Failure(Exit.USAGE, "--group-by error counts failed jobs: leave the other states out")
        if page is not None:
            raise Failure(Exit.USAGE, "--group-by has no pages: leave --before out")
        _groups(database_url, kind=kind, tenant=tenant, error=error, limit=limit, json=json)
        return
    with reading(database_url) as connection:
        lines = reads.list_jobs(
            connection, states=states, kind=kind, tenant=tenant, error=error, before=page, limit=limit
        )
        if not lines:
            _must_be_known(connection, kind)
        now = reads.now(connection)
    more = lines[-1].id if len(lines) == limit else None
    if json:
        print_json({"jobs": lines, "next_before": more})
        return
    print_table(
        ("id", "kind", "state", "why", "last error", "attempt", "run at", "tenant", "key"),
        [
            (
                line.id,
                f"{line.kind} v{line.version}",
                line.state,
                line.reason,
                line.last_code,
                line.attempt,
                ago(line.run_at, now),
                line.tenant,
                line.key,
            )
            for line in lines
        ],
        empty="no such jobs",
        drop=("attempt", "run at", "why", "key", "tenant", "last error"),
    )
    if more is not None:
        print_lines(f"older ones: --before {more}")


def _groups(
    database_url: str | None,
    *,
    kind: str | None,
    tenant: str | None,
    error: str | None,
    limit: int,
    json: bool,
) -> None:
    from bellwire_schema import reads

    with reading(database_url) as connection:
        groups = reads.group_failed(connection, kind=kind, tenant=tenant, error=error, limit=limit)
        if not groups:
            _must_be_known(connection, kind)
        now = reads.now(connection)
    if json:
        print_json({"groups": groups})
        return
    print_table(
        ("kind", "error", "jobs", "oldest", "newest", "example", "its message"),
        [
            (g.kind, g.code, g.jobs, ago(g.oldest_at, now), ago(g.newest_at, now), g.example, g.message)
            for g in groups
        ],
        empty="no failed jobs",
        prose=("its message",),
        drop=("oldest", "newest", "its message"),
    )


@app.command("show")
def show(*, job: JobId, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Show a job and its attempts. What people sent (payload, result) is not shown."""
    from bellwire_schema import reads

    job_id = identifier("JOB", job)
    with reading(database_url) as connection:
        found = reads.show_job(connection, job_id)
        now = reads.now(connection)
    if found is None:
        raise _unknown(job_id)
    if json:
        print_json(found)
        return
    facts = [
        (name.replace("_", " "), value)
        for name in found.__dataclass_fields__
        if name not in ("attempts", "effects") and (value := getattr(found, name)) not in (None, "", False, 0)
    ]
    print_table(("job", str(job_id)), facts[1:], empty="", prose=(str(job_id),))
    print_table(
        ("attempt", "outcome", "error", "message", "started", "took", "consumer", "host"),
        [
            (
                line.number,
                line.outcome + (" (late)" if line.late else ""),
                line.code,
                line.message,
                ago(line.started_at, now),
                (line.ended_at or now) - line.started_at,
                line.consumer_version or line.consumer,
                line.host,
            )
            for line in found.attempts
        ],
        empty="no attempt yet",
        prose=("message",),
        drop=("host", "consumer", "took"),
    )
    if found.effects:
        print_table(
            ("effect", "status", "attempt", "their id", "written"),
            [(e.name, e.status, e.attempt, e.remote_id, ago(e.written_at, now)) for e in found.effects],
            empty="",
            drop=("written", "attempt"),
        )


@app.command("cancel")
def cancel(
    *,
    job: Annotated[list[str], typer.Argument(metavar="JOB...")],
    reason: Annotated[str, typer.Option("--reason", help="Kept with the job.")],
    actor: Actor = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Ask that jobs do not begin, or, where they run, that they stop."""
    import bellwire_outbox

    ids = [identifier("JOB", text) for text in job]
    with writing(database_url) as connection:
        outcomes = {
            job_id: bellwire_outbox.cancel(connection, job_id, actor=actor_or_me(actor), reason=reason)
            for job_id in ids
        }
    missing = [job_id for job_id, outcome in outcomes.items() if outcome == "not_found"]
    if json:
        print_json(outcomes)
    elif not (missing and len(ids) == 1):
        print_table(("job", "outcome"), list(outcomes.items()), empty="")
    if missing:
        raise _unknown(*missing)


@app.command("redrive")
def redrive(
    *,
    job: Annotated[list[str], typer.Argument(metavar="JOB...")],
    reason: Annotated[str, typer.Option("--reason", help="Kept in the audit.")],
    actor: Actor = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Send failed or cancelled jobs back to work: the same ids, with all their attempts before them again.

    Each job is judged alone, and those that may go do; exit with 1 if one was refused.
    """
    from bellwire_schema import transitions
    from bellwire_schema.connection import driver

    ids = list(dict.fromkeys(identifier("JOB", text) for text in job))
    with writing(database_url) as connection:
        told = transitions.redrive(driver(connection), ids, actor=actor_or_me(actor), reason=reason)
    if json:
        print_json({"jobs": [one._asdict() for one in told]})
    else:
        print_table(
            ("job", "outcome", "why not"),
            [
                (one.job_id, one.outcome, _REFUSED.get(one.outcome, "").format(holder=one.holder))
                for one in told
            ],
            empty="",
            prose=("why not",),
        )
    if any(one.outcome != "redriven" for one in told):
        raise typer.Exit(Exit.FOUND)


_REFUSED = {
    "not_found": "there is no such job here: it was pruned, or the database is another one",
    "not_redrivable": "only failed and cancelled jobs are redriven",
    "payload_gone": "its payload was cleared: submit the work anew",
    "key_taken": "job {holder} has its key",
}


def _must_be_known(connection: "Connection", kind: str | None) -> None:
    """An empty page for a misspelt kind looks as if all were well."""
    from bellwire_schema import reads

    if kind is not None and not reads.is_kind(connection, kind):
        known = reads.kind_names(connection)
        raise Failure(
            Exit.USAGE, f"no kind is called {did_you_mean(kind, known)}: nobody applied or submitted it"
        )


def _unknown(*job_ids: object) -> Failure:
    return Failure(
        Exit.FOUND,
        f"there is no job {', '.join(map(str, job_ids))} here: it was pruned, or the database is another one",
    )
