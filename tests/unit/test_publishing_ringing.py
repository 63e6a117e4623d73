"""Hints under way: bounded, answered once each, and all unanswered when one has waited too long."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast
from uuid import uuid4

import pytest
from aiormq import Channel
from aiormq.exceptions import ChannelAccessRefused, DeliveryError
from pamqp.commands import Basic

from bellwire_relay.ringing import Ringer, Sending

Answers = list[tuple[Sending, str, str]]


class Silent:
    """A channel that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []
        self.bodies: list[bytes] = []

    async def basic_publish(self, body: bytes, **properties: Any) -> None:
        assert properties["mandatory"]
        self.bodies.append(body)
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]


class Stage:
    def __init__(self, *, within: float = 60.0, most: int = 3) -> None:
        self.channel = Silent()
        self.answers: Answers = []
        self.expired = 0
        self.ringer = Ringer(
            channel=cast("Channel", self.channel),
            encode=lambda sending: b"%d" % len(sending.ids),
            within=within,
            on_answer=lambda sending, answer, detail: self.answers.append((sending, answer, detail)),
            on_expiry=self._expire,
            most=most,
        )

    def _expire(self) -> None:
        self.expired += 1

    def ring(self, count: int) -> list[Sending]:
        sendings = [Sending(("work", 1), "queue", [uuid4()]) for _ in range(count)]
        for sending in sendings:
            self.ringer.ring(sending)
        return sendings

    @property
    def words(self) -> list[str]:
        return [answer for _, answer, _ in self.answers]


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_go_out_in_the_same_turn_and_no_more_than_may() -> None:
    stage = Stage(most=3)
    sendings = stage.ring(5)
    await asyncio.sleep(0)
    assert len(stage.channel.asked) == 3, "one turn of the loop, no timer"
    assert len(stage.ringer) == 5
    stage.channel.asked[1].set_result(None)
    await turn()
    assert stage.answers == [(sendings[1], "confirmed", "")]
    assert len(stage.channel.asked) == 4, "the next takes its place"
    for asked in list(stage.channel.asked):
        if not asked.done():
            asked.set_result(None)
    await turn()
    stage.channel.asked[-1].set_result(None)
    await turn()
    assert stage.words == ["confirmed"] * 5
    assert len(stage.ringer) == 0
    stage.ringer.close()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (DeliveryError(None, Basic.Nack()), "nacked"),
        (ChannelAccessRefused("ACCESS_REFUSED"), "refused"),
        (ConnectionResetError("gone"), "dropped"),
    ],
)
async def test_what_became_of_it(error: Exception, answer: str) -> None:
    stage = Stage()
    stage.ring(1)
    await turn()
    stage.channel.asked[0].set_exception(error)
    await turn()
    assert stage.words == [answer]
    stage.ringer.close()


async def test_the_librarys_cancelling_is_a_lost_connection() -> None:
    stage = Stage()
    stage.ring(1)
    await turn()
    stage.channel.asked[0].cancel()
    await turn()
    assert stage.answers[0][1:] == ("dropped", "the connection broke")
    stage.ringer.close()


async def test_when_the_oldest_has_waited_too_long_everything_is_over() -> None:
    stage = Stage(within=0.05, most=3)
    stage.ring(4)
    await asyncio.wait_for(_expired(stage), 5)
    assert sorted(stage.words) == ["dropped", "timed_out", "timed_out", "timed_out"]
    assert stage.expired == 1
    stage.ring(1)
    assert stage.words[-1] == "dropped", "nothing more goes out there"
    await turn()
    assert len(stage.answers) == 5, "late answers count for nothing"
    stage.ringer.close()
    assert len(stage.answers) == 5


async def test_a_process_that_stood_still_reads_its_answers_first() -> None:
    stage = Stage(within=0.05)
    stage.ring(1)
    await turn()
    asyncio.get_running_loop().call_soon(time.sleep, 0.5)
    await turn()
    asyncio.get_running_loop().call_later(0.05, stage.channel.asked[0].set_result, None)
    await asyncio.wait_for(_answered(stage), 5)
    assert stage.words == ["confirmed"]
    assert stage.expired == 0
    stage.ringer.close()


async def test_given_up_while_blocked_the_channel_goes_on() -> None:
    stage = Stage(within=0.05)
    stage.ring(2)
    await turn()
    stage.ringer.give_up("dropped")
    assert stage.words == ["dropped", "dropped"]
    for asked in stage.channel.asked:
        asked.set_result(None)
    await turn()
    assert len(stage.answers) == 2, "confirmed after all, and nobody's"
    stage.ring(1)
    await turn()
    stage.channel.asked[-1].set_result(None)
    await turn()
    assert stage.words[-1] == "confirmed"
    assert stage.expired == 0
    stage.ringer.close()


async def _answered(stage: Stage) -> None:
    while not stage.answers:  # noqa: ASYNC110 (likewise)
        await asyncio.sleep(0.01)


async def _expired(stage: Stage) -> None:
    while not stage.expired:  # noqa: ASYNC110 (it is told by a plain callback)
        await asyncio.sleep(0.01)
