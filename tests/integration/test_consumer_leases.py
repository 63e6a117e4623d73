"""Slots are never exceeded, living leases are kept whatever a handler does, a lost one changes nothing."""

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from bellwire_consumer import App, AsyncAttempt, Attempt
from bellwire_outbox import Job, JobConfig
from bellwire_schema.errors import LeaseLost
from bellwire_testkit.databases import Database
from bellwire_testkit.proxy import Proxy
from tests.integration.consumer_stage import (
    Work,
    admit,
    apply_policy,
    consumer_on,
    history,
    job,
    recover,
    running,
    settings,
    states,
    submit_jobs,
    until,
)

Conn = psycopg.Connection[Any]
LEASE = timedelta(seconds=2)


def asyncpg_url(database: Database) -> str:
    return database.url.replace("postgresql://", "postgresql+asyncpg://", 1)


def psycopg_url(database: Database) -> str:
    return database.url.replace("postgresql://", "postgresql+psycopg://", 1)


def expire_leases(conn: Conn) -> None:
    conn.execute(
        "UPDATE bellwire.job SET lease_expires_at = bellwire.now() - interval '1 second'"
        " WHERE state = 'running'"
    )


async def test_running_rows_never_outnumber_the_slots(database: Database, conn: Conn) -> None:
    app = App("slots")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        await asyncio.sleep(0.02)

    counts: list[int] = []
    over = threading.Event()

    def sample(consumer: UUID) -> None:
        with database.connect() as own:
            while len(counts) < 1000 and not over.is_set():
                row = own.execute(
                    "SELECT count(*) FROM bellwire.job WHERE state = 'running' AND consumer = %s", (consumer,)
                ).fetchone()
                counts.append(row[0] if row else -1)

    async with running(database, app, slots=4) as consumer:
        submit_jobs(conn, *[Work(n=n) for n in range(200)])
        admit(conn)
        sampler = asyncio.get_running_loop().run_in_executor(None, sample, consumer.identity.id)
        try:
            await until(lambda: states(conn) == {"succeeded": 200}, "all to succeed", deadline=60)
        finally:
            await sampler
    assert len(counts) == 1000
    assert max(counts) == 4


async def test_one_in_a_long_transaction_while_its_neighbours_keep_their_leases(
    database: Database, conn: Conn
) -> None:
    engine = create_async_engine(asyncpg_url(database))
    sessions = async_sessionmaker(engine)
    app = App("neighbours")

    @app.handler(Work, lease=LEASE)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        if job.n == 0:
            async with attempt.transaction(sessions) as tx:
                await tx.session.execute(text(f"SELECT pg_sleep({3 * LEASE.total_seconds()})"))
                tx.complete()
        else:
            await asyncio.sleep(3 * LEASE.total_seconds())

    taken: list[UUID] = []
    async with consumer_on(database, app) as consumer:
        submit_jobs(conn, *[Work(n=n) for n in range(50)])
        admit(conn)
        once = asyncio.ensure_future(consumer.run_once())
        while not once.done():
            taken += recover(conn)
            await asyncio.sleep(0.1)
        await once
    await engine.dispose()
    assert taken == []
    assert states(conn) == {"succeeded": 50}
    assert {row[0] for row in conn.execute("SELECT attempt FROM bellwire.job").fetchall()} == {1}


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_above_read_committed_the_heartbeat_leaves_the_job_alone(
    database: Database, conn: Conn, isolation: str
) -> None:
    engine = create_async_engine(asyncpg_url(database), isolation_level=isolation)
    sessions = async_sessionmaker(engine)
    app = App("isolation")
    beats: list[Any] = []

    @app.handler(Work, lease=timedelta(seconds=3))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        async with attempt.transaction(sessions) as tx:
            for _ in range(20):
                await tx.session.execute(text("SELECT pg_sleep(0.1)"))
                beats.append(conn.execute("SELECT heartbeat_at = started_at FROM bellwire.job").fetchone())
            tx.complete()

    async with consumer_on(database, app) as consumer:
        submit_jobs(conn, Work())
        admit(conn)
        (ended,) = await consumer.run_once()
    await engine.dispose()
    assert ended.status == "completed"
    assert set(beats) == {(True,)}
    assert states(conn) == {"succeeded": 1}


@pytest.mark.parametrize("source", ["sessionmaker", "engine", "pool", "async sessionmaker"])
async def test_who_waits_for_a_connection_of_the_users_pool_keeps_its_lease(
    database: Database, conn: Conn, source: str
) -> None:
    app = App("dry-pool")
    once = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 30}
    engine = create_engine(psycopg_url(database), **once)
    async_engine = create_async_engine(asyncpg_url(database), **once)
    pool: ConnectionPool[Any] = ConnectionPool(database.url, min_size=0, max_size=1, timeout=30, open=True)
    sources: dict[str, Any] = {"sessionmaker": sessionmaker(engine), "engine": engine, "pool": pool}

    def in_thread(job: Work, attempt: Attempt) -> None:
        with attempt.transaction(sources[source]) as tx:
            time.sleep(0.9)
            tx.complete()

    async def on_loop(job: Work, attempt: AsyncAttempt) -> None:
        async with attempt.transaction(async_sessionmaker(async_engine)) as tx:
            await asyncio.sleep(0.9)
            tx.complete()

    handler: Any = in_thread if source in sources else on_loop
    app.handler(Work, lease=timedelta(seconds=2))(handler)
    async with running(database, app) as consumer:
        ids = submit_jobs(conn, *[Work(n=n) for n in range(5)])
        admit(conn)
        await until(lambda: consumer.slots.running, "the claim")
        await until(lambda: not consumer.slots.running, "the attempts to end", deadline=30)
    pool.close()
    engine.dispose()
    await async_engine.dispose()
    assert [[past.outcome for past in history(conn, id_)] for id_ in ids] == [["succeeded"]] * 5


async def test_a_registry_row_that_is_held_costs_no_lease(database: Database, conn: Conn) -> None:
    app = App("registry")

    @app.handler(Work, lease=timedelta(seconds=1))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        await asyncio.sleep(8)  # the registry is beaten every five seconds

    async with running(database, app):
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await until(lambda: job(conn, job_id).state == "running", "the attempt to run")
        with database.connect(autocommit=False) as other:
            other.execute("SELECT 1 FROM bellwire.consumer FOR UPDATE")
            await until(lambda: job(conn, job_id).state != "running", "the attempt to end", deadline=20)
            other.rollback()
    assert [past.outcome for past in history(conn, job_id)] == ["succeeded"]


async def test_above_read_committed_a_transaction_must_end_within_the_lease(
    database: Database, conn: Conn
) -> None:
    engine = create_async_engine(asyncpg_url(database), isolation_level="REPEATABLE READ")
    sessions = async_sessionmaker(engine)
    app = App("isolation")

    @app.handler(Work, lease=timedelta(seconds=1))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        async with attempt.transaction(sessions) as tx:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1.5)
            tx.complete()

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    await engine.dispose()
    # It would not fare better at once: it uses up an attempt, waits, and says what to do about it.
    row = job(conn, job_id)
    assert (row.state, row.reason, row.last_code) == ("scheduled", "retry", "lease_lost")
    assert "READ COMMITTED" in (row.last_message or "")


@pytest.mark.parametrize("kind", ["blocked loop", "thread"])
async def test_a_blocked_handler_keeps_its_lease(database: Database, conn: Conn, kind: str) -> None:
    app = App("blocked")
    if kind == "thread":

        @app.handler(Work, lease=timedelta(seconds=1))
        def in_thread(job: Work, attempt: Attempt) -> None:
            time.sleep(3)

    else:

        @app.handler(Work, lease=timedelta(seconds=1))
        async def on_loop(job: Work, attempt: AsyncAttempt) -> None:
            time.sleep(3)  # noqa: ASYNC251 (the point)

    taken: list[UUID] = []
    done = threading.Event()

    def recover_again_and_again() -> None:
        with database.connect() as own:
            while not done.wait(0.05):
                taken.extend(recover(own))

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        recovering = asyncio.get_running_loop().run_in_executor(None, recover_again_and_again)
        await consumer.run_once()
        done.set()
        await recovering
    assert taken == []
    assert [past.outcome for past in history(conn, job_id)] == ["succeeded"]


async def test_a_stale_token_changes_nothing_after_recovery(database: Database, conn: Conn) -> None:
    engine = create_async_engine(asyncpg_url(database))
    sessions = async_sessionmaker(engine)
    conn.execute("CREATE TABLE written (n integer)")
    app = App("stale")
    go_on = asyncio.Event()
    seen: list[BaseException] = []

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        if attempt.number > 1:
            return
        await go_on.wait()
        try:
            async with attempt.transaction(sessions) as tx:
                await tx.session.execute(text("INSERT INTO written VALUES (1)"))
                tx.complete({"stale": True})
        except LeaseLost as error:
            seen.append(error)
            raise

    async with consumer_on(database, app) as first, consumer_on(database, app, policy=False) as second:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        once = asyncio.ensure_future(first.run_once())
        await until(lambda: job(conn, job_id).state == "running", "the first attempt to run")
        expire_leases(conn)
        assert recover(conn) == [job_id]
        conn.execute("SELECT * FROM bellwire.promote(10)")
        admit(conn)
        (taken_over,) = await second.run_once()
        go_on.set()
        (stale,) = await once
    await engine.dispose()
    assert (taken_over.status, taken_over.state) == ("settled", "succeeded")
    assert stale.status == "lost"
    assert len(seen) == 1
    assert conn.execute("SELECT count(*) FROM written").fetchone() == (0,)
    assert [past.outcome for past in history(conn, job_id)] == ["recovered", "succeeded"]
    assert job(conn, job_id).result is None


class Plain(Job):
    job_config = JobConfig(kind="plain", version=1, key=None)


async def test_a_lost_lease_cancels_the_coroutine_and_tells_the_thread(
    database: Database, conn: Conn
) -> None:
    app = App("lost")
    told: list[str] = []
    heard = threading.Event()

    @app.handler(Work, lease=timedelta(seconds=1))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    @app.handler(Plain, lease=timedelta(seconds=1))
    def plain(job: Plain, attempt: Attempt) -> None:
        try:
            while True:
                attempt.raise_if_cancelled()
                time.sleep(0.01)
        except LeaseLost:
            heard.set()
            raise

    async with consumer_on(database, app) as consumer:
        ids = submit_jobs(conn, Work(), Plain())
        admit(conn)
        once = asyncio.ensure_future(consumer.run_once())
        await until(lambda: states(conn) == {"running": 2}, "both attempts to run")
        expire_leases(conn)
        assert set(recover(conn)) == set(ids)
        ended = await asyncio.wait_for(once, 10)
        await until(heard.is_set, "the thread to be told")
    assert told == ["cancelled"]
    assert [one.status for one in ended] == ["lost", "lost"]
    assert [past.outcome for job_id in ids for past in history(conn, job_id)] == ["recovered", "recovered"]


async def test_without_the_database_a_lease_is_believed_no_longer_than_it_lasts(
    database: Database, conn: Conn, proxy: Proxy
) -> None:
    app = App("alone")
    ended: list[float] = []

    @app.handler(Work, lease=timedelta(seconds=2))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        began = time.monotonic()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append(time.monotonic() - began)
            raise

    apply_policy(database, app)
    url = database.url_through(proxy.port)
    async with consumer_on(database, app, policy=False, database_url=url, connect_timeout=1) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        once = asyncio.ensure_future(consumer.run_once())
        await until(lambda: job(conn, job_id).state == "running", "the attempt to run")
        proxy.refuse()
        await until(lambda: ended, "the handler to be cancelled", deadline=10)
        proxy.serve()
        await asyncio.wait_for(once, 20)
    assert ended[0] < 4
    # Handed back, since nothing was wrong with the job.
    row = job(conn, job_id)
    assert (row.state, row.attempts_used, row.releases) == ("ready", 0, 1)


async def test_a_row_locked_by_an_application_is_busy_not_lost(database: Database, conn: Conn) -> None:
    app = App("busy")
    go_on = asyncio.Event()

    @app.handler(Work, lease=timedelta(seconds=1))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        await go_on.wait()

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        once = asyncio.ensure_future(consumer.run_once())
        # Not the row: that is there before the answer is.
        await until(lambda: len(consumer.slots.snapshot()) == 1, "the attempt to run")
        with database.connect(autocommit=False) as other:
            other.execute("SELECT 1 FROM bellwire.job WHERE id = %s FOR UPDATE", (job_id,))
            (lease,) = consumer.slots.snapshot()
            await until(lambda: lease.busy, "a heartbeat to find the row busy")
            await asyncio.sleep(1.2)
            assert not once.done()
            go_on.set()
            await until(lambda: lease.ended, "the handler to end")
            await asyncio.sleep(0.2)
            assert not once.done()
            other.rollback()
        (ended,) = await asyncio.wait_for(once, 10)
    assert (ended.status, ended.state) == ("settled", "succeeded")


async def test_settings_cannot_be_combined_so_that_no_time_is_left(database: Database) -> None:
    with pytest.raises(ValueError, match="BELLWIRE_CONSUMER_DRAIN"):
        settings(database, consumer_drain="30s", shutdown_grace="30s")
