"""The fixture `bellwire` as users have it: the public page's words, on real daemons and a real SIGKILL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from bellwire_consumer.app import App
from bellwire_consumer.attempt import AsyncAttempt, Attempt
from bellwire_consumer.options import Limits, Retry
from bellwire_outbox import FailedJob, Job, JobConfig, submit, submit_many, upgrade
from bellwire_schema.errors import (
    ArgumentInvalid,
    ConfigError,
    KeyConflict,
    RetryableError,
    Snooze,
    TerminalError,
)
from bellwire_testkit.databases import Database
from bellwire_testkit.harness import Harness


class Greet(Job):
    job_config = JobConfig(kind="testkit.greet", version=2, key=("name",), unique_until="pruned")
    name: str
    mood: str = "ok"
    note: str | None = None
    """A file to which the handler adds a line, in whichever process it runs."""


@upgrade(Greet, from_version=1)
def _v1(old: dict[str, Any]) -> dict[str, Any]:
    return {"name": old["who"]}


class Echo(Job):
    job_config = JobConfig(kind="testkit.echo", version=1, key=None)
    text: str


class GreetFailed(FailedJob):
    job_config = JobConfig(kind="testkit.greet_failed", version=1, key=None)


app = App[None]("testkit")


def note(path: str, number: int) -> None:
    with Path(path).open("a") as lines:
        lines.write(f"{number}\n")


@app.handler(Greet, retry=Retry(max_attempts=3, jitter=False), on_failed=GreetFailed)
async def greet(job: Greet, attempt: AsyncAttempt[None]) -> dict[str, int] | None:
    if job.note is not None:
        note(job.note, attempt.number)
    match job.mood:
        case "flaky" if attempt.number == 1:
            raise RetryableError("not_yet")
        case "broken":
            raise TerminalError("never")
        case "bug":
            raise ZeroDivisionError
        case "shy" if attempt.number == 1:
            raise Snooze(timedelta(minutes=5), code="shy")
        case "slow":
            await asyncio.sleep(60)
    return {"greeted": attempt.number}


@app.handler(Echo, limits=Limits(running=1))
def echo(job: Echo, attempt: Attempt[None]) -> str:
    return job.text


@app.handler(GreetFailed)
def mourn(job: GreetFailed, attempt: Attempt[None]) -> None:
    assert job.failed_kind == "testkit.greet"


JOB = Greet(name="ana")


@pytest.fixture
def open_conn(database: Database) -> Any:
    """A connection that is not in autocommit: the application's."""
    with psycopg.connect(database.url) as conn:
        yield conn


def test_submitted_sees_what_is_committed(bellwire: Harness, open_conn: psycopg.Connection[Any]) -> None:
    jobs = [Greet(name=f"n{n}") for n in range(5)]
    submit_many(open_conn, jobs)
    submit(open_conn, Echo(text="other kind"))
    assert bellwire.submitted(Greet) == []
    assert bellwire.submitted(Greet, open_conn) == jobs
    open_conn.commit()
    assert bellwire.submitted(Greet) == jobs
    assert bellwire.submitted(Echo) == [Echo(text="other kind")]


def test_submitted_looks_into_an_open_session(bellwire: Harness) -> None:
    engine = create_engine(bellwire.url.replace("postgresql:", "postgresql+psycopg:", 1))
    with Session(engine) as session:
        submit(session, JOB)
        assert bellwire.submitted(Greet, session) == [JOB]
        session.rollback()
    engine.dispose()
    assert bellwire.submitted(Greet) == []


def test_submitted_takes_no_async_session(bellwire: Harness) -> None:
    engine = create_async_engine(bellwire.url.replace("postgresql:", "postgresql+asyncpg:", 1))
    from sqlalchemy.ext.asyncio import AsyncSession

    with pytest.raises(ArgumentInvalid):
        bellwire.submitted(Greet, AsyncSession(engine))  # type: ignore[arg-type]


def test_submitted_upgrades_old_payloads(bellwire: Harness, conn: psycopg.Connection[Any]) -> None:
    conn.execute(
        "SELECT bellwire.submit(kind => 'testkit.greet', version => 1, payload => '{\"who\": \"old\"}')"
    )
    assert bellwire.submitted(Greet) == [Greet(name="old")]


async def test_run_one_attempt(bellwire: Harness) -> None:
    result = await bellwire.run(app, JOB)
    assert (result.outcome, result.attempt, result.state) == ("succeeded", 1, "succeeded")
    assert result.value == {"greeted": 1}
    assert result.kind == "testkit.greet"


async def test_run_leaves_other_jobs_alone(bellwire: Harness, open_conn: psycopg.Connection[Any]) -> None:
    submit_many(open_conn, [Greet(name=f"n{n}") for n in range(30)])
    open_conn.commit()
    assert (await bellwire.run(app, JOB)).outcome == "succeeded"
    states = open_conn.execute("SELECT state, count(*) FROM bellwire.job GROUP BY state ORDER BY state")
    assert states.fetchall() == [("ready", 30), ("succeeded", 1)]


async def test_run_takes_the_job_that_is_there(bellwire: Harness, open_conn: psycopg.Connection[Any]) -> None:
    receipt = submit(open_conn, JOB)
    open_conn.commit()
    assert (await bellwire.run(app, JOB)).job_id == receipt.job_id
    with pytest.raises(RuntimeError, match="succeeded already"):
        await bellwire.run(app, JOB)
    with pytest.raises(KeyConflict):
        await bellwire.run(app, Greet(name="ana", mood="other"))


async def test_a_retry_waits_for_the_clock(bellwire: Harness) -> None:
    job = Greet(name="ana", mood="flaky")
    result = await bellwire.run(app, job)
    assert (result.outcome, result.code, result.state) == ("retry", "not_yet", "scheduled")
    with pytest.raises(RuntimeError, match="advance the clock"):
        await bellwire.run(app, job)
    assert await bellwire.drain(app) == []
    bellwire.advance(timedelta(seconds=31))
    (again,) = await bellwire.drain(app)
    assert (again.outcome, again.attempt, again.code) == ("succeeded", 2, None)


async def test_snooze_uses_no_attempt(bellwire: Harness) -> None:
    assert (await bellwire.run(app, Greet(name="ana", mood="shy"))).outcome == "snoozed"
    bellwire.advance(timedelta(minutes=6))
    assert [r.outcome for r in await bellwire.drain(app)] == ["succeeded"]


async def test_bug_and_follow_up(bellwire: Harness) -> None:
    """A terminal error fails at once and its follow-up runs in the same drain."""
    result = await bellwire.run(app, Greet(name="bo", mood="bug"))
    assert result.outcome == "retry"
    assert result.code is not None
    assert "ZeroDivision" in (result.message or "")
    failed = await bellwire.run(app, Greet(name="ana", mood="broken"))
    assert (failed.outcome, failed.code, failed.state) == ("failed", "never", "failed")
    assert [(r.kind, r.outcome) for r in await bellwire.drain(app)] == [("testkit.greet_failed", "succeeded")]


async def test_drain_runs_all_that_is_due(bellwire: Harness, open_conn: psycopg.Connection[Any]) -> None:
    submit_many(open_conn, [Echo(text=str(n)) for n in range(25)])
    submit(open_conn, JOB, run_in=timedelta(hours=1))
    open_conn.commit()
    results = await bellwire.drain(app)
    assert sorted(int(r.value) for r in results) == list(range(25))
    bellwire.advance(timedelta(hours=1))
    assert [r.kind for r in await bellwire.drain(app)] == ["testkit.greet"]
    assert await bellwire.drain(app) == []


async def test_what_is_held_back_stays(bellwire: Harness, conn: psycopg.Connection[Any]) -> None:
    await bellwire.run(app, Echo(text="policy is applied"))
    conn.execute("UPDATE bellwire.kind SET paused_at = bellwire.now() WHERE name = 'testkit.echo'")
    with pytest.raises(RuntimeError, match="held back"):
        await bellwire.run(app, Echo(text="x"))
    assert await bellwire.drain(app) == []


async def test_a_job_past_its_deadline_fails_without_an_attempt(
    bellwire: Harness, open_conn: psycopg.Connection[Any], clock_now: Any
) -> None:
    submit(open_conn, JOB, deadline=clock_now() + timedelta(minutes=1))
    open_conn.commit()
    bellwire.advance(timedelta(minutes=2))
    result = await bellwire.run(app, JOB)
    assert (result.outcome, result.code, result.attempt) == ("failed", "deadline_exceeded", 0)


@pytest.fixture
def clock_now(conn: psycopg.Connection[Any]) -> Any:
    return lambda: conn.execute("SELECT bellwire.now()").fetchone()[0]  # type: ignore[index]


async def test_too_slow_is_an_error(bellwire: Harness) -> None:
    with pytest.raises(TimeoutError):
        await bellwire.run(app, Greet(name="ana", mood="slow"), deadline=1.0)


@pytest.mark.parametrize(
    ("place", "left", "then", "runs"),
    [
        ("relay.admitted", (0, "ready"), ["succeeded"], "1\n"),
        ("consumer.claimed", (1, "running"), ["succeeded"], "2\n"),
        ("consumer.settling", (1, "running"), ["succeeded"], "1\n2\n"),
        ("consumer.settled", (1, "succeeded"), [], "1\n"),
    ],
)
async def test_killed_at(
    bellwire: Harness, tmp_path: Path, place: str, left: tuple[int, str], then: list[str], runs: str
) -> None:
    lines = tmp_path / "runs"
    died = await bellwire.run(app, Greet(name="ana", note=str(lines)), kill_at=place)
    assert died.outcome == "process_died"
    assert (died.attempt, died.state) == left
    bellwire.advance(timedelta(minutes=15))
    results = await bellwire.drain(app)
    assert [r.outcome for r in results] == then
    assert lines.read_text() == runs


async def test_before_the_lease_is_over_nobody_takes_it(bellwire: Harness) -> None:
    await bellwire.run(app, JOB, kill_at="consumer.claimed")
    assert await bellwire.drain(app) == []
    with pytest.raises(RuntimeError, match="runs under a lease for another"):
        await bellwire.run(app, JOB)


async def test_a_place_that_is_not_reached_fails_the_test(bellwire: Harness) -> None:
    with pytest.raises(AssertionError, match=r"(?s)'transaction.committing' was never reached:.*succeeded"):
        await bellwire.run(app, JOB, kill_at="transaction.committing")


async def test_a_place_that_does_not_exist_is_refused(bellwire: Harness) -> None:
    with pytest.raises(ValueError, match=r"no place called 'consumer.setling'.*consumer.settling"):
        await bellwire.run(app, JOB, kill_at="consumer.setling")


async def test_kill_needs_an_app_that_can_be_imported(bellwire: Harness) -> None:
    hidden = App[None]("hidden")

    @hidden.handler(Echo)
    def run(job: Echo, attempt: Attempt[None]) -> None: ...

    with pytest.raises(ConfigError, match="cannot import app 'hidden'"):
        await bellwire.run(hidden, Echo(text="x"), kill_at="consumer.claimed")


async def test_lifespan_is_entered_and_left(bellwire: Harness) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        seen.append("in")
        yield "deps"
        seen.append("out")

    with_deps = App("with_deps", lifespan=lifespan)

    @with_deps.handler(Echo)
    async def run(job: Echo, attempt: AsyncAttempt[str]) -> str:
        return attempt.deps

    assert (await bellwire.run(with_deps, Echo(text="x"))).value == "deps"
    assert seen == ["in", "out"]


async def test_the_clock_is_put_back(database: Database, conn: psycopg.Connection[Any]) -> None:
    with Harness(database.url) as harness:
        harness.advance(timedelta(days=1))
        assert conn.execute("SELECT bellwire.now() > statement_timestamp()").fetchone() == (True,)
    assert conn.execute("SELECT bellwire.now() = statement_timestamp()").fetchone() == (True,)
