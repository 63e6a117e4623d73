"""Every way an attempt can end, from the handler's word to the row: state, tally, code and history."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from bellwire_consumer import App, AsyncAttempt, Attempt, Retry
from bellwire_outbox import FailedJob, JobConfig
from bellwire_schema.errors import JobCancelled, RetryableError, Snooze, TerminalError, ThrottledError
from bellwire_testkit.databases import Database
from tests.integration.consumer_stage import (
    SECOND,
    Work,
    admit,
    consumer_on,
    history,
    job,
    running,
    states,
    submit_jobs,
    until,
)

Conn = psycopg.Connection[Any]


def app_that(do: Callable[[], Any], **options: Any) -> App:
    app = App("endings")

    @app.handler(Work, **options)
    async def work(job: Work, attempt: AsyncAttempt) -> Any:
        return do()

    return app


def raising(error: BaseException) -> Callable[[], Any]:
    def do() -> None:
        raise error

    return do


async def test_returning_succeeds_and_keeps_the_result(database: Database, conn: Conn) -> None:
    app = app_that(lambda: {"pages": 3, "who": "Ŷ"})
    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work(n=1))
        admit(conn)
        (ended,) = await consumer.run_once()
    assert (ended.job_id, ended.status, ended.state) == (job_id, "settled", "succeeded")
    row = job(conn, job_id)
    assert (row.state, row.result, row.attempts_used) == ("succeeded", {"pages": 3, "who": "Ŷ"}, 1)
    assert [past.outcome for past in history(conn, job_id)] == ["succeeded"]


async def test_a_plain_function_runs_in_a_thread(database: Database, conn: Conn) -> None:
    app = App("threads")
    loop_thread = threading.get_ident()
    seen: list[int] = []

    @app.handler(Work)
    def work(job: Work, attempt: Attempt) -> int:
        seen.append(threading.get_ident())
        return job.n + 1

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work(n=41))
        admit(conn)
        await consumer.run_once()
    assert job(conn, job_id).result == 42
    assert seen != [loop_thread]


@pytest.mark.parametrize(
    ("error", "state", "reason", "error_class", "code", "used"),
    [
        (RetryableError("mail_down"), "scheduled", "retry", "retryable", "mail_down", 1),
        (
            ThrottledError("mail_429", retry_after=SECOND),
            "scheduled",
            "throttled",
            "throttled",
            "mail_429",
            0,
        ),
        (Snooze(SECOND, code="ledger_open"), "scheduled", "snoozed", "snoozed", "ledger_open", 0),
        (TerminalError("empty"), "failed", "terminal", "terminal", "empty", 1),
        (ZeroDivisionError("x"), "scheduled", "retry", "unknown", "zero_division_error", 1),
        (SystemExit(3), "scheduled", "retry", "unknown", "system_exit", 1),
        (StopIteration(), "scheduled", "retry", "unknown", "runtime_error", 1),
        (asyncio.CancelledError(), "scheduled", "retry", "unknown", "cancelled_error", 1),
        (JobCancelled(), "scheduled", "retry", "unknown", "job_cancelled", 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_each_error_takes_its_own_path(
    database: Database,
    conn: Conn,
    error: BaseException,
    state: str,
    reason: str,
    error_class: str,
    code: str,
    used: int,
) -> None:
    async with consumer_on(database, app_that(raising(error))) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    row = job(conn, job_id)
    (past,) = history(conn, job_id)
    assert (row.state, row.attempts_used, row.last_code) == (state, used, code)
    assert row.reason == reason
    assert (past.error_class, past.code) == (error_class, code)


async def test_the_most_specific_mapping_wins(database: Database, conn: Conn) -> None:
    class Down(Exception):
        pass

    class Busy(Down):
        pass

    app = app_that(
        raising(Busy("slow down")),
        errors={Down: TerminalError("down"), Busy: lambda e: ThrottledError("busy", retry_after=SECOND)},
    )
    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    assert job(conn, job_id).last_code == "busy"
    assert "Busy: slow down" in (history(conn, job_id)[0].message or "")


async def test_a_mapping_that_raises_leaves_an_unknown_error(database: Database, conn: Conn) -> None:
    def broken(_: Any) -> Any:
        raise LookupError("no such provider")

    async with consumer_on(
        database, app_that(raising(ValueError("first")), errors={ValueError: broken})
    ) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    (past,) = history(conn, job_id)
    assert (past.error_class, past.code) == ("unknown", "value_error")
    assert "first" in (past.message or "")
    assert "no such provider" in (past.message or "")


class Awkward(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even my text fails")


def circular() -> Exception:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


@pytest.mark.parametrize(
    "error",
    [
        ValueError("nul \x00 and half \ud800 a pair"),
        ValueError("x" * 10_000_000),
        Awkward(),
        circular(),
        ValueError("postgresql://me:secret@host/db is down"),
    ],
    ids=["unstorable", "huge", "raising", "circular", "password"],
)
async def test_any_error_text_can_be_kept(database: Database, conn: Conn, error: Exception) -> None:
    async with consumer_on(database, app_that(raising(error))) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    message = history(conn, job_id)[0].message or ""
    assert message.startswith(type(error).__name__)
    assert len(message.encode()) <= 2048
    assert "secret" not in message


@pytest.mark.parametrize(
    "result",
    [float("nan"), "nul \x00", "\ud800", {"k\x00": 1}, {1: 2}, {"deep": [object()]}, "x" * 70_000, 10**5000],
    ids=["nan", "nul", "surrogate", "key", "number key", "object", "large", "digits"],
)
async def test_a_result_that_is_no_json_fails_with_its_own_code(
    database: Database, conn: Conn, result: Any
) -> None:
    app = app_that(lambda: result)
    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
    row = job(conn, job_id)
    assert (row.state, row.last_code) == ("failed", "result_invalid")


async def test_a_bad_row_does_not_harm_its_batch(
    database: Database, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("batch")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> dict[str, int]:
        return {"n": job.n}

    # What the process did not see through, the server refuses: the check in the process is taken away here.
    monkeypatch.setattr(
        "bellwire_consumer.runner.encode",
        lambda _, value: '"\\u0000"' if value["n"] == 17 else str(value["n"]),
    )
    async with consumer_on(database, app) as consumer:
        ids = submit_jobs(conn, *[Work(n=n) for n in range(50)])
        admit(conn)
        await consumer.run_once()
    assert states(conn) == {"succeeded": 49, "failed": 1}
    assert job(conn, ids[17]).last_code == "result_invalid"


async def test_an_invalid_payload_fails_and_names_the_field(database: Database, conn: Conn) -> None:
    async with consumer_on(database, app_that(lambda: None)) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        conn.execute('UPDATE bellwire.job SET payload = \'{"n": "many"}\' WHERE id = %s', (job_id,))
        admit(conn)
        await consumer.run_once()
    row = job(conn, job_id)
    assert (row.state, row.last_code) == ("failed", "payload_invalid")
    assert "n" in (row.last_message or "")
    assert "many" not in (row.last_message or "")


async def test_attempts_run_out(database: Database, conn: Conn) -> None:
    class WorkFailed(FailedJob):
        job_config = JobConfig(kind="work_failed", version=1, key=None)

    retry = Retry(max_attempts=2, base=timedelta(milliseconds=1), cap=timedelta(milliseconds=1))
    app = app_that(raising(RetryableError("down")), retry=retry, on_failed=WorkFailed)
    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        for _ in range(2):
            await until(lambda: _promoted(conn), "the retry to be due")
            admit(conn)
            await consumer.run_once()
    row = job(conn, job_id)
    assert (row.state, row.reason, row.attempts_used) == ("failed", "exhausted", 2)
    assert [past.outcome for past in history(conn, job_id)] == ["retry", "failed"]
    follow_up = conn.execute(
        "SELECT payload ->> 'job_id', payload ->> 'code', state FROM bellwire.job WHERE kind = 'work_failed'"
    ).fetchall()
    assert follow_up == [(str(job_id), "down", "ready")]


def _promoted(conn: Conn) -> bool:
    conn.execute("SELECT * FROM bellwire.promote(10)")
    return (
        conn.execute("SELECT 1 FROM bellwire.job WHERE kind = 'work' AND state = 'ready'").fetchone()
        is not None
    )


async def test_a_timeout_cancels_a_coroutine(database: Database, conn: Conn) -> None:
    app = App("slow")
    seen: list[str] = []

    @app.handler(Work, timeout=timedelta(milliseconds=200))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        began = time.monotonic()
        await consumer.run_once()
        took = time.monotonic() - began
    assert seen == ["cancelled"]
    assert took < 5
    (past,) = history(conn, job_id)
    assert (past.outcome, past.error_class, past.code) == ("retry", "timed_out", "timed_out")


async def test_stuck_threads_do_not_cost_slots(database: Database, conn: Conn) -> None:
    app = App("stuck")
    release = threading.Event()

    @app.handler(Work, timeout=timedelta(seconds=1), retry=Retry(max_attempts=1))
    def work(job: Work, attempt: Attempt) -> None:
        if job.n == 0:
            release.wait(30)

    try:
        async with running(database, app, slots=4) as consumer:
            ids = submit_jobs(conn, *[Work(n=0) for _ in range(8)], *[Work(n=1) for _ in range(8)])
            admit(conn)
            await until(lambda: states(conn) == {"failed": 8, "succeeded": 8}, "all to end")
            assert consumer.slots.free == 4
        assert {job(conn, i).last_code for i in ids[:8]} == {"timed_out"}
    finally:
        release.set()


async def test_no_progress_is_stalled_and_progress_is_not(database: Database, conn: Conn) -> None:
    app = App("progress")

    @app.handler(Work, progress_timeout=timedelta(milliseconds=600))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        for step in range(1, 6):
            await asyncio.sleep(0.3)
            attempt.progress(step if job.n else 1, total=5, note=f"step {step}")

    async with consumer_on(database, app) as consumer:
        moving, standing = submit_jobs(conn, Work(n=1), Work(n=0))
        admit(conn)
        await consumer.run_once()
    assert job(conn, moving).state == "succeeded"
    assert [(past.outcome, past.code) for past in history(conn, standing)] == [("retry", "stalled")]


async def test_a_handler_that_ignores_its_cancellation_loses_its_slot(
    database: Database, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellwire_consumer.watch.PATIENCE_S", 0.2)
    app = App("stubborn")
    done = asyncio.Event()

    @app.handler(Work, timeout=timedelta(milliseconds=100))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:
                continue

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        await consumer.run_once()
        assert consumer.slots.free == consumer.slots.total
        done.set()
    assert [(past.outcome, past.code) for past in history(conn, job_id)] == [("retry", "timed_out")]


async def test_a_deadline_ends_the_time_budget(database: Database, conn: Conn) -> None:
    app = App("deadline")
    left: list[timedelta | None] = []

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        left.append(attempt.time_left())
        await asyncio.sleep(60)

    async with consumer_on(database, app) as consumer:
        now = conn.execute("SELECT bellwire.now()").fetchone()
        assert now is not None
        (job_id,) = submit_jobs(conn, Work(), deadline=now[0] + timedelta(seconds=1))
        admit(conn)
        await consumer.run_once()
    assert left[0] is not None
    assert left[0] <= timedelta(seconds=1)
    row = job(conn, job_id)
    assert (row.state, row.reason) == ("failed", "deadline_exceeded")


async def test_a_cancel_request_reaches_the_handler(database: Database, conn: Conn) -> None:
    app = App("cancel")
    started = asyncio.Event()

    @app.handler(Work, lease=timedelta(seconds=1))
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        started.set()
        while True:
            attempt.raise_if_cancelled()
            await asyncio.sleep(0.01)

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        once = asyncio.ensure_future(consumer.run_once())
        await started.wait()
        conn.execute("SELECT * FROM bellwire.cancel(ARRAY[%s]::uuid[], 'user:7', 'closed')", (job_id,))
        await asyncio.wait_for(once, 10)
    assert job(conn, job_id).state == "cancelled"
    (past,) = history(conn, job_id)
    assert past.outcome == "stopped"
    assert "user:7" in (past.message or "")


async def test_an_interruptible_handler_is_cancelled(database: Database, conn: Conn) -> None:
    app = App("interrupt")
    started = asyncio.Event()

    @app.handler(Work, lease=timedelta(seconds=1), interruptible=True)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        started.set()
        await asyncio.sleep(60)

    async with consumer_on(database, app) as consumer:
        (job_id,) = submit_jobs(conn, Work())
        admit(conn)
        once = asyncio.ensure_future(consumer.run_once())
        await started.wait()
        conn.execute("SELECT * FROM bellwire.cancel(ARRAY[%s]::uuid[], 'user:7', 'closed')", (job_id,))
        await asyncio.wait_for(once, 10)
    assert job(conn, job_id).state == "cancelled"
    assert history(conn, job_id)[0].outcome == "stopped"
