"""A connection is closed by its owner alone, and no wait for the broker is without an end."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

from bellwire_runtime.broker import wire


async def test_a_connection_given_up_is_closed_by_no_collector() -> None:
    """Garbage is collected in any thread; the library would begin a close there, which nobody awaits."""
    held = [wire._Connection(URL("amqp://127.0.0.1:1/"))]

    def collect() -> None:
        held.clear()
        gc.collect()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = threading.Thread(target=collect)
        thread.start()
        thread.join()
    assert [str(one.message) for one in told if "Connection" in str(one.message)] == []


async def test_an_answer_and_an_error_pass() -> None:
    assert await wire.bounded(answering(7), within=1, what="ask") == 7
    with pytest.raises(ValueError, match="no"):
        await wire.bounded(failing(ValueError("no")), within=1, what="ask")


async def test_what_takes_too_long_is_left_behind() -> None:
    """Even one that does not let itself be cancelled."""
    ended = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await ended.wait()

    began = asyncio.get_running_loop().time()
    with pytest.raises(wire.BrokerLost, match=r"declare: no answer within 0\.05 s"):
        await wire.bounded(stubborn(), within=0.05, what="declare")
    assert asyncio.get_running_loop().time() - began < 1
    ended.set()


async def test_a_cancellation_that_is_not_ours_is_a_broken_connection() -> None:
    with pytest.raises(wire.BrokerLost, match="the connection broke"):
        await wire.bounded(failing(asyncio.CancelledError()), within=1, what="publish")


async def test_our_own_cancellation_stays_one() -> None:
    cancelled = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    task = asyncio.ensure_future(wire.bounded(waits(), within=60, what="wait"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(cancelled.wait(), 1)


@pytest.mark.parametrize(
    "error",
    [
        OSError("cannot reach amqp://user:s3ntinel@host:5672/vhost"),
        AMQPConnectionError("amqps://user:s3ntinel@host/"),
        wire.BrokerLost("connect amqp://user:s3ntinel@host"),
        ValueError("x" * 1000),
        RuntimeError("first line\nTraceback: the rest"),
        TimeoutError(),
    ],
)
def test_a_reason_is_one_short_line_without_a_password(error: Exception) -> None:
    reason = wire.reason_of(error)
    assert reason
    assert "s3ntinel" not in reason
    assert "\n" not in reason
    assert len(reason) <= 300


async def answering(value: int) -> int:
    return value


async def failing(error: BaseException) -> None:
    raise error
