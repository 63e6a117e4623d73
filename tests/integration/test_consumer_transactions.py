"""`attempt.transaction`: rows and the attempt's ending together or not at all, on every source."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import psycopg_pool
import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from bellwire_consumer import App, AsyncAttempt, Attempt
from bellwire_outbox import Job, JobConfig
from bellwire_schema.errors import (
    BellwireError,
    ConfigError,
    ConnectionUnsupported,
    LeaseLost,
    ResultInvalid,
    WrongDatabase,
)
from bellwire_testkit.databases import Database, Template
from bellwire_testkit.proxy import Proxy
from tests.integration.consumer_stage import (
    Work,
    admit,
    consumer_on,
    history,
    job,
    states,
    submit_jobs,
)

Conn = psycopg.Connection[Any]
INSERT = "INSERT INTO written VALUES ('here')"


class Next(Job):
    job_config = JobConfig(kind="next", version=1, key=None)


class Cursor(BaseModel):
    last: int


@pytest.fixture(autouse=True)
def _table(conn: Conn) -> None:
    conn.execute("CREATE TABLE written (word text)")


def url(database: Database, driver: str, *, port: int | None = None) -> str:
    plain = database.url if port is None else database.url_through(port)
    return plain.replace("postgresql://", f"postgresql+{driver}://", 1)


@contextmanager
def sync_source(database: Database, name: str) -> Iterator[Any]:
    match name:
        case "psycopg pool":
            with psycopg_pool.ConnectionPool(database.url, min_size=1, max_size=2) as pool:
                yield pool
        case "autocommit function":
            yield lambda: psycopg.connect(database.url, autocommit=True)
        case _:
            library, driver = name.split()
            engine = create_engine(url(database, driver))
            yield sessionmaker(engine) if library == "session" else engine
            engine.dispose()


@asynccontextmanager
async def async_source(database: Database, name: str, *, port: int | None = None) -> AsyncIterator[Any]:
    match name:
        case "psycopg pool":
            async with psycopg_pool.AsyncConnectionPool(
                database.url, min_size=1, max_size=2, open=False
            ) as pool:
                yield pool
        case "autocommit function":

            @asynccontextmanager
            async def connection() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
                async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as opened:
                    yield opened

            yield connection
        case _:
            library, driver = name.split()
            engine = create_async_engine(url(database, driver, port=port))
            yield async_sessionmaker(engine) if library == "session" else engine
            await engine.dispose()


def words(conn: Conn) -> int:
    row = conn.execute("SELECT count(*) FROM written").fetchone()
    return int(row[0]) if row else -1


SYNC = ["session psycopg", "session psycopg2", "engine psycopg", "psycopg pool", "autocommit function"]
ASYNC = ["session psycopg", "session asyncpg", "engine asyncpg", "psycopg pool", "autocommit function"]


def handle_of(tx: Any) -> Any:
    return tx.session if hasattr(tx, "session") else tx.connection


def statement(handle: Any) -> Any:
    return INSERT if isinstance(handle, (psycopg.Connection, psycopg.AsyncConnection)) else text(INSERT)


@pytest.mark.parametrize("name", SYNC)
@pytest.mark.parametrize("fails", [False, True], ids=["completes", "raises"])
async def test_sync_sources(database: Database, conn: Conn, name: str, *, fails: bool) -> None:
    app = App("sync")
    with sync_source(database, name) as source:

        @app.handler(Work)
        def work(job: Work, attempt: Attempt) -> None:
            with attempt.transaction(source) as tx:
                handle = handle_of(tx)
                handle.execute(statement(handle))
                tx.submit(Next())
                tx.complete({"n": job.n})
                if fails:
                    raise ValueError("after all")

        async with consumer_on(database, app) as consumer:
            (job_id,) = submit_jobs(conn, Work(n=7))
            admit(conn)
            (ended,) = await consumer.run_once()
    if fails:
        assert (ended.state, words(conn), states(conn)) == ("scheduled", 0, {"scheduled": 1})
    else:
        assert (ended.status, words(conn), states(conn)) == ("completed", 1, {"succeeded": 1, "ready": 1})
        assert job(conn, job_id).result == {"n": 7}
        assert [past.outcome for past in history(conn, job_id)] == ["succeeded"]


@pytest.mark.parametrize("name", ASYNC)
@pytest.mark.parametrize("fails", [False, True], ids=["completes", "raises"])
async def test_async_sources(database: Database, conn: Conn, name: str, *, fails: bool) -> None:
    app = App("async")
    async with async_source(database, name) as source:

        @app.handler(Work)
        async def work(job: Work, attempt: AsyncAttempt) -> None:
            async with attempt.transaction(source) as tx:
                handle = handle_of(tx)
                await handle.execute(statement(handle))
                await tx.submit(Next())
                tx.complete({"n": job.n})
                if fails:
                    raise ValueError("after all")

        async with consumer_on(database, app) as consumer:
            (job_id,) = submit_jobs(conn, Work(n=7))
            admit(conn)
            (ended,) = await consumer.run_once()
    if fails:
        assert (ended.state, words(conn), states(conn)) == ("scheduled", 0, {"scheduled": 1})
    else:
        assert (ended.status, words(conn), states(conn)) == ("completed", 1, {"succeeded": 1, "ready": 1})
        assert job(conn, job_id).result == {"n": 7}
        assert [past.outcome for past in history(conn, job_id)] == ["succeeded"]


async def run_with(
    database: Database,
    conn: Conn,
    handler: Callable[[Work, AsyncAttempt, Any], Any],
    name: str = "session asyncpg",
) -> tuple[Any, Any]:
    """Run one job by `handler`, which is given an async source. Answers the ending and the row."""
    app = App("one")
    async with async_source(database, name) as source:

        @app.handler(Work)
        async def work(job: Work, attempt: AsyncAttempt) -> Any:
            return await handler(job, attempt, source)

        async with consumer_on(database, app) as consumer:
            (job_id,) = submit_jobs(conn, Work())
            admit(conn)
            (ended,) = await consumer.run_once()
    return ended, job(conn, job_id)


async def test_a_checkpoint_commits_with_the_rows_it_speaks_of(database: Database, conn: Conn) -> None:
    seen: list[Cursor | None] = []

    async def handler(job: Work, attempt: AsyncAttempt, source: Any) -> None:
        seen.append(attempt.checkpoint(Cursor))
        async with attempt.transaction(source) as tx:
            await tx.session.execute(text(INSERT))
            tx.checkpoint(Cursor(last=1))
        seen.append(attempt.checkpoint(Cursor))
        async with attempt.transaction(source) as tx:
            await tx.session.execute(text(INSERT))
            tx.checkpoint(Cursor(last=2))
            raise ValueError("the second page is lost")

    ended, row = await run_with(database, conn, handler)
    assert seen == [None, Cursor(last=1)]
    assert (ended.state, row.checkpoint, words(conn)) == ("scheduled", {"last": 1}, 1)

    async def again(job: Work, attempt: AsyncAttempt, source: Any) -> None:
        seen.append(attempt.checkpoint(Cursor))

    conn.execute("UPDATE bellwire.job SET run_at = bellwire.now()")
    conn.execute("SELECT * FROM bellwire.promote(10)")
    admit(conn)
    app = App("one")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        await again(job, attempt, None)

    async with consumer_on(database, app) as consumer:
        await consumer.run_once()
    assert seen[-1] == Cursor(last=1)


async def test_a_block_without_an_ending_checks_the_token_and_goes_on(database: Database, conn: Conn) -> None:
    async def handler(job: Work, attempt: AsyncAttempt, source: Any) -> str:
        async with attempt.transaction(source) as tx:
            await tx.session.execute(text(INSERT))
        return "returned"

    ended, row = await run_with(database, conn, handler)
    assert (ended.status, row.state, row.result, words(conn)) == ("settled", "succeeded", "returned", 1)


async def test_another_database_is_refused_at_the_start(
    database: Database, conn: Conn, template: Template
) -> None:
    other = template.clone()
    engine = create_async_engine(url(other, "asyncpg"))
    errors: list[BellwireError] = []

    async def handler(job: Work, attempt: AsyncAttempt, source: Any) -> None:
        try:
            async with attempt.transaction(async_sessionmaker(engine)):
                raise AssertionError("never reached")
        except BellwireError as error:
            errors.append(error)

    await run_with(database, conn, handler)
    await engine.dispose()
    other.drop_unused()
    assert [type(error) for error in errors] == [WrongDatabase]


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda tx: tx.complete(float("nan")), ResultInvalid),
        (lambda tx: tx.complete({"a": "\x00"}), ResultInvalid),
        (lambda tx: tx.complete("x" * 70_000), ResultInvalid),
    ],
    ids=["nan", "nul", "large"],
)
async def test_a_bad_result_is_refused_before_any_sql(
    database: Database, conn: Conn, act: Callable[[Any], None], expected: type[BellwireError]
) -> None:
    caught: list[BellwireError] = []

    async def handler(job: Work, attempt: AsyncAttempt, source: Any) -> None:
        async with attempt.transaction(source) as tx:
            await tx.session.execute(text(INSERT))
            try:
                act(tx)
            except BellwireError as error:
                caught.append(error)
            await tx.session.execute(text(INSERT))  # the transaction is still usable
            tx.complete()

    ended, _ = await run_with(database, conn, handler)
    assert [type(error) for error in caught] == [expected]
    assert (ended.status, words(conn)) == ("completed", 2)


async def test_a_commit_inside_the_block_is_noticed(database: Database, conn: Conn) -> None:
    caught: list[BellwireError] = []

    async def handler(job: Work, attempt: AsyncAttempt, source: Any) -> None:
        try:
            async with attempt.transaction(source) as tx:
                await tx.session.execute(text(INSERT))
                await tx.session.commit()
                tx.complete()
        except ConfigError as error:
            caught.append(error)

    ended, _ = await run_with(database, conn, handler)
    assert len(caught) == 1
    assert ended.status == "settled"


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT"])
async def test_an_end_by_plain_sql_inside_the_block_is_noticed(
    database: Database, conn: Conn, ending: str
) -> None:
    """No driver sees it; the success would else be committed without the rows, or after them."""
    caught: list[BellwireError] = []

    async def handler(job: Work, attempt: AsyncAttempt, source: Any) -> None:
        try:
            async with attempt.transaction(source) as tx:
                await tx.session.execute(text(INSERT))
                await tx.session.execute(text(ending))
                tx.complete()
        except ConfigError as error:
            caught.append(error)
            raise

    ended, _ = await run_with(database, conn, handler)
    assert len(caught) == 1
    assert "committed or rolled back inside" in str(caught[0])
    assert ended.state != "succeeded"


async def test_a_second_completion_is_refused(database: Database, conn: Conn) -> None:
    caught: list[BellwireError] = []

    async def handler(job: Work, attempt: AsyncAttempt, source: Any) -> None:
        async with attempt.transaction(source) as tx:
            tx.complete()
        try:
            async with attempt.transaction(source) as tx:
                tx.complete()
        except LeaseLost as error:
            caught.append(error)

    ended, _ = await run_with(database, conn, handler)
    assert len(caught) == 1
    assert ended.status == "completed"


@pytest.mark.parametrize(
    "source", [object(), create_engine("postgresql+psycopg://"), "dsn"], ids=["object", "engine", "text"]
)
async def test_what_is_no_source_is_refused(database: Database, conn: Conn, source: Any) -> None:
    caught: list[BellwireError] = []

    async def handler(job: Work, attempt: AsyncAttempt, _: Any) -> None:
        try:
            async with attempt.transaction(source):
                raise AssertionError("never reached")
        except ConnectionUnsupported as error:
            caught.append(error)

    await run_with(database, conn, handler)
    assert len(caught) == 1


async def test_a_lost_answer_to_commit_is_settled_by_asking(
    database: Database, conn: Conn, proxy: Proxy
) -> None:
    app = App("answer")
    after: list[str] = []
    engine = create_async_engine(url(database, "psycopg", port=proxy.port))

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        async with attempt.transaction(async_sessionmaker(engine)) as tx:
            await tx.session.execute(text(INSERT))
            tx.complete({"ok": True})
            if attempt.number == 1:
                proxy.lose_answer("COMMIT")
        after.append("went on")

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        (ended,) = await asyncio.wait_for(consumer.run_once(), 30)
    await engine.dispose()
    assert proxy.cuts == 1
    assert (ended.status, after, words(conn)) == ("completed", ["went on"], 1)
    assert job(conn, job_id).result == {"ok": True}


async def test_a_commit_that_never_arrived_is_not_taken_for_done(
    database: Database, conn: Conn, proxy: Proxy
) -> None:
    app = App("answer")
    engine = create_async_engine(url(database, "psycopg", port=proxy.port))

    @app.handler(Work, lease=timedelta(seconds=3))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        async with attempt.transaction(async_sessionmaker(engine)) as tx:
            await tx.session.execute(text(INSERT))
            tx.complete()
            proxy.cut_before("COMMIT")

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        (ended,) = await asyncio.wait_for(consumer.run_once(), 30)
    await engine.dispose()
    assert proxy.cuts == 1
    assert (ended.state, words(conn)) == ("scheduled", 0)
    assert [past.outcome for past in history(conn, job_id)] == ["retry"]
