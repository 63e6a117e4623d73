"""What stands around a handler: lifespan, hooks, upgrades, the kinds it runs, policy, health and metrics."""

import asyncio
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog

from bellwire_consumer import App, AsyncAttempt, Attempt
from bellwire_consumer.attempt import AnyAttempt
from bellwire_consumer.daemon import Consumer, run
from bellwire_outbox import Job, JobConfig, upgrade
from bellwire_schema.errors import ConfigError, TerminalError
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.server_binaries import free_port
from tests.integration.consumer_stage import (
    Work,
    admit,
    apply_policy,
    consumer_on,
    history,
    job,
    running,
    settings,
    states,
    submit_jobs,
    until,
)

Conn = psycopg.Connection[Any]


@dataclass
class Deps:
    words: list[str]


async def test_lifespan_is_entered_once_and_left_after_the_last_attempt(
    database: Database, conn: Conn
) -> None:
    deps = Deps([])

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Deps]:
        deps.words.append("open")
        yield deps
        deps.words.append("closed")

    app = App("deps", lifespan=lifespan)

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt[Deps]) -> None:
        attempt.deps.words.append(job.text)

    async with consumer_on(database, app) as consumer:
        submit_jobs(conn, Work(text="one"), Work(text="two"))
        admit(conn)
        await consumer.run_once()
    assert sorted(deps.words) == ["closed", "one", "open", "two"]
    assert (deps.words[0], deps.words[-1]) == ("open", "closed")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_hooks_surround_the_handler_and_cannot_swallow_its_error(
    database: Database, conn: Conn, *, plain: bool
) -> None:
    app = App("hooks")
    seen: list[str] = []

    @app.around
    @contextmanager
    def outer(attempt: AnyAttempt) -> Iterator[None]:
        seen.append(f"outer {attempt.kind} {attempt.number}")
        with suppress(TerminalError):
            yield
        seen.append("outer out")

    @app.around
    @asynccontextmanager
    async def inner(attempt: AnyAttempt) -> AsyncIterator[None]:
        seen.append("inner")
        try:
            yield
        except TerminalError:
            seen.append("inner saw it")
            raise

    if plain:

        @app.handler(Work)
        def in_thread(job: Work, attempt: Attempt) -> None:
            raise TerminalError("bad")

    else:

        @app.handler(Work)
        async def on_loop(job: Work, attempt: AsyncAttempt) -> None:
            raise TerminalError("bad")

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    assert seen == ["outer work 1", "inner", "inner saw it", "outer out"]
    assert (job(conn, job_id).state, job(conn, job_id).last_code) == ("failed", "bad")


async def test_a_hook_that_fails_is_the_attempts_error(database: Database, conn: Conn) -> None:
    app = App("hooks")

    @app.around
    @contextmanager
    def broken(attempt: AnyAttempt) -> Iterator[None]:
        raise LookupError("no tracer")
        yield

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        raise AssertionError("never reached")

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    assert job(conn, job_id).last_code == "lookup_error"


class Report(Job):
    job_config = JobConfig(kind="report", version=3, key=None)
    total: int
    currency: str


@upgrade(Report, from_version=1)
def _v1(old: dict[str, Any]) -> dict[str, Any]:
    return {"total": old["sum"]}


@upgrade(Report, from_version=2)
def _v2(old: dict[str, Any]) -> dict[str, Any]:
    if old["total"] < 0:
        raise LookupError("who owes whom?")
    return {**old, "currency": "CHF"}


async def test_old_payloads_run_only_through_their_upgrades(database: Database, conn: Conn) -> None:
    app = App("upgrades")
    seen: list[Report] = []

    @app.handler(Report)
    async def report(job: Report, attempt: AsyncAttempt) -> None:
        seen.append(job)

    def submit(version: int, payload: str) -> Any:
        row = conn.execute(
            "SELECT job_id FROM bellwire.submit(kind => 'report', version => %s, payload => %s::jsonb)",
            (version, payload),
        ).fetchone()
        assert row is not None
        return row[0]

    submit(1, '{"sum": 1}')
    submit(2, '{"total": 2}')
    submit(3, '{"total": 3, "currency": "EUR"}')
    negative = submit(2, '{"total": -2}')
    later = submit(4, '{"total": 4}')
    admit(conn)
    async with consumer_on(database, app) as consumer:
        await consumer.run_once()
    assert sorted((one.total, one.currency) for one in seen) == [(1, "CHF"), (2, "CHF"), (3, "EUR")]
    assert (job(conn, negative).state, job(conn, negative).last_code) == ("failed", "payload_invalid")
    assert job(conn, later).state == "ready"  # of a version this code does not know: never taken


async def test_only_the_named_kinds_are_run(database: Database, conn: Conn) -> None:
    app = App("kinds")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None: ...

    @app.handler(Report)
    async def report(job: Report, attempt: AsyncAttempt) -> None: ...

    async with consumer_on(database, app, kinds=["work"]) as consumer:
        ids = submit_jobs(conn, Work(), Report(total=1, currency="EUR"))
        admit(conn)
        await consumer.run_once()
        kinds = conn.execute("SELECT kinds, versions FROM bellwire.consumer").fetchone()
    assert [job(conn, job_id).state for job_id in ids] == ["succeeded", "ready"]
    assert kinds == (["work"], [1])
    with pytest.raises(ConfigError, match="has no handler of nothing"):
        Consumer(app, settings(database), kinds=["nothing"])


async def test_kinds_that_nobody_applied_are_said_and_run_by_the_defaults(
    database: Database, conn: Conn
) -> None:
    app = App("unapplied")
    facts: list[Any] = []

    @app.handler(Work, timeout=timedelta(seconds=7))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        facts.append(attempt.time_left())

    with structlog.testing.capture_logs() as logs:
        async with consumer_on(database, app, policy=False) as consumer:
            (job_id,) = submit_jobs(conn, Work())
            admit(conn)
            await consumer.run_once()
    assert any("without applied policy" in line["event"] and line["kinds"] == "work" for line in logs)
    assert job(conn, job_id).state == "succeeded"
    assert facts == [None]


async def test_an_attempt_knows_its_job(database: Database, conn: Conn) -> None:
    class Keyed(Job):
        job_config = JobConfig(kind="keyed", version=1, key=("n",), unique_until="pruned", tenant="who")
        n: int
        who: str

    app = App("facts")
    facts: dict[str, Any] = {}

    @app.handler(Keyed)
    async def keyed(job: Keyed, attempt: AsyncAttempt) -> None:
        facts.update(
            job_id=attempt.job_id,
            number=attempt.number,
            kind=attempt.kind,
            tenant=attempt.tenant,
            key=attempt.key,
        )
        assert attempt.started_at.utcoffset() is not None
        assert attempt.scheduled_for is None
        assert attempt.cancel_request is None
        with structlog.testing.capture_logs() as logs:
            attempt.logger.info("here")
        facts["logged"] = logs[0]["job_id"]

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Keyed(n=7, who="ana"))
        admit(conn)
        await consumer.run_once()
    assert job(conn, job_id).state == "succeeded", history(conn, job_id)
    assert facts == {
        "job_id": job_id, "number": 1, "kind": "keyed", "tenant": "ana", "key": "7", "logged": str(job_id),
    }  # fmt: skip


async def test_progress_travels_with_the_heartbeat(database: Database, conn: Conn) -> None:
    app = App("progress")
    go_on = asyncio.Event()

    @app.handler(Work, lease=timedelta(seconds=1))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        attempt.progress(3, total=9, note="pages\x00")
        await go_on.wait()

    async with consumer_on(database, app) as consumer:
        submit_jobs(conn, Work())
        admit(conn)
        once = asyncio.ensure_future(consumer.run_once())
        query = "SELECT progress, progress_total, progress_note FROM bellwire.job"
        await until(
            lambda: conn.execute(query).fetchone() == (3, 9, "pages\N{REPLACEMENT CHARACTER}"), "progress"
        )
        go_on.set()
        await once


async def test_an_idle_consumer_hears_an_admission_at_once(database: Database, conn: Conn) -> None:
    app = App("idle")
    started: list[float] = []

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        started.append(time.monotonic())

    async with running(database, app, consumer_poll_floor="60s") as consumer:
        await asyncio.sleep(0.2)
        for _ in range(3):
            submit_jobs(conn, Work())
            admit(conn)
            conn.execute("SELECT pg_notify(%s, '')", (f"bellwire_{consumer.identity.id.hex}",))
            told = time.monotonic()
            count = len(started)
            await until(lambda count=count: len(started) > count, "the job to start")
            assert started[-1] - told < 1.0


async def test_without_listen_the_poll_floor_finds_it(database: Database, conn: Conn) -> None:
    app = App("polling")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None: ...

    async with running(database, app, listen_url="off", consumer_poll_floor="100ms"):
        submit_jobs(conn, Work())
        admit(conn)
        await until(lambda: states(conn) == {"succeeded": 1}, "the job to be found by polling")


async def test_a_frozen_database_is_left_and_found_again(
    database: Database, conn: Conn, proxy: Proxy
) -> None:
    app = App("frozen")

    @app.handler(Work, lease=timedelta(seconds=3))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        await asyncio.sleep(0.01)

    apply_policy(database, app)
    url = database.url_through(proxy.port)
    options: dict[str, Any] = {
        "database_url": url,
        "call_timeout": "1s",
        "connect_timeout": "1s",
        "slots": 10,
    }
    async with running(database, app, policy=False, **options):
        submit_jobs(conn, *[Work(n=n) for n in range(100)])
        admit(conn)
        for seen in (10, 25, 40):
            await until(lambda seen=seen: states(conn).get("succeeded", 0) > seen, "load")
            proxy.freeze()
            await asyncio.sleep(1.5)
            proxy.thaw()
            admit(conn)

        def all_done() -> bool:
            admit(conn)
            return states(conn) == {"succeeded": 100}

        await until(all_done, "all to succeed after the thaw", deadline=30)


def test_health_and_metrics_of_the_process(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path
) -> None:
    from tests.integration.consumer_app import APP, LINES, Nap
    from tests.integration.consumer_app import app as naps

    apply_policy(database, naps)
    port = free_port()
    root = Path(__file__).parents[2]
    env = {LINES: str(tmp_path / "lines"), "PYTHONPATH": str(root), "BELLWIRE_HEALTH_PORT": str(port)}
    consumer = processes.start("bellwire", "consumer", "--app", APP, env=env, cwd=root)
    submit_jobs(conn, Nap())
    admit(conn)
    consumer.wait_for(lambda: states(conn) == {"succeeded": 1}, describe="the job to succeed")

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    assert '"status": "ok"' in get("/ready")
    metrics = get("/metrics")
    assert 'bellwire_job_claimed_total{kind="nap",source="poll"} 1.0' in metrics
    assert 'bellwire_job_settled_total{code="",kind="nap",outcome="succeeded"} 1.0' in metrics
    assert 'bellwire_job_start_delay_seconds_count{kind="nap"} 1.0' in metrics


async def test_stuck_code_does_not_keep_the_process(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path
) -> None:
    module = tmp_path / "stuck_app.py"
    module.write_text(
        "import asyncio, time\n"
        "from bellwire.consumer import App, AsyncAttempt\n"
        "from tests.integration.consumer_stage import Work\n"
        "app = App('stuck')\n"
        "@app.handler(Work)\n"
        "async def work(job: Work, attempt: AsyncAttempt) -> None:\n"
        "    await asyncio.to_thread(time.sleep, 60)\n"
    )
    root = Path(__file__).parents[2]
    env = {"PYTHONPATH": f"{root}:{tmp_path}", "BELLWIRE_CONSUMER_DRAIN": "500ms"}
    consumer = processes.start("bellwire", "consumer", "--app", "stuck_app:app", env=env, cwd=tmp_path)
    (job_id,) = submit_jobs(conn, Work())
    admit(conn)
    await until(lambda: job(conn, job_id).state == "running", "the job to run")
    consumer.terminate()
    assert await asyncio.to_thread(consumer.wait_exit, within=8) == 0
    assert job(conn, job_id).state == "ready"


async def test_run_ends_with_its_stop(database: Database, conn: Conn) -> None:
    app = App("stop")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None: ...

    apply_policy(database, app)
    stop = asyncio.Event()
    serving = asyncio.ensure_future(run(app, settings(database), stop=stop))
    query = "SELECT count(*) FROM bellwire.consumer"
    await until(lambda: conn.execute(query).fetchone() == (1,), "the consumer to register")
    submit_jobs(conn, Work())
    admit(conn)
    await until(lambda: states(conn) == {"succeeded": 1}, "the job to succeed")
    stop.set()
    assert await asyncio.wait_for(serving, 10) == 0
    assert conn.execute(query).fetchone() == (0,)
    assert not [thread for thread in threading.enumerate() if thread.name == "bellwire-heartbeat"]
