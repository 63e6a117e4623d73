"""One channel and all that is subscribed on it: built from nothing, and given up as a whole.

A subscription is proved by making another, on a new channel. Neither the broker's list nor a subscription
made anew on the old channel proves anything: when a queue was deleted and made again within moments, RabbitMQ
3.10 went on listing the consumer, and the channel, whose view of that queue was of the old one, was delivered
nothing, under any tag. What an old channel still holds it acknowledges before it is closed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from uuid import uuid4

import structlog
from aiormq.abc import AbstractChannel, DeliveredMessage

from bellwire_consumer.acknowledgements import Acknowledgements
from bellwire_runtime.broker.owner import Generation
from bellwire_runtime.broker.wire import BrokerLost, bare_channel, bounded, reason_of

__all__ = ["PREFETCH", "Subscriptions"]

log = structlog.get_logger("bellwire.consumer")

PREFETCH = 2
"""Hints a queue: one being claimed, one on its way. More would lie here instead of with another consumer."""


class Subscriptions:
    """Its channel's end is the generation's, unless it was retired."""

    def __init__(self, generation: Generation, channel: AbstractChannel) -> None:
        self._generation = generation
        self._channel = channel
        self._within = generation.timeout
        self._tags: list[str] = []
        self._retired = False
        self.acks = Acknowledgements(self._acknowledge, failed=self._failed)
        self._closing = channel.closing
        self._closing.add_done_callback(self._closed)

    @classmethod
    async def open(
        cls,
        generation: Generation,
        queues: Sequence[str],
        heard: "Callable[[Subscriptions, DeliveredMessage], None]",
    ) -> "Subscriptions":
        """One that the broker has confirmed on each queue. Raises what the broker or its library says."""
        channel = await bare_channel(generation.connection, within=generation.timeout)
        subscriptions = cls(generation, channel)
        try:
            await subscriptions._listen(queues, heard)
        except BaseException:
            subscriptions._retired = subscriptions.acks.over = True
            raise
        return subscriptions

    async def retire(self, *, patience: float = 1.0) -> None:
        """Hear no more, acknowledge what is held, and close. Never raises for the broker."""
        self._retired = True
        try:
            for tag in self._tags:
                await bounded(
                    self._channel.basic_cancel(tag), within=self._within, what="give up a subscription"
                )
            # The inbox holds nothing for longer than a second.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.acks.told()
            self.acks.over = True
            await bounded(self._channel.close(), within=self._within, what="close a channel")
        except BrokerLost as error:
            self._generation.end(str(error))
        except Exception as error:  # noqa: BLE001 (of a channel that is given up anyway)
            log.debug("channel given up", error=reason_of(error))
        finally:
            self.acks.over = True

    async def _listen(
        self, queues: Sequence[str], heard: "Callable[[Subscriptions, DeliveredMessage], None]"
    ) -> None:
        self._channel.on_consumer_cancel_callbacks.add(
            lambda frame: self._failed(f"consumer {frame.consumer_tag} cancelled by the broker")
        )
        await bounded(
            self._channel.basic_qos(prefetch_count=PREFETCH), within=self._within, what="set the prefetch"
        )

        async def deliver(message: DeliveredMessage) -> None:
            if message.delivery_tag is not None:
                self.acks.delivered(message.delivery_tag)
                heard(self, message)

        for queue in queues:
            tag = f"bellwire-{uuid4().hex}"
            await bounded(
                self._channel.basic_consume(queue, deliver, consumer_tag=tag),
                within=self._within,
                what=f"consume from {queue}",
            )
            self._tags.append(tag)

    async def _acknowledge(self, tag: int, multiple: bool) -> None:
        await self._channel.basic_ack(tag, multiple=multiple, wait=False)

    def _failed(self, reason: str) -> None:
        if not self._retired:
            self._generation.end(reason)

    def _closed(self, closing: "asyncio.Future[None]") -> None:
        self.acks.over = True
        error = None if closing.cancelled() else closing.exception()
        self._failed(f"channel closed: {reason_of(error)}" if error else "channel closed")
