"""`bellwire.django.transaction`: Django's own connection, its rows and the attempt's ending in one COMMIT."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import django
import django.conf
import psycopg
import pytest
from django.db import connections
from django.db import transaction as django_transaction

import bellwire.django
from bellwire_consumer import App, AsyncAttempt, Attempt
from bellwire_outbox import Job, JobConfig
from bellwire_testkit.databases import Database
from tests.integration.consumer_stage import Work, admit, consumer_on, history, job, states, submit_jobs

Conn = psycopg.Connection[Any]
ALIAS = "consumer"


class Next(Job):
    job_config = JobConfig(kind="next", version=1, key=None)


@pytest.fixture
def alias(database: Database, conn: Conn) -> Iterator[str]:
    conn.execute("CREATE TABLE written (word text)")
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}})
        django.setup()
    parts = urlsplit(database.url)
    connections.databases[ALIAS] = {
        **connections.databases["default"],
        "NAME": unquote(parts.path[1:]),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
    }
    yield ALIAS
    del connections.databases[ALIAS]


def words(conn: Conn) -> int:
    row = conn.execute("SELECT count(*) FROM written").fetchone()
    return int(row[0]) if row else -1


def write() -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("INSERT INTO written VALUES ('here')")


@pytest.mark.parametrize("fails", [False, True], ids=["completes", "raises"])
async def test_rows_and_ending_commit_together(
    database: Database, conn: Conn, alias: str, *, fails: bool
) -> None:
    app = App("django")

    @app.handler(Work)
    def work(job: Work, attempt: Attempt) -> None:
        with bellwire.django.transaction(attempt, using=alias) as tx:
            write()
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
    # The connection belonged to the handler's thread, and was closed there.
    assert not [line for line in database.sessions() if "consumer" not in line and "test" not in line]


async def test_inside_another_atomic_block_it_is_refused(database: Database, conn: Conn, alias: str) -> None:
    app = App("django")

    @app.handler(Work)
    def work(job: Work, attempt: Attempt) -> None:
        with django_transaction.atomic(using=alias):
            try:
                with bellwire.django.transaction(attempt, using=alias) as tx:
                    tx.complete()
            finally:
                connections[alias].close()

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    (past,) = history(conn, job_id)
    assert (past.outcome, past.code) == ("retry", "runtime_error")
    assert "durable" in (past.message or "")


async def test_a_coroutine_is_refused(database: Database, conn: Conn, alias: str) -> None:
    app = App("django")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        with bellwire.django.transaction(attempt, using=alias):  # type: ignore[arg-type]  # what is tested
            raise AssertionError("never reached")

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    assert history(conn, job_id)[0].code == "connection_unsupported"
