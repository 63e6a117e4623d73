"""Hears hints at the broker, and never believes that it does: it asks.

Each generation declares the queues, subscribes to each, and from then on proves it: every few seconds the
queues are declared again and everything is subscribed anew on a new channel, before the old one is given up.
A connection that froze fails the same question. Whatever fails ends the generation; the next is built from
nothing. Nothing that is in a message can do harm: it is counted and acknowledged.

A consumer whose slots are all taken for long gives its subscriptions up until one is free: the broker hands
hints round in turn, and those it gave to us would wait for another consumer's net.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from uuid import UUID

import structlog
from aiormq.abc import DeliveredMessage

from bellwire_consumer.inbox import Inbox
from bellwire_consumer.subscriptions import Subscriptions
from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.broker.hint import Hint, decode
from bellwire_runtime.broker.owner import BrokerOwner, Generation
from bellwire_runtime.broker.topology import declare, queue_name
from bellwire_runtime.broker.wire import ask
from bellwire_runtime.telemetry import Telemetry
from bellwire_schema.faultpoints import reach

__all__ = ["Hearing"]

log = structlog.get_logger("bellwire.consumer")
_PROOF_S = 4.0


class Hearing:
    """Fills the inbox from one queue a kind and version."""

    def __init__(
        self,
        *,
        address: BrokerAddress,
        installation: UUID,
        lines: Sequence[tuple[str, int]],
        inbox: Inbox,
        telemetry: Telemetry,
        on_change: Callable[[bool], None],
        rng: random.Random | None = None,
    ) -> None:
        self._installation = installation
        self._queues = tuple(queue_name(installation, kind, version) for kind, version in lines)
        self._inbox = inbox
        self._telemetry = telemetry
        self._rng = rng or random.Random()  # noqa: S311 (spreads questions, no secret)
        self._sampled = 0
        self._full = False
        self._turned = asyncio.Event()
        self.owner = BrokerOwner(
            address=address, name="consumer", session=self._session, on_change=on_change, rng=rng
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        await self.owner.run(stop)

    @property
    def is_full(self) -> bool:
        return self._full

    def full(self, *, full: bool) -> None:
        """No slot was free for a hint; or one is free again. From the event loop."""
        if full != self._full:
            self._full = full
            self._turned.set()

    async def _session(self, generation: Generation) -> None:
        subscriptions: Subscriptions | None = None
        try:
            while True:
                await declare(generation.connection, self._queues, within=generation.timeout)
                before, subscriptions = subscriptions, await self._subscribe(generation)
                generation.stand()
                if before is not None:
                    await before.retire()
                await self._pause(generation)
        finally:
            if subscriptions is not None:
                subscriptions.acks.over = True

    async def _subscribe(self, generation: Generation) -> Subscriptions | None:
        """A new one; none while every slot is taken."""
        return None if self._full else await Subscriptions.open(generation, self._queues, self._heard)

    async def _pause(self, generation: Generation) -> None:
        """Until the next proof is due, or we became full, or have a slot again."""
        # With very many queues a proof is made less often; whether anybody answers is asked anyway.
        left = max(1, round(len(self._queues) / 20))
        while not await self._turn(_PROOF_S * self._rng.uniform(0.8, 1.2)):
            left -= 1
            if not left:
                return
            await ask(generation.connection, within=generation.timeout)

    async def _turn(self, seconds: float) -> bool:
        """Whether we became full, or have a slot again, within that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._turned.wait()
        turned = self._turned.is_set()
        self._turned.clear()
        return turned

    def _heard(self, subscriptions: Subscriptions, message: DeliveredMessage) -> None:
        tag = message.delivery_tag
        assert tag is not None  # noqa: S101 (the subscriptions has looked)
        reach("consumer.heard")
        found = decode(message.body, self._installation)
        if isinstance(found, Hint):
            self._inbox.hear(found.ids, subscriptions.acks, tag)
            return
        self._telemetry.heard(found)
        self._sampled += 1
        if self._sampled & (self._sampled - 1) == 0:
            # The 1st, 2nd, 4th, 8th …: enough to know, too few to fill a disk.
            log.warning(
                "a message that is no hint of this installation was put away",
                verdict=found,
                size=len(message.body),
                queue=message.routing_key,
                so_far=self._sampled,
            )
        subscriptions.acks.acknowledge(tag)
