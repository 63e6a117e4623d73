"""The page of public names, as code that mypy strict accepts. It is type-checked and never run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, assert_type
from uuid import UUID

import psycopg
from pydantic import BaseModel
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import bellwire.django
from bellwire import (
    FailedJob,
    Job,
    JobConfig,
    JobView,
    KeyConflict,
    OverCapacity,
    Receipt,
    cancel,
    drain_estimate,
    find_job,
    get_job,
    submit,
    submit_many,
    upgrade,
)
from bellwire.consumer import (
    App,
    AsyncAttempt,
    AsyncSessionTransaction,
    Attempt,
    Limits,
    Process,
    Rate,
    Retry,
    RetryableError,
    Snooze,
    TerminalError,
    ThrottledError,
)
from bellwire.testing import Harness


class RenderStatement(Job):
    job_config = JobConfig(
        kind="render_statement",
        version=3,
        key=("account_id", "period"),
        unique_until="pruned",
        tenant="account_id",
        max_age=timedelta(days=2),
    )
    account_id: int
    period: str


class Reindex(Job):
    job_config = JobConfig(kind="reindex", version=1, key=None, priority=-5)


class Thumbnail(Job):
    job_config = JobConfig(kind="thumbnail", version=1, key=None)
    path: str


class StatementFailed(FailedJob):
    job_config = JobConfig(kind="statement_failed", version=1, key=None)


@upgrade(RenderStatement, from_version=2)
def _v2(old: dict[str, Any]) -> dict[str, Any]:
    return old


JOB = RenderStatement(account_id=91, period="2026-05")


def sync_app(session: Session, job_id: UUID) -> int:
    try:
        receipt = submit(session, JOB)
    except KeyConflict as conflict:
        assert_type(conflict.job_id, UUID)
        assert_type(conflict.fields, tuple[str, ...])
        return 409
    except OverCapacity as full:
        assert_type(full.drain_estimate, timedelta | None)
        return 503
    assert_type(receipt, Receipt)
    assert_type(receipt.run_at, datetime)
    assert_type(get_job(session, job_id), JobView | None)
    assert_type(find_job(session, JOB), JobView | None)
    assert_type(
        cancel(session, job_id, actor="user:7", reason="closed"),
        Literal["cancelled", "requested", "too_late", "not_found"],
    )
    assert_type(drain_estimate(session, "render_statement"), timedelta | None)
    return 202 if receipt.created else 200


async def async_app(session: AsyncSession, connection: AsyncConnection, job: RenderStatement) -> UUID:
    assert_type(await submit_many(connection, [job, Reindex()]), list[Receipt])
    assert_type(await find_job(session, job), JobView | None)
    return (await submit(session, job, run_in=timedelta(hours=1), priority=5)).job_id


def other_stacks(
    scoped: scoped_session[Session], connection: Connection, raw: psycopg.Connection[tuple[Any, ...]]
) -> None:
    assert_type(submit(scoped, JOB, on_duplicate="supersede"), Receipt)
    assert_type(submit(connection, JOB, wake=False), Receipt)
    with raw.transaction():
        assert_type(submit_many(raw, (JOB for _ in range(3))), list[Receipt])
    assert_type(bellwire.django.submit(JOB, using="default"), Receipt)


async def raw_async(raw: psycopg.AsyncConnection[dict[str, Any]]) -> None:
    assert_type(await submit(raw, JOB), Receipt)


class MailBusy(Exception):
    retry_after = timedelta(seconds=5)


class Mailer:
    async def send(self, account: int) -> str:
        return str(account)


@dataclass
class Deps:
    sessions: async_sessionmaker[AsyncSession]
    plain: sessionmaker[Session]
    mailer: Mailer


@asynccontextmanager
async def lifespan() -> AsyncIterator[Deps]:
    yield Deps(sessions=async_sessionmaker(), plain=sessionmaker(), mailer=Mailer())


app = App("billing", lifespan=lifespan)


@app.handler(
    RenderStatement,
    retry=Retry(max_attempts=6, base=timedelta(seconds=30), cap=timedelta(minutes=10)),
    timeout=timedelta(minutes=10),
    progress_timeout=timedelta(minutes=1),
    limits=Limits(running=20, running_per_tenant=2, rate=Rate(100, timedelta(seconds=1)), backlog=50_000),
    errors={
        ConnectionError: RetryableError("mail_down"),
        MailBusy: lambda e: ThrottledError("mail_429", retry_after=e.retry_after, scope="tenant"),
    },
    on_failed=StatementFailed,
)
async def render(job: RenderStatement, attempt: AsyncAttempt[Deps]) -> None:
    assert_type(job.account_id, int)
    assert_type(attempt.deps, Deps)
    if not job.period:
        raise Snooze(timedelta(minutes=5), code="ledger_open")
    if job.account_id < 0:
        raise TerminalError("empty_statement")
    attempt.progress(1, total=3, note="rendered")
    attempt.raise_if_cancelled()
    async with attempt.transaction(attempt.deps.sessions) as tx:
        assert_type(tx, AsyncSessionTransaction[AsyncSession])
        assert_type(tx.session, AsyncSession)
        assert_type(await tx.submit(JOB), Receipt)
        tx.complete({"pages": 3})


class Cursor(BaseModel):
    last_id: int


@app.handler(Reindex)
async def reindex(job: Reindex, attempt: AsyncAttempt[Deps]) -> None:
    cursor = attempt.checkpoint(Cursor) or Cursor(last_id=0)
    assert_type(cursor, Cursor)
    async with attempt.transaction(attempt.deps.sessions) as tx:
        tx.checkpoint(cursor)


@app.handler(Thumbnail, isolation=Process(memory_mib=512), timeout=timedelta(seconds=30))
def thumbnail(job: Thumbnail, attempt: Attempt[Deps]) -> dict[str, int]:
    with attempt.transaction(attempt.deps.plain) as tx:
        assert_type(tx.session, Session)
        assert_type(tx.submit(JOB), Receipt)
        tx.complete()
    return {"fence": attempt.number}


async def in_tests(bellwire: Harness) -> None:
    assert_type(bellwire.submitted(RenderStatement), list[RenderStatement])
    died = await bellwire.run(app, JOB, kill_at="consumer.claimed")
    assert died.outcome == "process_died"
    bellwire.advance(timedelta(minutes=15))
    assert [result.outcome for result in await bellwire.drain(app)] == ["succeeded"]
