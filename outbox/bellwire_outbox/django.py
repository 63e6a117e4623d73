"""`submit` and its relatives on a Django connection, inside `transaction.atomic()`.

Django hands connections around by alias, so these take `using` where the others take a session.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from bellwire_outbox import calls
from bellwire_outbox.job import Job
from bellwire_outbox.receipt import CancelOutcome, JobView, Receipt
from bellwire_outbox.stacks.django import DjangoStack
from bellwire_outbox.submission import OnDuplicate, Options


def submit(
    job: Job,
    *,
    using: str = "default",
    job_id: UUID | None = None,
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> Receipt:
    """As `bellwire.submit`, in the transaction that `atomic(using=…)` opened; outside: `NotInTransaction`."""
    options = Options(
        job_id=job_id,
        run_at=run_at,
        run_in=run_in,
        priority=priority,
        deadline=deadline,
        wake=wake,
        on_duplicate=on_duplicate,
    )
    return calls.submit(job, options).on(DjangoStack(using))


def submit_many(
    jobs: Iterable[Job],
    *,
    using: str = "default",
    run_at: datetime | None = None,
    run_in: timedelta | None = None,
    priority: int | None = None,
    deadline: datetime | None = None,
    wake: bool = True,
    on_duplicate: OnDuplicate = "existing",
) -> list[Receipt]:
    """As `bellwire.submit_many`: all or none, in one statement."""
    options = Options(
        run_at=run_at,
        run_in=run_in,
        priority=priority,
        deadline=deadline,
        wake=wake,
        on_duplicate=on_duplicate,
    )
    return calls.submit_many(jobs, options).on(DjangoStack(using))


def get_job(job_id: UUID, *, using: str = "default") -> JobView | None:
    """As `bellwire.get_job`."""
    return calls.get_job(job_id).on(DjangoStack(using))


def find_job(job: Job, *, using: str = "default") -> JobView | None:
    """As `bellwire.find_job`."""
    return calls.find_job(job).on(DjangoStack(using))


def cancel(job_id: UUID, *, actor: str, reason: str, using: str = "default") -> CancelOutcome:
    """As `bellwire.cancel`."""
    return calls.cancel(job_id, actor=actor, reason=reason).on(DjangoStack(using))


def drain_estimate(kind: str | type[Job], *, using: str = "default") -> timedelta | None:
    """As `bellwire.drain_estimate`."""
    return calls.drain_estimate(kind).on(DjangoStack(using))
