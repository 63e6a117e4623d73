"""What the consumer's tests need around it: an app with applied policy, jobs, and the rows they left.

Admission is the relay's; here a statement plays it, so that each test decides what may be claimed and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from sqlalchemy import create_engine

from bellwire_consumer import App
from bellwire_consumer.daemon import Consumer
from bellwire_consumer.settings import ConsumerSettings
from bellwire_outbox import Job, JobConfig, submit_many
from bellwire_schema.policy import apply
from bellwire_testkit.databases import Database
from bellwire_testkit.waiting import wait_until_async

Conn = psycopg.Connection[Any]


class Work(Job):
    """The payload most tests use."""

    job_config = JobConfig(kind="work", version=1, key=None)
    n: int = 0
    text: str = ""


class Row(NamedTuple):
    """A job as it stands."""

    state: str
    reason: str | None
    attempt: int
    attempts_used: int
    releases: int
    waits: int
    last_code: str | None
    last_message: str | None
    result: Any
    checkpoint: Any


class Past(NamedTuple):
    """One recorded attempt."""

    number: int
    outcome: str
    error_class: str | None
    code: str | None
    message: str | None


def settings(database: Database, **changes: Any) -> ConsumerSettings:
    """As the consumer's own role."""
    return ConsumerSettings(**{"database_url": database.url_as("bellwire_consumer"), **changes})


def apply_policy(database: Database, app: App[Any]) -> None:
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        apply(connection, app=app.name, declared=app.declared(), actor="test")
    engine.dispose()


def submit_jobs(conn: Conn, *jobs: Job, **options: Any) -> list[UUID]:
    with conn.transaction():
        return [receipt.job_id for receipt in submit_many(conn, list(jobs), **options)]


def admit(conn: Conn) -> int:
    """Let everything go that is ready."""
    return conn.execute(
        "UPDATE bellwire.outbox SET admitted_at = bellwire.now() WHERE admitted_at IS NULL"
    ).rowcount


def recover(conn: Conn) -> list[UUID]:
    """What the relay takes back from expired leases."""
    rows = conn.execute("SELECT job_id FROM bellwire.recover(100, array_fill(0.0::float8, ARRAY[100]))")
    return [row[0] for row in rows.fetchall()]


def turn(conn: Conn) -> None:
    """One round of a relay: take back, promote, admit."""
    recover(conn)
    conn.execute("SELECT * FROM bellwire.promote(1000)")
    admit(conn)


def job(conn: Conn, job_id: UUID) -> Row:
    found = conn.execute(
        "SELECT state, reason, attempt, attempts_used, releases, waits, last_code, last_message, result,"
        " checkpoint FROM bellwire.job WHERE id = %s",
        (job_id,),
    ).fetchone()
    assert found is not None
    return Row._make(found)


def history(conn: Conn, job_id: UUID) -> list[Past]:
    rows = conn.execute(
        "SELECT number, outcome, error_class, code, message FROM bellwire.attempt WHERE job_id = %s"
        " ORDER BY number",
        (job_id,),
    ).fetchall()
    return [Past._make(row) for row in rows]


def states(conn: Conn) -> dict[str, int]:
    return dict(conn.execute("SELECT state, count(*) FROM bellwire.job GROUP BY state").fetchall())


@asynccontextmanager
async def consumer_on(
    database: Database,
    app: App[Any],
    *,
    policy: bool = True,
    kinds: Sequence[str] | None = None,
    **changes: Any,
) -> AsyncIterator[Consumer]:
    """A consumer to be driven by hand."""
    if policy:
        apply_policy(database, app)
    async with Consumer(app, settings(database, **changes), kinds=kinds) as consumer:
        yield consumer


@asynccontextmanager
async def running(database: Database, app: App[Any], **changes: Any) -> AsyncIterator[Consumer]:
    """A consumer whose loops run, stopped in order at the end."""
    async with consumer_on(database, app, **changes) as consumer:
        stop = asyncio.Event()
        task = asyncio.ensure_future(consumer.run(stop))
        try:
            yield consumer
        finally:
            stop.set()
            await task


async def until(condition: Any, describe: str, *, deadline: float = 15.0) -> Any:
    return await wait_until_async(condition, deadline=deadline, describe=describe)


SECOND = timedelta(seconds=1)
