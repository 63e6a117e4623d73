"""What people look at: lists of jobs, and one job with its attempts.

Reads take no lock, write nothing, and never select what people sent (payload, result, checkpoint), so the
viewer's role is enough and no payload ends up on a screen by accident. Lists are paged by id: ids ascend with
time, so a page stays a page while jobs come and go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, Text, Uuid, cast, func, literal, literal_column, select

from bellwire_schema.tables import attempts, effect, job, outbox
from bellwire_schema.tables import kind as kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job in a list."""

    id: UUID
    kind: str
    version: int
    tenant: str
    key: str | None
    state: str
    reason: str | None
    priority: int
    attempt: int
    run_at: datetime
    created_at: datetime
    finished_at: datetime | None
    last_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroup:
    """Failed jobs of a kind that ended with the same code."""

    kind: str
    code: str
    jobs: int
    oldest_at: datetime
    newest_at: datetime
    example: UUID
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One attempt; the running one has no end yet."""

    id: UUID
    number: int
    generation: int
    outcome: str
    error_class: str | None
    code: str | None
    message: str | None
    consumer: UUID | None
    consumer_version: str | None
    host: str | None
    started_at: datetime
    heartbeat_at: datetime | None
    ended_at: datetime | None
    progress: int | None
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectLine:
    """One outside action of a job."""

    name: str
    attempt: int
    status: str
    remote_id: str | None
    written_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail(JobLine):
    """A job with all that is known of it, save what people sent."""

    generation: int
    unique_until: str | None
    key_held: bool
    ordering_key: str | None
    eligible_at: datetime | None
    deadline_at: datetime | None
    max_attempts: int | None
    attempts_used: int
    unknown_errors: int
    deaths: int
    waits: int
    releases: int
    consumer: UUID | None
    consumer_version: str | None
    host: str | None
    started_at: datetime | None
    heartbeat_at: datetime | None
    lease_expires_at: datetime | None
    lease: timedelta | None
    timeout: timedelta | None
    progress_timeout: timedelta | None
    progress: int | None
    progress_total: int | None
    progress_note: str | None
    progress_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_actor: str | None
    cancel_reason: str | None
    superseded_by: UUID | None
    first_code: str | None
    last_message: str | None
    triage_note: str | None
    woken: bool
    admitted_at: datetime | None
    publishes: int | None
    publish_error: str | None
    published_at: datetime | None
    attempts: tuple[AttemptLine, ...]
    effects: tuple[EffectLine, ...]


# The key as it was submitted, which stays with the job; the column `key` is null once it was let go of.
_KEY = job.c.label.label("key")
_LINE = [_KEY if name == "key" else job.c[name] for name in JobLine.__dataclass_fields__]
_DETAIL = [
    _KEY if name == "key" else job.c[name]
    for name in JobDetail.__dataclass_fields__
    if name in job.c or name == "key"
]
# How far back a look goes that has no index to go by: what it costs does not grow with the table.
_NEWEST = 100_000
# What a failed job is grouped by: the last error's code, or why it ended where there was no error.
_CODE = func.coalesce(job.c.last_code, job.c.reason, literal_column("'unknown'"))


def now(connection: Connection) -> datetime:
    """The database's clock, which dates every row."""
    moment: datetime = connection.execute(select(func.bellwire.now())).scalar_one()
    return moment


def list_jobs(
    connection: Connection,
    *,
    states: Sequence[str] = (),
    kind: str | None = None,
    tenant: str | None = None,
    error: str | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> list[JobLine]:
    """The newest jobs first; `before` is the last id of the page before."""
    query = _filtered(select(*_LINE), states=states, kind=kind, tenant=tenant, error=error)
    if before is not None:
        query = query.where(job.c.id < before)
    query = query.order_by(job.c.id.desc()).limit(limit)
    return [JobLine(**row) for row in connection.execute(query).mappings()]


def group_failed(
    connection: Connection,
    *,
    kind: str | None = None,
    tenant: str | None = None,
    error: str | None = None,
    limit: int = 50,
) -> list[ErrorGroup]:
    """Failed jobs by kind and code, the largest group first; `example` is the newest of each."""
    grouped = (
        _filtered(
            select(
                job.c.kind,
                _CODE.label("code"),
                func.count().label("jobs"),
                func.min(job.c.finished_at).label("oldest_at"),
                func.max(job.c.finished_at).label("newest_at"),
                # As text, since PostgreSQL has no max(uuid) before version 18.
                cast(func.max(cast(job.c.id, Text)), Uuid).label("example"),
            ),
            states=("failed",),
            kind=kind,
            tenant=tenant,
            error=error,
        )
        .group_by(job.c.kind, _CODE)
        .order_by(func.count().desc(), job.c.kind, _CODE)
        .limit(limit)
        .subquery()
    )
    query = (
        select(grouped, job.c.last_message.label("message"))
        .join(job, job.c.id == grouped.c.example)
        .order_by(grouped.c.jobs.desc(), grouped.c.kind, grouped.c.code)
    )
    return [ErrorGroup(**row) for row in connection.execute(query).mappings()]


def is_kind(connection: Connection, name: str) -> bool:
    """Whether somebody applied the kind or submitted a job of it."""
    applied = select(kinds.c.name).where(kinds.c.name == name)
    submitted = select(job.c.id).where(job.c.kind == name).limit(1)
    return any(connection.execute(query).first() is not None for query in (applied, submitted))


def kind_names(connection: Connection) -> list[str]:
    """The kinds that were applied."""
    return list(connection.execute(select(kinds.c.name).order_by(kinds.c.name)).scalars())


def newest_of_tenant(connection: Connection, tenant: str) -> JobLine | None:
    """The tenant's newest job, whatever became of it, looked for among the newest of all."""
    newest = select(*_LINE).order_by(job.c.id.desc()).limit(_NEWEST).subquery()
    query = select(newest).where(newest.c.tenant == tenant).order_by(newest.c.id.desc()).limit(1)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else JobLine(**row)


def show_job(connection: Connection, job_id: UUID) -> JobDetail | None:
    """One job with its attempts and effects, or None; one snapshot if the transaction is REPEATABLE READ."""
    row = (
        connection.execute(
            select(
                *_DETAIL,
                job.c.key.is_not(None).label("key_held"),
                outbox.c.job_id.is_not(None).label("woken"),
                outbox.c.admitted_at,
                outbox.c.publishes,
                outbox.c.publish_error,
                outbox.c.published_at,
            )
            .join(outbox, outbox.c.job_id == job.c.id, isouter=True)
            .where(job.c.id == job_id)
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        return None
    ended = connection.execute(
        select(*(attempts.c[name] for name in AttemptLine.__dataclass_fields__))
        .where(attempts.c.job_id == job_id)
        .order_by(attempts.c.number)
    ).mappings()
    done = connection.execute(
        select(*(effect.c[name] for name in EffectLine.__dataclass_fields__))
        .where(effect.c.job_id == job_id)
        .order_by(effect.c.written_at)
    ).mappings()
    return JobDetail(
        **row,
        attempts=tuple(AttemptLine(**line) for line in ended),
        effects=tuple(EffectLine(**line) for line in done),
    )


def _filtered(
    query: Select[Any], *, states: Sequence[str], kind: str | None, tenant: str | None, error: str | None
) -> Select[Any]:
    if states:
        query = query.where(job.c.state.in_(states))
    if kind is not None:
        query = query.where(job.c.kind == kind)
    if tenant is not None:
        query = query.where(job.c.tenant == tenant)
    if error is not None:
        query = query.where(literal(error) == _CODE)
    return query
