"""Who owns a connection tries again for ever, spread out in time, and is nearly silent about it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import LogCapture

from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.broker.owner import BrokerOwner, Generation, backoff
from bellwire_runtime.broker.topology import _explained
from bellwire_testkit.waiting import wait_until_async


@pytest.fixture
def said() -> Iterator[LogCapture]:
    capture = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[capture], cache_logger_on_first_use=False)
    yield capture
    structlog.configure(**before)


@given(failures=st.integers(0, 10**6), cap=st.floats(0.2, 60), seed=st.integers(0, 100))
def test_the_pause_is_bounded(failures: int, cap: float, seed: int) -> None:
    assert 0.1 <= backoff(failures, cap=cap, rng=random.Random(seed)) <= cap


def test_fifty_who_waited_for_minutes_do_not_come_back_in_the_same_second() -> None:
    """All lost the broker at the same moment, and it is back after five minutes."""
    away, returns = 300.0, []
    for seed in range(50):
        rng, now, failures = random.Random(seed), 0.0, 1
        while now < away:
            now += backoff(failures, cap=4.0, rng=rng)
            failures += 1
        returns.append(now - away)
    assert max(returns) < 4.0, "hints flow soon after the return"
    in_a_second = max(sum(start <= at < start + 1 for at in returns) for start in returns)
    assert in_a_second <= 30
    assert max(returns) - min(returns) > 2.0


class Clock:
    """Runs a thousand times as fast as the world."""

    def __init__(self) -> None:
        self.began = asyncio.get_event_loop().time()

    def __call__(self) -> float:
        return (asyncio.get_event_loop().time() - self.began) * 1000


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def nothing(_generation: Generation) -> None:
    raise AssertionError("there is no broker")


async def test_one_line_a_minute_while_the_broker_is_away(said: LogCapture) -> None:
    address = BrokerAddress(url=f"amqp://user:s3ntinel@127.0.0.1:{closed_port()}/", timeout=1)
    clock = Clock()
    owner = BrokerOwner(
        address=address, name="test", session=nothing, backoff_cap=0.11, clock=clock, rng=random.Random(1)
    )
    stop = asyncio.Event()
    running = asyncio.ensure_future(owner.run(stop))
    try:
        await owner.first(within=5)
        assert owner.down is not None
        assert owner.well is False
        await wait_until_async(lambda: clock() > 700, describe="700 of its seconds to pass")
    finally:
        stop.set()
        await running
    lines = said.entries
    assert 2 <= len(lines) <= 12
    assert [line["event"].startswith("broker still lost") for line in lines] == [False] + [True] * (
        len(lines) - 1
    )
    assert "s3ntinel" not in repr(lines)
    assert "s3ntinel" not in (owner.down or "")
    assert owner.error == "stopped"


async def test_it_stops_at_once_while_it_waits() -> None:
    address = BrokerAddress(url=f"amqp://127.0.0.1:{closed_port()}/", timeout=1)
    owner = BrokerOwner(address=address, name="test", session=nothing, backoff_cap=60, rng=random.Random(3))
    stop = asyncio.Event()
    running = asyncio.ensure_future(owner.run(stop))
    await owner.first(within=5)
    stop.set()
    await asyncio.wait_for(running, 1)


async def test_a_broker_that_never_answers_is_given_up() -> None:
    """It accepts, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        address = BrokerAddress(url=f"amqp://127.0.0.1:{port}/", timeout=1)
        owner = BrokerOwner(address=address, name="test", session=nothing)
        stop = asyncio.Event()
        running = asyncio.ensure_future(owner.run(stop))
        await owner.first(within=5)
        assert owner.error is not None
        assert "no answer within 0.6 s" in owner.error or "Timeout" in owner.error
        stop.set()
        await asyncio.wait_for(running, 2)


DIFFERS = (
    "PRECONDITION_FAILED - inequivalent arg '{}' for queue 'q' in vhost '/': received {} but current is {}"
)


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (
            DIFFERS.format("x-expires", "the value '86400000' of type 'signedint'", "none"),
            ("x-expires", "86400000", "none"),
        ),
        (
            DIFFERS.format("x-message-ttl", "none", "the value '5' of type 'signedint'"),
            ("x-message-ttl", "none", "5"),
        ),
        (
            DIFFERS.format("x-queue-type", "'quorum'", "'classic'"),
            ("x-queue-type", "quorum", "classic"),
        ),
        (DIFFERS.format("durable", "'true'", "'false'"), ("durable", "true", "false")),
        ("PRECONDITION_FAILED - new", ("(see the broker's words)", "ours", "PRECONDITION_FAILED - new")),
    ],
)
def test_a_mismatch_is_told_in_its_parts(said: str, parts: tuple[str, str, str]) -> None:
    mismatch = _explained("q", said)
    assert (mismatch.argument, mismatch.wanted, mismatch.found) == parts
