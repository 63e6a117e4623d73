"""What a handler does to its process ends its own attempt, and costs its neighbours nothing."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from bellwire_consumer import App, AsyncAttempt, Attempt, Retry
from bellwire_outbox import Job, JobConfig
from bellwire_schema.errors import Snooze, ThrottledError
from bellwire_testkit.databases import Database
from tests.integration.consumer_stage import Work, admit, history, job, running, states, submit_jobs, until

Conn = psycopg.Connection[Any]
ONCE = Retry(max_attempts=1)


class TextExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class TextInterrupts(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class CauseRaises(Exception):
    @property
    def __cause__(self) -> BaseException | None:
        raise RuntimeError("no cause")

    @__cause__.setter
    def __cause__(self, value: BaseException | None) -> None: ...


class Unready(ThrottledError):
    def __init__(self) -> None:
        """Leaves out what the class itself would have set."""


UNREADABLE = [TextExits, TextInterrupts, CauseRaises, Unready]


class ThreadWork(Job):
    job_config = JobConfig(kind="thread_work", version=1, key=None)
    n: int = 0


async def test_an_error_that_raises_when_it_is_read_ends_its_attempt(database: Database, conn: Conn) -> None:
    app = App("unreadable")

    @app.handler(Work, retry=ONCE)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        raise UNREADABLE[job.n]

    @app.handler(ThreadWork, retry=ONCE)
    def thread_work(job: ThreadWork, attempt: Attempt) -> None:
        raise UNREADABLE[job.n]

    async with running(database, app):
        jobs = [make(n=n) for make in (Work, ThreadWork) for n in range(len(UNREADABLE))]
        ids = submit_jobs(conn, *jobs)
        admit(conn)
        await until(lambda: states(conn) == {"failed": len(ids)}, "every attempt to end")
    assert {past.code for id_ in ids for past in history(conn, id_)} == {
        "text_exits",
        "text_interrupts",
        "unreadable_error",
    }


@pytest.mark.parametrize("kind", [Work, ThreadWork], ids=["async", "thread"])
async def test_a_forked_child_that_comes_back_out_of_its_handler_ends_there(
    database: Database, conn: Conn, kind: type[Any]
) -> None:
    app = App("forks")
    children: list[int] = []

    def fork(number: int) -> None:
        if number == 0:
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)  # a child that lives on must not run this test a second time for long
                return
            children.append(pid)

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        fork(job.n)

    @app.handler(ThreadWork)
    def thread_work(job: ThreadWork, attempt: Attempt) -> None:
        fork(job.n)

    async with running(database, app):
        submit_jobs(conn, kind(n=0))
        admit(conn)
        await until(lambda: states(conn) == {"succeeded": 1}, "the parent's attempt to end")
        _, status = await asyncio.get_running_loop().run_in_executor(None, os.waitpid, children[0], 0)
        assert os.waitstatus_to_exitcode(status) == 70
        # Its connections and its loop are as good as before.
        ids = submit_jobs(conn, *[kind(n=n) for n in range(1, 21)])
        admit(conn)
        await until(lambda: states(conn) == {"succeeded": 21}, "the neighbours to succeed")
    assert {job(conn, id_).attempt for id_ in ids} == {1}


@pytest.mark.parametrize(
    "outcome", [ThrottledError("wait", retry_after=timedelta.max), Snooze(timedelta.max)]
)
async def test_a_wait_without_end_is_cut_to_what_can_be_dated(
    database: Database, conn: Conn, outcome: Exception
) -> None:
    app = App("for-ever")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        raise outcome

    async with running(database, app):
        submit_jobs(conn, Work())
        admit(conn)
        await until(lambda: states(conn) == {"scheduled": 1}, "the attempt to end")
    row = conn.execute("SELECT run_at FROM bellwire.job").fetchone()
    assert row is not None
    assert timedelta(days=3652) < row[0] - datetime.now(UTC) <= timedelta(days=3653)
