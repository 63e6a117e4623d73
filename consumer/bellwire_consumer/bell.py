"""The doorbell of one consumer: what it hears, where that waits, and the net under it, put together.

Everything here may be taken away at any moment, and the consumer goes on by polling.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

from bellwire_consumer.hearing import Hearing
from bellwire_consumer.hints import Announcements, Doorbell
from bellwire_consumer.identity import Identity
from bellwire_consumer.inbox import Inbox
from bellwire_consumer.settings import ConsumerSettings
from bellwire_consumer.slots import Slots
from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.telemetry import BrokerState, Telemetry

__all__ = ["Bell"]

_LOSING_S = 10.0
_SETTLED_S = 0.05


class Bell:
    """`source` is what the claimer asks; `run` keeps the connection."""

    def __init__(
        self,
        *,
        address: BrokerAddress,
        identity: Identity,
        slots: Slots,
        installation: UUID,
        announcements: Callable[[Callable[[], None]], Announcements],
        telemetry: Telemetry,
        settings: ConsumerSettings,
        on_hint: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self._on_hint = on_hint
        self._on_change = on_change
        self._telemetry = telemetry
        self._slots = slots
        self._hearing_again: asyncio.TimerHandle | None = None
        inbox = Inbox(
            on_hint=on_hint,
            on_late=self._late,
            on_forgotten=self._forgotten,
            known=2 * slots.total,  # as many as admission ever lets out
        )
        hearing = Hearing(
            address=address,
            installation=installation,
            lines=list(zip(identity.kinds, identity.versions, strict=True)),
            inbox=inbox,
            telemetry=telemetry,
            on_change=self._changed,
        )
        self._hearing = hearing
        self._owner = owner = hearing.owner
        self.source = Doorbell(
            inbox=inbox,
            announcements=announcements(self._announced),
            hearing=lambda: owner.well,
            free=lambda: slots.free,
            poll=settings.consumer_poll,
            poll_floor=settings.consumer_poll_floor.total_seconds(),
        )
        telemetry.broker(
            owner.name,
            lambda: BrokerState(connected=owner.well, blocked=False, connects=owner.connects),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        await self._hearing.run(stop)

    async def first(self, stop: asyncio.Event) -> None:
        """Wait for the first try to succeed or fail, or for `stop`. Raises `QueueMismatch` where it found
        one.
        """
        waiting = asyncio.ensure_future(self._owner.first(within=None))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()
            stopping.cancel()

    def slot_freed(self) -> None:
        """A slot is free again."""
        self.source.freed()
        if self._hearing.is_full and self._hearing_again is None:
            # Not before the net has looked: who is full again at once would only take hints from others.
            self._hearing_again = asyncio.get_running_loop().call_later(_SETTLED_S, self._hear_again)

    def _hear_again(self) -> None:
        self._hearing_again = None
        if len(self._slots.running) < self._slots.total:
            self._hearing.full(full=False)

    def down(self) -> str | None:
        """For health: why hints are not heard, or do not come."""
        return self._owner.down or self._losing

    def hears(self) -> tuple[bool | None, str | None]:
        """For the registry; from any thread."""
        losing = self._losing
        return self._owner.well and losing is None, self._owner.error or losing

    @property
    def _losing(self) -> str | None:
        """Both sides may be well, and speak to different brokers, or somebody else takes the hints."""
        seconds = self.source.losing
        if seconds < _LOSING_S:
            return None
        return (
            f"for {seconds:.0f} s polls have found jobs whose hints did not come here: do relays and "
            "consumers use the same broker and virtual host, and does nobody else consume from our queues?"
        )

    def _changed(self, well: bool) -> None:
        if well:
            self.source.registered()
        self._on_change()

    def _announced(self) -> None:
        self.source.announced()
        self._on_hint()

    def _forgotten(self, count: int) -> None:
        self._telemetry.heard("forgotten", count)
        self.source.check()

    def _late(self) -> None:
        # Slots that a claim has reserved are not taken yet, and nobody says when they were not needed.
        if len(self._slots.running) >= self._slots.total:
            self._hearing.full(full=True)
