"""Each tag is acknowledged once, at most, on its own channel, and together where the tags leave no gap."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from bellwire_consumer.acknowledgements import Acknowledgements


class Channel:
    """Remembers what it was told; `acked` is what a broker makes of it."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []
        self.error: Exception | None = None
        self.failures: list[str] = []
        self.acks = Acknowledgements(self._send, failed=self.failures.append)

    async def _send(self, tag: int, multiple: bool) -> None:
        if self.error is not None:
            raise self.error
        self.told.append((tag, multiple))

    def acked(self, delivered: int) -> list[int]:
        """The tags in the order they are acknowledged; a repeated or unknown one fails as the broker does."""
        open_ = set(range(1, delivered + 1))
        order: list[int] = []
        for tag, multiple in self.told:
            ending = {one for one in open_ if one == tag or (multiple and one <= tag)}
            assert tag in ending, f"406: unknown delivery tag {tag}"
            order += sorted(ending)
            open_ -= ending
        return order


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_what_is_due_in_one_turn_is_one_message() -> None:
    channel = Channel()
    for tag in (1, 2, 3, 4):
        channel.acks.delivered(tag)
    for tag in (2, 1, 3):
        channel.acks.acknowledge(tag)
    await turn()
    assert channel.told == [(3, True)]
    channel.acks.acknowledge(4)
    await turn()
    assert channel.told == [(3, True), (4, True)]


async def test_a_gap_is_not_acknowledged() -> None:
    channel = Channel()
    for tag in (1, 2, 3):
        channel.acks.delivered(tag)
    channel.acks.acknowledge(3)
    await turn()
    assert channel.told == [(3, False)]
    channel.acks.acknowledge(1)
    channel.acks.acknowledge(2)
    await turn()
    assert channel.acked(3) == [3, 1, 2]


async def test_nothing_is_told_twice_or_unasked() -> None:
    channel = Channel()
    channel.acks.delivered(1)
    channel.acks.acknowledge(1)
    channel.acks.acknowledge(7)
    await turn()
    channel.acks.acknowledge(1)
    await turn()
    assert channel.told == [(1, True)]


async def test_a_channel_that_is_gone_is_told_nothing() -> None:
    channel = Channel()
    channel.acks.delivered(1)
    channel.acks.delivered(2)
    channel.acks.acknowledge(1)
    channel.acks.over = True
    channel.acks.acknowledge(2)
    await turn()
    assert channel.told == []


async def test_a_failure_ends_the_generation() -> None:
    channel = Channel()
    channel.error = ConnectionError("gone")
    channel.acks.delivered(1)
    channel.acks.acknowledge(1)
    await turn()
    assert channel.failures == ["acknowledge: ConnectionError"]


async def test_told_waits_for_what_is_held() -> None:
    channel = Channel()
    await asyncio.wait_for(channel.acks.told(), 1)
    channel.acks.delivered(1)
    waiting = asyncio.ensure_future(channel.acks.told())
    await turn()
    assert not waiting.done()
    channel.acks.acknowledge(1)
    await asyncio.wait_for(waiting, 1)
    assert channel.told == [(1, True)]


@given(
    deliveries=st.integers(1, 30),
    batches=st.data(),
)
def test_whatever_the_order_each_is_acknowledged_once(deliveries: int, batches: st.DataObject) -> None:
    order = batches.draw(st.permutations(range(1, deliveries + 1)))
    sizes = batches.draw(st.lists(st.integers(1, 6), min_size=1, max_size=30))

    async def play() -> None:
        channel = Channel()
        for tag in range(1, deliveries + 1):
            channel.acks.delivered(tag)
        left = list(order)
        for size in [*sizes, deliveries]:
            for tag in left[:size]:
                channel.acks.acknowledge(tag)
            left = left[size:]
            await turn()
        assert sorted(channel.acked(deliveries)) == list(range(1, deliveries + 1))
        await asyncio.wait_for(channel.acks.told(), 1)

    asyncio.run(play())
