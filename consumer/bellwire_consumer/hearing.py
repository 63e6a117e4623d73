"""Hears hints at the broker, and never believes that it does: it asks.

Each generation declares the queues, subscribes to each, and from then on proves it: every few seconds each
queue must still be there and list a consumer, and every minute the subscription is made anew under a new
tag, which the broker confirms or does not. A connection that froze fails the same question. Whatever fails
ends the generation; the next is built from nothing. Nothing that is in a message can do harm: it is counted
and acknowledged.

A consumer whose slots are all taken for long gives its subscriptions up until one is free: the broker hands
hints round in turn, and those it gave to us would wait for another consumer's net.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import structlog
from aio_pika.abc import AbstractChannel
from aiormq.abc import AbstractChannel as Underlay
from aiormq.abc import DeliveredMessage

from bellwire_consumer.acknowledgements import Acknowledgements
from bellwire_consumer.inbox import Inbox
from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.broker.hint import Hint, decode
from bellwire_runtime.broker.owner import BrokerOwner, Generation
from bellwire_runtime.broker.topology import declare, queue_name
from bellwire_runtime.broker.wire import BrokerLost, bounded
from bellwire_runtime.telemetry import Telemetry
from bellwire_schema.faultpoints import reach

__all__ = ["Hearing"]

log = structlog.get_logger("bellwire.consumer")
PREFETCH = 2
"""Hints a queue: one being claimed, one on its way. More would lie here instead of with another consumer."""
_PROOF_S = 4.0
_RENEW_EVERY = 15
_PROVED_AT_ONCE = 20


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

    def full(self, *, full: bool) -> None:
        """No slot was free for a hint; or one is free again. From the event loop."""
        if full != self._full:
            self._full = full
            self._turned.set()

    async def _session(self, generation: Generation) -> None:
        within = generation.timeout
        channel = await generation.open_channel(confirms=False)
        underlay = await channel.get_underlay_channel()
        acks = Acknowledgements(
            lambda tag, multiple: underlay.basic_ack(tag, multiple=multiple, wait=False),
            failed=generation.end,
        )
        try:
            underlay.on_consumer_cancel_callbacks.add(
                lambda frame: generation.end(f"consumer {frame.consumer_tag} cancelled by the broker")
            )
            await bounded(channel.set_qos(prefetch_count=PREFETCH), within=within, what="set the prefetch")
            await declare(generation.connection, self._queues, within=within)
            subscriptions = [
                _Subscription(queue, underlay, self._listener(acks), within) for queue in self._queues
            ]
            if not self._full:
                for subscription in subscriptions:
                    await subscription.renew()
            generation.stand()
            await self._prove(generation, subscriptions)
        finally:
            acks.over = True

    async def _prove(self, generation: Generation, subscriptions: "Sequence[_Subscription]") -> None:
        """Ask for ever; what is not answered as it should be raises."""
        rounds = 0
        position = 0
        while True:
            if await self._pause():
                await self._turn(subscriptions)
                continue
            rounds += 1
            # With very many queues each round asks about some of them.
            count = min(_PROVED_AT_ONCE, len(subscriptions))
            chosen = [subscriptions[(position + n) % len(subscriptions)] for n in range(count)]
            position = (position + count) % len(subscriptions)
            await _listed(generation, [one.queue for one in chosen], consumers=not self._full)
            if rounds % _RENEW_EVERY == 0 and not self._full:
                for subscription in subscriptions:
                    await subscription.renew()

    async def _pause(self) -> bool:
        """Until the next proof is due; True: we became full, or have a slot again."""
        try:
            async with asyncio.timeout(_PROOF_S * self._rng.uniform(0.8, 1.2)):
                await self._turned.wait()
        except TimeoutError:
            return False
        return True

    async def _turn(self, subscriptions: "Sequence[_Subscription]") -> None:
        self._turned.clear()
        for subscription in subscriptions:
            if self._full:
                await subscription.give_up()
            elif not subscription.standing:
                await subscription.renew()

    def _listener(self, acks: Acknowledgements) -> "Callable[[DeliveredMessage], None]":
        def heard(message: DeliveredMessage) -> None:
            tag = message.delivery_tag
            if tag is None:
                return
            acks.delivered(tag)
            reach("consumer.heard")
            found = decode(message.body, self._installation)
            if isinstance(found, Hint):
                self._inbox.hear(found.ids, acks, tag)
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
            acks.acknowledge(tag)

        return heard


class _Subscription:
    """To one queue, under a tag that the broker has confirmed."""

    def __init__(
        self, queue: str, channel: Underlay, heard: Callable[[DeliveredMessage], None], within: float
    ) -> None:
        self.queue = queue
        self._channel = channel
        self._heard = heard
        self._within = within
        self._tag: str | None = None

    async def renew(self) -> None:
        """Subscribe under a new tag; the old one is given up only when the new one stands."""
        before, tag = self._tag, f"bellwire-{uuid4().hex}"
        await bounded(
            self._channel.basic_consume(self.queue, self._deliver, consumer_tag=tag),
            within=self._within,
            what=f"consume from {self.queue}",
        )
        self._tag = tag
        if before is not None:
            await self._cancel(before)

    @property
    def standing(self) -> bool:
        return self._tag is not None

    async def give_up(self) -> None:
        """Hear no more from this queue, until it is renewed."""
        before, self._tag = self._tag, None
        if before is not None:
            await self._cancel(before)

    async def _cancel(self, tag: str) -> None:
        await bounded(
            self._channel.basic_cancel(tag), within=self._within, what=f"give up a tag of {self.queue}"
        )

    async def _deliver(self, message: DeliveredMessage) -> None:
        self._heard(message)


async def _listed(generation: Generation, queues: Sequence[str], *, consumers: bool) -> None:
    """Each queue exists and (if `consumers`) lists one; else `BrokerLost`, or the library's error."""
    within = generation.timeout
    channel: AbstractChannel = generation.connection.channel(publisher_confirms=False)
    await bounded(channel.initialize(), within=within, what="open a channel")
    try:
        for name in queues:
            queue = await bounded(
                channel.declare_queue(name, passive=True), within=within, what=f"look at queue {name}"
            )
            if consumers and not queue.declaration_result.consumer_count:
                raise BrokerLost(f"the broker lists no consumer of queue {name}")
    finally:
        with contextlib.suppress(Exception):
            await bounded(channel.close(), within=within, what="close a channel")
