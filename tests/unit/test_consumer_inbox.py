"""What is heard: acknowledged within a second, taken first while a slot is free, known a while if none is."""

import asyncio
from collections.abc import Callable

from bellwire_consumer.inbox import Inbox

HOLD = 0.02


class Channel:
    def __init__(self) -> None:
        self.acknowledged: list[int] = []

    def acknowledge(self, tag: int) -> None:
        self.acknowledged.append(tag)


class Heard:
    def __init__(self, *, known: int) -> None:
        self.late = 0
        self.forgotten = 0
        self.channel = Channel()
        self.inbox = Inbox(
            on_hint=lambda: None, on_late=self._late, on_forgotten=self._forgotten, known=known, hold=HOLD
        )

    def hear(self, *ids: str, tag: int) -> None:
        self.inbox.hear(ids, self.channel, tag)

    def _late(self) -> None:
        self.late += 1

    def _forgotten(self, count: int) -> None:
        self.forgotten += count


async def until(condition: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + 5
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


async def test_a_hint_is_acknowledged_when_all_of_it_was_looked_at() -> None:
    heard = Heard(known=4)
    heard.hear("a", "b", "c", tag=1)
    assert heard.inbox.take(2) == ["a", "b"]
    heard.inbox.answered()
    assert heard.channel.acknowledged == []
    assert heard.inbox.take(2) == ["c"]
    assert heard.channel.acknowledged == [], "its claim has not been answered"
    heard.inbox.answered()
    assert heard.channel.acknowledged == [1]
    assert not heard.inbox


async def test_what_found_no_slot_in_time_is_let_go_and_still_known() -> None:
    heard = Heard(known=4)
    heard.hear("a", "b", tag=1)
    assert heard.inbox.take(1) == ["a"]
    await until(lambda: heard.channel.acknowledged == [1])
    assert (heard.late, heard.forgotten) == (1, 0)
    heard.hear("c", tag=2)
    assert heard.inbox, "there is something to look at"
    assert heard.inbox.take(5) == ["b", "c"], "the older first"
    heard.inbox.answered()
    assert heard.channel.acknowledged == [1, 2]
    assert not heard.inbox


async def test_no_more_is_known_than_there_are_slots() -> None:
    heard = Heard(known=2)
    heard.hear("a", "b", "c", tag=1)
    await until(lambda: heard.forgotten)
    assert (heard.late, heard.forgotten) == (1, 1)
    assert heard.inbox.take(5) == ["b", "c"], "the oldest is forgotten"


async def test_nothing_is_late_where_all_was_taken() -> None:
    heard = Heard(known=2)
    heard.hear("a", tag=1)
    heard.inbox.take(1)
    await until(lambda: heard.channel.acknowledged == [1])
    heard.inbox.answered()
    assert heard.channel.acknowledged == [1], "once"
    assert (heard.late, heard.forgotten) == (0, 0)
