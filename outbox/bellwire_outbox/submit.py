"""Writing intent: one statement in the caller's own transaction, which commits or vanishes with its rows.

Nothing here begins, commits or flushes. Input is refused before any SQL; a refusal of the database is a row,
so the transaction stays usable. On a synchronous session the answer comes back, on an asynchronous one it is
awaited.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload
from uuid import UUID

from bellwire_outbox import calls
from bellwire_outbox.calls import Request
from bellwire_outbox.job import Job
from bellwire_outbox.receipt import CancelOutcome, JobView, Receipt
from bellwire_outbox.stacks import AsyncStack, stack_of
from bellwire_outbox.submission import OnDuplicate, Options

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
    return _on(session, calls.submit(job, options))


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
    return _on(session, calls.submit_many(jobs, options))


@overload
def get_job(session: SyncTarget, job_id: UUID) -> JobView | None: ...
@overload
def get_job(session: AsyncTarget, job_id: UUID) -> Coroutine[Any, Any, JobView | None]: ...
def get_job(
    session: SyncTarget | AsyncTarget, job_id: UUID
) -> JobView | Coroutine[Any, Any, JobView | None] | None:
    """The job as it stands in the session's snapshot, or None where it never was, or was pruned."""
    return _on(session, calls.get_job(job_id))


@overload
def find_job(session: SyncTarget, job: Job) -> JobView | None: ...
@overload
def find_job(session: AsyncTarget, job: Job) -> Coroutine[Any, Any, JobView | None]: ...
def find_job(
    session: SyncTarget | AsyncTarget, job: Job
) -> JobView | Coroutine[Any, Any, JobView | None] | None:
    """The job that holds the key which `job` would ask for, or None. Its other fields do not matter."""
    return _on(session, calls.find_job(job))


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
    return _on(session, calls.cancel(job_id, actor=actor, reason=reason))


@overload
def drain_estimate(session: SyncTarget, kind: str | type[Job]) -> timedelta | None: ...
@overload
def drain_estimate(session: AsyncTarget, kind: str | type[Job]) -> Coroutine[Any, Any, timedelta | None]: ...
def drain_estimate(
    session: SyncTarget | AsyncTarget, kind: str | type[Job]
) -> timedelta | Coroutine[Any, Any, timedelta | None] | None:
    """How long the kind's backlog takes at the rate measured last; None where none was measured yet."""
    return _on(session, calls.drain_estimate(kind))


def _on(session: SyncTarget | AsyncTarget, request: Request[T]) -> T | Coroutine[Any, Any, T]:
    stack = stack_of(session)
    return request.aon(stack) if isinstance(stack, AsyncStack) else request.on(stack)
