"""Writing intent: one statement in the caller's own transaction, which commits or vanishes with its rows.

Nothing here begins, commits or flushes. Input is refused before any SQL; a refusal of the database is a row,
so the transaction stays usable. On a synchronous session the answer comes back, on an asynchronous one it is
awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload
from uuid import UUID

from bellwire_outbox.call import Argument, Call
from bellwire_outbox.config import KIND
from bellwire_outbox.job import Job
from bellwire_outbox.key_text import key_text, tenant_text
from bellwire_outbox.payload import encode, unstorable_text
from bellwire_outbox.receipt import CancelOutcome, JobView, Receipt
from bellwire_outbox.refusals import refusal
from bellwire_outbox.stacks import AsyncStack, SyncStack, stack_of
from bellwire_outbox.submission import OnDuplicate, Options, Submission, call_of_many, config_of
from bellwire_schema.errors import ArgumentInvalid

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    SyncTarget: TypeAlias = Session | scoped_session[Any] | Connection | psycopg.Connection[Any]
    AsyncTarget: TypeAlias = (
        AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
    )

T = TypeVar("T")
Rows: TypeAlias = list[dict[str, Any]]


@overload
def submit(
    session: SyncTarget,
    job: Job,
    *,
    job_id: UUID | None = None,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> Receipt: ...
@overload
def submit(
    session: AsyncTarget,
    job: Job,
    *,
    job_id: UUID | None = None,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> Coroutine[Any, Any, Receipt]: ...
def submit(
    session: SyncTarget | AsyncTarget,
    job: Job,
    *,
    job_id: UUID | None = None,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> Receipt | Coroutine[Any, Any, Receipt]:
    """Write a job into the transaction of `session`.

    job_id: an id made before the first try; a repeat after a lost answer returns `existing`, whatever became
        of the key, for as long as the job is kept.
    run_at, run_in: not before this instant (aware), or this long from the database's now.
    priority: -100 to 100, higher is sooner; by default the class's.
    deadline: not done by then, it fails as `deadline_exceeded`; by default `run_at` plus the class's
        `max_age`.
    wake: False for a transaction that will be prepared (two-phase): the relay then finds the job by its poll.
    on_duplicate: what to do where the key is held.

    Raises `PayloadInvalid`, `PayloadTooLarge`, `ArgumentInvalid` and `NotInTransaction` before any SQL;
    `KeyConflict` and `OverCapacity` as the database's answer, with the transaction still usable. Under
    REPEATABLE READ and SERIALIZABLE a lost race for the key is the driver's own serialization failure
    (40001).
    """
    options = Options(
        job_id=job_id,
        run_at=run_at,
        run_in=run_in,
        priority=priority,
        deadline=deadline,
        wake=wake,
        on_duplicate=on_duplicate,
    )
    return on_stack(stack_of(session), Submission.of(job, options).call(), receipt_of)


@overload
def submit_many(
    session: SyncTarget,
    jobs: Iterable[Job],
    *,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> list[Receipt]: ...
@overload
def submit_many(
    session: AsyncTarget,
    jobs: Iterable[Job],
    *,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> Coroutine[Any, Any, list[Receipt]]: ...
def submit_many(
    session: SyncTarget | AsyncTarget,
    jobs: Iterable[Job],
    *,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> list[Receipt] | Coroutine[Any, Any, list[Receipt]]:
    """Write many jobs, of any classes, all or none, in one statement; receipts come in the order given.

    A key repeated within the set is one job. The options hold for each job. Raises as `submit` does; a
    refusal carries `.ordinal`, and nothing of the set is written.
    """
    options = Options(
        run_at=run_at,
        run_in=run_in,
        priority=priority,
        deadline=deadline,
        wake=wake,
        on_duplicate=on_duplicate,
    )
    call = call_of_many([Submission.of(job, options) for job in jobs])
    return on_stack(stack_of(session), call, receipts_of)


@overload
def get_job(session: SyncTarget, job_id: UUID) -> JobView | None: ...
@overload
def get_job(session: AsyncTarget, job_id: UUID) -> Coroutine[Any, Any, JobView | None]: ...
def get_job(
    session: SyncTarget | AsyncTarget, job_id: UUID
) -> JobView | Coroutine[Any, Any, JobView | None] | None:
    """The job as it stands in the session's snapshot, or None where it never was, or was pruned."""
    call = Call("get_job", (("job_id", "uuid", _id("job_id", job_id)),))
    return on_stack(stack_of(session), call, view_of)


@overload
def find_job(session: SyncTarget, job: Job) -> JobView | None: ...
@overload
def find_job(session: AsyncTarget, job: Job) -> Coroutine[Any, Any, JobView | None]: ...
def find_job(
    session: SyncTarget | AsyncTarget, job: Job
) -> JobView | Coroutine[Any, Any, JobView | None] | None:
    """The job that holds the key which `job` would ask for, or None. Its other fields do not matter."""
    config = config_of(job)
    _, tree = encode(job)
    key = key_text(config, tree)
    if key is None:
        raise ArgumentInvalid("job", f"{config.kind} has no key to be found by")
    call = Call(
        "find_job",
        (("kind", "text", config.kind), ("tenant", "text", tenant_text(config, tree)), ("key", "text", key)),
    )
    return on_stack(stack_of(session), call, view_of)


@overload
def cancel(session: SyncTarget, job_id: UUID, *, actor: str, reason: str) -> CancelOutcome: ...
@overload
def cancel(
    session: AsyncTarget, job_id: UUID, *, actor: str, reason: str
) -> Coroutine[Any, Any, CancelOutcome]: ...
def cancel(
    session: SyncTarget | AsyncTarget, job_id: UUID, *, actor: str, reason: str
) -> CancelOutcome | Coroutine[Any, Any, CancelOutcome]:
    """Ask that no more work begins, saying who and why. Part of the caller's transaction, as a submit is.

    "cancelled": it had not started. "requested": it is running, and is told with its next heartbeat; what it
    has done by then stands. "too_late": it had ended. "not_found": it never was, or was pruned.
    """
    for name, text in (("actor", actor), ("reason", reason)):
        problem = unstorable_text(text) if isinstance(text, str) else "must be text"
        if problem is not None:
            raise ArgumentInvalid(name, problem)
    arguments: tuple[Argument, ...] = (
        ("job_ids", "uuid[]", f"{{{_id('job_id', job_id)}}}"),
        ("actor", "text", actor),
        ("reason", "text", reason),
    )
    return on_stack(stack_of(session), Call("cancel", arguments, writes=True), cancel_outcome_of)


@overload
def drain_estimate(session: SyncTarget, kind: str | type[Job]) -> timedelta | None: ...
@overload
def drain_estimate(session: AsyncTarget, kind: str | type[Job]) -> Coroutine[Any, Any, timedelta | None]: ...
def drain_estimate(
    session: SyncTarget | AsyncTarget, kind: str | type[Job]
) -> timedelta | Coroutine[Any, Any, timedelta | None] | None:
    """How long the kind's backlog takes at the rate measured last; None where none was measured yet."""
    name = kind if isinstance(kind, str) else kind.job_config.kind
    if not KIND.fullmatch(name):
        raise ArgumentInvalid("kind", f"must match {KIND.pattern}")
    call = Call("drain_estimate", (("kind", "text", name),), columns="extract(epoch FROM f) AS seconds")
    return on_stack(stack_of(session), call, estimate_of)


def on_stack(
    stack: SyncStack | AsyncStack, call: Call, read: Callable[[Rows], T]
) -> T | Coroutine[Any, Any, T]:
    if isinstance(stack, AsyncStack):
        return _awaited(stack, call, read)
    return read(stack.run(call))


async def _awaited(stack: AsyncStack, call: Call, read: Callable[[Rows], T]) -> T:
    return read(await stack.arun(call))


def receipt_of(rows: Rows) -> Receipt:
    (row,) = rows
    if row["code"] is not None:
        raise refusal(row)
    return Receipt.of_row(row)


def receipts_of(rows: Rows) -> list[Receipt]:
    for row in rows:
        if row["code"] not in (None, "not_submitted"):
            raise refusal(row, ordinal=row["ordinal"] - 1)
    return [Receipt.of_row(row) for row in rows]


def view_of(rows: Rows) -> JobView | None:
    return JobView.of_row(rows[0]) if rows else None


def cancel_outcome_of(rows: Rows) -> CancelOutcome:
    (row,) = rows
    outcome: CancelOutcome = row["outcome"]
    return outcome


def estimate_of(rows: Rows) -> timedelta | None:
    (row,) = rows
    seconds = row["seconds"]
    return None if seconds is None else timedelta(seconds=float(seconds))


def _id(name: str, value: object) -> str:
    if not isinstance(value, UUID):
        raise ArgumentInvalid(name, "must be a uuid.UUID")
    return str(value)
