"""A loop's failure stays its own, weather is told from bugs, and a stop has an end."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

import psycopg
import pytest
import structlog
from psycopg import errors as pg

from bellwire_runtime.database import is_refusal, is_transient
from bellwire_runtime.exits import DatabaseUnavailable, Exit, exit_code
from bellwire_runtime.lifecycle import LoopRunner, supervise
from bellwire_runtime.signals import StopSignals
from bellwire_schema.errors import ConfigError, MigrationBehind, NotInstalled
from bellwire_testkit.waiting import wait_until_async


class Stub:
    """A loop that does what it is told."""

    def __init__(self, step: Callable[[int], Awaitable[float | None]], name: str = "stub") -> None:
        self.name = name
        self.passes = 0
        self._step = step

    async def run_once(self) -> float | None:
        self.passes += 1
        return await self._step(self.passes)


async def until(condition: Callable[[], object]) -> None:
    await wait_until_async(condition, deadline=5, describe="the loops to get there")


async def test_a_failing_loop_takes_no_other_down_and_goes_on() -> None:
    async def failing(number: int) -> float:
        if number % 2:
            raise TypeError("a bug")
        return 0.0

    async def healthy(_number: int) -> float:
        return 0.01

    bad, good = Stub(failing, "bad"), Stub(healthy, "good")
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        task = asyncio.ensure_future(supervise([LoopRunner(bad), LoopRunner(good)], stop))
        await until(lambda: bad.passes > 6 and good.passes > 6)
        stop.set()
        await task
    assert [line["event"] for line in lines] == ["loop failed"], "once a minute, not once a failure"
    assert lines[0]["exc_info"].args == ("a bug",)


async def test_a_bug_that_does_not_stop_is_red_in_live_and_weather_is_not() -> None:
    errors: list[Exception] = [TypeError("a bug")]

    async def failing(_number: int) -> float:
        raise errors[0]

    runner = LoopRunner(Stub(failing), red_after=0.05, late_after=0.05, backoff_cap=0.02)
    stop = asyncio.Event()
    task = asyncio.ensure_future(runner.run(stop))
    await until(lambda: runner.broken)
    assert "TypeError: a bug" in str(runner.broken)
    errors[0] = psycopg.OperationalError("the database is away")
    await until(lambda: not runner.broken)
    assert runner.late, "not ready all the same"
    stop.set()
    await task


async def test_a_success_clears_everything() -> None:
    async def once_bad(number: int) -> float:
        if number < 3:
            raise TypeError("a bug")
        return 10.0

    runner = LoopRunner(Stub(once_bad), red_after=0.0, late_after=5.0, backoff_cap=0.02)
    stop = asyncio.Event()
    task = asyncio.ensure_future(runner.run(stop))
    await until(lambda: runner.broken)
    await until(lambda: not runner.broken)
    assert runner.late is None
    assert runner.age < 5
    stop.set()
    await task


async def test_a_nudge_ends_a_pause_and_one_during_a_pass_is_not_lost() -> None:
    release = asyncio.Event()

    async def slow_first(number: int) -> float:
        if number == 1:
            await release.wait()
        return 3600.0

    loop = Stub(slow_first)
    runner = LoopRunner(loop)
    stop = asyncio.Event()
    task = asyncio.ensure_future(runner.run(stop))
    await until(lambda: loop.passes == 1)
    runner.nudge()
    release.set()
    await until(lambda: loop.passes == 2)
    runner.nudge()
    await until(lambda: loop.passes == 3)
    stop.set()
    await task


async def test_a_pass_that_hangs_is_cut_at_its_deadline() -> None:
    async def hanging(number: int) -> float:
        if number == 1:
            await asyncio.Event().wait()
        return 3600.0

    loop = Stub(hanging)
    runner = LoopRunner(loop, deadline=0.05)
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        task = asyncio.ensure_future(runner.run(stop))
        await until(lambda: loop.passes == 2)
        stop.set()
        await task
    assert "did not end within" in str(lines[0]["exc_info"])


async def test_a_stop_lets_a_pass_end_and_cuts_one_that_does_not() -> None:
    ended: list[str] = []

    async def brief(_number: int) -> float:
        await asyncio.sleep(0.05)
        ended.append("brief")
        return 3600.0

    async def endless(_number: int) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")
        return 0.0

    loops = [Stub(brief), Stub(endless)]
    stop = asyncio.Event()
    task = asyncio.ensure_future(supervise([LoopRunner(loop) for loop in loops], stop, patience=0.3))
    await until(lambda: all(loop.passes for loop in loops))
    stop.set()
    await asyncio.wait_for(task, 2)
    assert ended == ["brief", "endless"]


async def test_the_first_signal_asks_and_the_second_leaves() -> None:
    stop = asyncio.Event()
    left: list[int] = []
    with StopSignals(stop, grace=30, leave=left.append):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 2)
        assert left == []
        signal.raise_signal(signal.SIGTERM)
        assert left == [128 + signal.SIGTERM]


async def test_a_stop_that_hangs_is_ended_by_the_grace(capfd: pytest.CaptureFixture[str]) -> None:
    """Even while the event loop is blocked: the clock runs in a thread."""
    stop = asyncio.Event()
    left: list[int] = []
    with StopSignals(stop, grace=0.1, leave=left.append):
        signal.raise_signal(signal.SIGINT)
        end = time.monotonic() + 5
        while not left and time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251 (the loop is blocked on purpose)
    assert left == [Exit.FAILURE]
    assert "the grace is over" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (psycopg.OperationalError("connection lost"), True),
        (pg.DeadlockDetected(), True),
        (pg.SerializationFailure(), True),
        (pg.AdminShutdown(), True),
        (pg.QueryCanceled(), True),
        (pg.ReadOnlySqlTransaction(), True),
        (pg.TooManyConnections(), True),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (pg.UndefinedFunction(), False),
        (pg.InsufficientPrivilege(), False),
        (pg.CheckViolation(), False),
        (pg.InvalidTextRepresentation(), False),
        (TypeError(), False),
    ],
)
def test_weather_is_told_from_bugs(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('connection failed: FATAL:  password authentication failed for user "x"', True),
        ('connection failed: FATAL:  database "x" does not exist', True),
        ('connection failed: FATAL:  role "x" does not exist', True),
        ("connection failed: Connection refused", False),
        ("connection failed: FATAL:  the database system is starting up", False),
        ("connection failed: FATAL:  sorry, too many clients already", False),
    ],
)
def test_a_refused_login_is_told_from_an_outage(text: str, refused: bool) -> None:
    assert is_refusal(psycopg.OperationalError(text)) is refused


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (DatabaseUnavailable("x"), 3),
        (NotInstalled("x"), 4),
        (MigrationBehind(None, "1"), 4),
        (TypeError("x"), 1),
    ],
)
def test_exit_codes_say_who_must_act(error: Exception, code: int) -> None:
    assert exit_code(error) == code
