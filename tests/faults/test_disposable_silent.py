"""Hints that are lost while all seems well: confirmed, and then purged, stolen, or never delivered. Jobs run
by polling, and hints bring them again when the thief is gone.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import aio_pika
import pytest

from bellwire_testkit.faults import Direction, Piece, Rule
from bellwire_testkit.proxy import Proxy
from tests.faults.app import Quick
from tests.faults.load import repeatedly, slowest_start
from tests.faults.stage import Daemon, Stage

START = 2.0
"""Seconds from submit to start, of the slowest: what was let go a second ago is looked for twice a second."""
BACK = 10.0
"""Seconds from the end of it until a hint brings a job."""
JOBS, APART = 60, 0.03
SLOTS = 100
"""As many as a consumer has by default; while nobody notices, no more are let go than fit."""


class Swallow(Rule):
    """While `hungry`, takes a method that carries content, and that content, out of one direction.

    It must see a connection from its beginning. Frames: AMQP 0-9-1, 2.3.5.
    """

    PUBLISH, DELIVER = (60, 40), (60, 60)

    def __init__(self, direction: Direction, method: tuple[int, int]) -> None:
        self._direction, self._method = direction, method
        self._rest: dict[Hashable, bytes] = {}
        self._left: dict[tuple[Hashable, int], int] = {}
        self.swallowed = 0
        self.hungry = False

    def see(self, piece: Piece) -> bytes:
        if piece.direction != self._direction:
            return piece.data
        rest, passing = self._rest.get(piece.link, b"") + piece.data, b""
        if rest.startswith(b"AMQP"):
            rest, passing = rest[8:], rest[:8]
        while len(rest) >= 7 and len(rest) >= (size := 8 + struct.unpack_from(">I", rest, 3)[0]):
            if self._passes(piece.link, rest[:size]):
                passing += rest[:size]
            rest = rest[size:]
        self._rest[piece.link] = rest
        return passing

    def _passes(self, link: Hashable, frame: bytes) -> bool:
        kind, channel = frame[0], struct.unpack_from(">H", frame, 1)[0]
        where = (link, channel)
        if kind == 1 and struct.unpack_from(">HH", frame, 7) == self._method and self.hungry:
            self.swallowed += 1
            self._left[where] = -1
            return False
        if where not in self._left:
            return True
        if kind == 2:
            self._left[where] = struct.unpack_from(">Q", frame, 11)[0]
        elif kind == 3:
            self._left[where] -= len(frame) - 8
        if self._left[where] == 0:
            del self._left[where]
        return False


@contextmanager
def thief(url: str, queue: str) -> Iterator[list[bytes]]:
    """A consumer of somebody else's at our queue, that the broker prefers, and that says thank you."""
    stolen: list[bytes] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    ready = threading.Event()

    async def steal() -> None:
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1000)
            theirs = await channel.get_queue(queue)

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                stolen.append(message.body)
                await message.ack()

            await theirs.consume(take, arguments={"x-priority": 10})
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(steal(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield stolen
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def lossy(stage: Stage, what: str) -> None:
    ids = []
    for _ in range(JOBS):
        ids += stage.submit(Quick())
        time.sleep(APART)
    stage.wait_done(ids)
    slowest = slowest_start(stage, ids)
    hinted, polled = (stage.claimed_by(source, stage.daemons[1]) for source in ("hint", "poll"))
    print(f"{what}: slowest start of {JOBS} {slowest:.2f} s; so far {hinted} by hints, {polled} polled")
    assert slowest < START
    assert polled > 0, "something was lost"


def test_stolen_by_another_consumer(stage: Stage) -> None:
    consumer = _started(stage, stage.amqp)
    with thief(stage.amqp, stage.queue()) as stolen:
        lossy(stage, "stolen")
    assert stolen
    stage.run_from_hint(consumer, deadline=BACK)
    assert consumer.connects == 1, "nobody noticed"
    stage.finish()


def test_purged_again_and_again(stage: Stage) -> None:
    """The consumer is stopped in between, so that hints lie in the queue when it is purged."""
    consumer = _started(stage, stage.amqp)
    with repeatedly(lambda: stage.admin.purge(stage.queue()), every=0.005) as purges:
        ids = []
        for n in range(JOBS):
            if n % 12 == 0:
                consumer.process.stop()
            ids += stage.submit(Quick())
            time.sleep(APART)
            if n % 12 == 5:
                consumer.process.cont()
        stage.wait_done(ids)
        assert purges() > 10
    slowest = slowest_start(stage, ids)
    hinted, polled = (stage.claimed_by(source, consumer) for source in ("hint", "poll"))
    print(f"purged: slowest start of {JOBS} {slowest:.2f} s; {hinted} by hints, {polled} polled")
    assert polled > 0, "something was lost"
    assert slowest < START + 6 * APART
    stage.run_from_hint(consumer, deadline=BACK)
    stage.finish()


@pytest.mark.parametrize("what", ["publish", "deliver"])
def test_swallowed_on_the_way(stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str, what: str) -> None:
    """Between relay and broker, where the confirm does not come; between broker and consumer."""
    rule = (
        Swallow("to_server", Swallow.PUBLISH) if what == "publish" else Swallow("to_client", Swallow.DELIVER)
    )
    amqp_proxy.arm(rule)
    consumer = _started(stage, amqp_proxy_url)
    rule.hungry = True
    lossy(stage, what)
    assert rule.swallowed > 0
    rule.hungry = False
    stage.run_from_hint(consumer, deadline=BACK)
    for one in stage.daemons:
        one.wait_ready(deadline=BACK)
    stage.finish()


def _started(stage: Stage, url: str) -> Daemon:
    relay, consumer = stage.relay(amqp=url), stage.consumer(amqp=url, slots=SLOTS)
    relay.wait_ready()
    consumer.wait_ready()
    stage.run_from_hint(consumer)
    return consumer
