"""How a consumer begins and ends: whose kinds it may run, what its app opens, and what it says of both."""

import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog

from bellwire_consumer import App, AsyncAttempt
from bellwire_schema.errors import ConfigError, RetryableError
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Process, Processes
from tests.integration.consumer_stage import (
    Work,
    admit,
    apply_policy,
    consumer_on,
    history,
    job,
    states,
    submit_jobs,
)

Conn = psycopg.Connection[Any]

SHOP = """
from contextlib import asynccontextmanager
import asyncio
from bellwire_consumer import App, AsyncAttempt
from bellwire_outbox import Job, JobConfig
class Work(Job):
    job_config = JobConfig(kind="work", version=1, key=None)
    n: int = 0
    text: str = ""
@asynccontextmanager
async def lifespan():
    {start}
    yield
    {end}
app = App("{name}", lifespan=lifespan)
@app.handler(Work)
async def work(job: Work, attempt: AsyncAttempt) -> None:
    print("begun", flush=True)
    await asyncio.sleep(60)
"""
RAISES = "raise RuntimeError('no route to postgresql://me:hidden@there/shop')"


def app_named(name: str) -> App[Any]:
    app: App[Any] = App(name)

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt[None]) -> None:
        raise ValueError("text")

    return app


def start(
    processes: Processes,
    folder: Path,
    *argv: str,
    name: str = "shop",
    begin: str = "pass",
    end: str = "pass",
    env: dict[str, str] | None = None,
) -> Process:
    (folder / "begin_shop.py").write_text(SHOP.format(name=name, start=begin, end=end))
    return processes.start("bellwire", "consumer", "--app", "begin_shop:app", *argv, cwd=folder, env=env)


async def test_a_kind_of_another_app_is_refused(database: Database, conn: Conn) -> None:
    apply_policy(database, app_named("owner"))
    (job_id,) = submit_jobs(conn, Work())
    admit(conn)
    with pytest.raises(ConfigError, match=r"App shop: work belongs to app owner; .* name this App 'owner'"):
        async with consumer_on(database, app_named("shop"), policy=False):
            pass
    assert job(conn, job_id).state == "ready"


def test_a_kind_of_another_app_ends_the_process_with_one_line(
    database: Database, processes: Processes, tmp_path: Path
) -> None:
    apply_policy(database, app_named("owner"))
    consumer = start(processes, tmp_path)
    assert consumer.wait_exit(within=30) == 2
    assert "work belongs to app owner" in consumer.output
    assert "consumer stopped" not in consumer.output
    assert "Traceback" not in consumer.output


def test_without_a_schema_nothing_is_said_to_have_stopped(
    database: Database, processes: Processes, tmp_path: Path
) -> None:
    empty = f"{database.url.rpartition('/')[0]}/postgres"
    consumer = start(processes, tmp_path, env={"BELLWIRE_DATABASE_URL": empty})
    assert consumer.wait_exit(within=30) == 4
    assert "bellwire migrate" in consumer.output
    assert "consumer stopped" not in consumer.output


@pytest.mark.parametrize("moment", ["start", "end"])
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_lifespan_that_raises_is_one_line(
    database: Database, processes: Processes, tmp_path: Path, moment: str, *, debug: bool
) -> None:
    apply_policy(database, app_named("shop"))
    level = ["--log-level", "debug"] if debug else []
    begin, end = (RAISES, "pass") if moment == "start" else ("pass", RAISES)
    consumer = start(processes, tmp_path, *level, begin=begin, end=end)
    if moment == "end":
        consumer.wait_for_output("consumer started")
        consumer.terminate()
    assert consumer.wait_exit(within=30) == 1
    (line,) = [line for line in consumer.output.splitlines() if "lifespan failed" in line]
    assert f'"at": "{moment}"' in line
    assert "RuntimeError: no route to postgresql://me:***@there/shop (begin_shop.py:" in line
    assert "hidden" not in consumer.output
    assert ("Traceback" in consumer.output) is debug


async def test_a_lifespan_that_gives_no_context_manager_is_refused(database: Database) -> None:
    app: App[Any] = App("shop", lifespan=lambda: 3)  # type: ignore[arg-type, return-value]
    app.include(app_named("part"))
    with pytest.raises(ConfigError, match="gave a int, no context manager"):
        async with consumer_on(database, app):
            pass


async def test_a_declared_failure_keeps_its_text_and_logs_its_place(database: Database, conn: Conn) -> None:
    app: App[Any] = App("shop")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt[None]) -> None:
        raise RetryableError("mail_down")

    with structlog.testing.capture_logs() as logs:
        async with consumer_on(database, app, log_failures=True) as consumer:
            (job_id,) = submit_jobs(conn, Work())
            admit(conn)
            await consumer.run_once()
    assert [past.message for past in history(conn, job_id)] == ["mail_down"]
    (line,) = [line for line in logs if line["event"] == "attempt failed"]
    assert line["place"].startswith("test_consumer_start.py:")


@pytest.mark.parametrize("said", [False, True])
async def test_a_failed_attempt_tells_its_place(database: Database, conn: Conn, *, said: bool) -> None:
    with structlog.testing.capture_logs() as logs:
        async with consumer_on(database, app_named("shop"), log_failures=said) as consumer:
            (job_id,) = submit_jobs(conn, Work())
            admit(conn)
            await consumer.run_once()
    (past,) = history(conn, job_id)
    assert past.message is not None
    assert past.message.startswith("ValueError: text (test_consumer_start.py:")
    assert past.message.endswith(" in work)")
    told = [line for line in logs if line["event"] == "attempt failed"]
    assert [(line["log_level"], line["code"], line["error"]) for line in told] == (
        [("warning", "value_error", past.message)] if said else []
    )


def test_a_stop_says_for_how_many_jobs_it_waits(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path
) -> None:
    apply_policy(database, app_named("shop"))
    submit_jobs(conn, Work())
    admit(conn)
    consumer = start(processes, tmp_path)
    consumer.wait_for_output("begun")
    consumer.interrupt()
    line = consumer.wait_for_output(".*waiting for running jobs.*")[0]
    assert '"jobs": 1' in line
    assert "a second signal leaves at once" in line
    # It does what the line says: nothing is handed back.
    consumer.interrupt()
    assert consumer.wait_exit(within=5) == 128 + signal.SIGINT
    assert states(conn) == {"running": 1}
