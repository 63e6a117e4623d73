"""Tells consumers where to look, as a favour: nothing here may slow admission down, or be needed by any job.

Offers come from admission and are taken without waiting. They become hints, spread over those who hear them,
and go out at once, one behind the other on one channel, however many are still unanswered. While the broker
is away or blocks us offers are dropped: their wake-ups stay admitted, admission notifies consumers by the
database, and when the broker is back everything that is out is published again.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import structlog
from aiormq import Channel
from aiormq.exceptions import AMQPChannelError

from bellwire_relay.proving import prove
from bellwire_relay.queues import Line, Queues
from bellwire_relay.ringing import Answer, Ringer, Sending
from bellwire_relay.spreading import spread
from bellwire_relay.trouble import Trouble
from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.broker.hint import encode
from bellwire_runtime.broker.owner import BrokerOwner, Generation
from bellwire_runtime.broker.wire import BrokerLost, ask
from bellwire_runtime.telemetry import BrokerState, Telemetry
from bellwire_schema.errors import QueueMismatch
from bellwire_schema.faultpoints import reach

__all__ = ["Publisher"]

log = structlog.get_logger("bellwire.relay")
_LOOK_EVERY = 0.5
_ASK_EVERY = 4.0
_MOST_IDS = 100_000
_CHECKED_AT_ONCE = 20
_SEEN = 1000
_REMEMBERED = 600.0
_CLOSE_WITHIN = 2.5
_NACK_PATIENCE = 60.0


class Publisher:
    """The relay's side of the broker. `on_well` is told each time publishing can begin (again)."""

    def __init__(
        self,
        *,
        address: BrokerAddress,
        telemetry: Telemetry,
        on_well: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._telemetry = telemetry
        self._on_well = on_well
        self._clock = clock
        self.installation: UUID | None = None
        """Must be known before `start`."""
        self.trouble = Trouble()
        self.queues = Queues(on_settled=self._settled, clock=clock)
        self.queues.frozen = lambda: self.blocked
        self.owner = BrokerOwner(address=address, name="relay", session=self._session, rng=rng, clock=clock)
        self._ringer: Ringer | None = None
        self._blocked_at: float | None = None
        self._generation: Generation | None = None
        self._waiting: dict[Line, list[Sending]] = {}
        self._nacked: dict[Line, tuple[float, float]] = {}
        self.nack_patience = _NACK_PATIENCE
        """How long a queue may refuse everything before a new connection is tried, in seconds."""
        self._ids = 0
        self._seen: dict[Line, float] = {}
        self._to_check: Sequence[Line] = ()
        self._running: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        telemetry.broker("relay", lambda: BrokerState(self.owner.well, self.blocked, self.owner.connects))

    @property
    def blocked(self) -> bool:
        """The broker reads nothing from us: it is out of memory or disk."""
        return self._blocked_at is not None

    @property
    def well(self) -> bool:
        """Whether hints can go out now."""
        return self._ringer is not None and not self.blocked

    @property
    def rings(self) -> bool:
        """Whether every kind's can."""
        return self.well and not self.queues.mutes

    @property
    def error(self) -> str | None:
        """What is wrong, for people; None: nothing is."""
        if self._blocked_at is not None:
            seconds = self._clock() - self._blocked_at
            return f"blocked for {seconds:.0f} s by the broker: a memory or disk alarm"
        if self._ringer is None:
            return self.owner.error or "the connection was lost"
        return next((mute.reason for mute in list(self.queues.mutes.values())), None)

    @property
    def down(self) -> str | None:
        """For health; None: well."""
        return self.owner.down or self.error

    def offer(self, kind: str, version: int, ids: Sequence[UUID], *, least: int, hearers: int) -> None:
        """These were admitted: publish their ids. From the event loop; never waits, and may drop them."""
        line = (kind, version)
        parts = spread(ids, least=least, hearers=hearers)
        if not self.well or self._ids > _MOST_IDS:
            self._telemetry.published("dropped", len(parts))
            return
        if (reason := self.queues.mute(line)) is not None:
            self._telemetry.published("refused", len(parts))
            self.trouble.note(ids, f"refused: {reason}")
            return
        if line in self._seen or len(self._seen) < _SEEN:
            self._seen[line] = self._clock()
        queue = self.queues.name(line)
        for part in parts:
            self._ids += len(part)
            self._send(Sending(line, queue, part))

    def start(self, *, check: Sequence[Line] = ()) -> None:
        """Begin to connect. `check`: these queues must be as we want them, or `first` says which is not."""
        if self._running is None:
            self._to_check = check
            self._running = asyncio.ensure_future(self.owner.run(self._stop))

    async def first(self, *, within: float) -> None:
        """Wait for the first try, no longer. Raises `QueueMismatch`; a broker that is away is no obstacle."""
        try:
            await self.owner.first(within=within)
        finally:
            self._to_check = ()

    async def close(self) -> None:
        """Within the time that a close may take; by force, if the broker does not answer."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=_CLOSE_WITHIN)
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=1.0)

    async def _session(self, generation: Generation) -> None:
        channel = await (await generation.open_channel(confirms=True)).get_underlay_channel()
        installation = self.installation
        assert installation is not None  # noqa: S101 (set before start)
        assert isinstance(channel, Channel)  # noqa: S101 (the library has no other)
        self.queues.begin(generation, installation)
        try:
            blocked = await prove(generation, channel, f"bellwire.{installation}")
            if self._to_check and not blocked:
                await self._check()
            self._ringer = Ringer(
                channel=channel,
                encode=lambda sending: encode(installation, *sending.line, sending.ids),
                within=generation.timeout,
                on_answer=self._answered,
                on_expiry=lambda: generation.end(f"no confirm within {generation.timeout:g} s"),
                clock=self._clock,
            )
            self._generation = generation
            generation.stand()
            self._turn(blocked=blocked)
            if not blocked:
                self._begin()
            await self._watch(generation)
        finally:
            self._end()

    async def _check(self) -> None:
        lines = self._to_check
        for at in range(0, len(lines), _CHECKED_AT_ONCE):
            try:
                await self.queues.check(lines[at : at + _CHECKED_AT_ONCE])
            except (QueueMismatch, AMQPChannelError) as error:
                # Of one that cannot be declared for another reason its kind's first offer will tell.
                if isinstance(error, QueueMismatch) and self._to_check:
                    raise
            if not self._to_check:
                return

    async def _watch(self, generation: Generation) -> None:
        asked = self._clock()
        while True:
            blocked = await generation.blocked()
            if not blocked and self._clock() - asked >= _ASK_EVERY:
                # An idle publisher hears nothing of a broker that froze, until the heartbeats are over.
                asked = self._clock()
                try:
                    await ask(generation.connection, within=generation.timeout)
                except BrokerLost:
                    if not (blocked := await generation.blocked()):
                        raise
            if blocked != self.blocked:
                self._turn(blocked=blocked)
                if not blocked:
                    self._begin()
            # While blocked the look itself waits.
            await asyncio.sleep(0 if blocked else _LOOK_EVERY)

    def _begin(self) -> None:
        # Those in use, before the first hint needs them; the others expire, as they should.
        before = self._clock() - _REMEMBERED
        self._seen = {line: at for line, at in self._seen.items() if at >= before}
        for line in self._seen:
            if not self.queues.there(line):
                self.queues.want(line)
        self._on_well()

    def _turn(self, *, blocked: bool) -> None:
        if blocked == self.blocked:
            return
        if blocked:
            self._blocked_at = self._clock()
            log.warning("broker blocks us (a memory or disk alarm); jobs are found by polling meanwhile")
            self._drop()
            if self._ringer is not None:
                self._ringer.give_up("dropped")
        else:
            assert self._blocked_at is not None  # noqa: S101 (it was blocked)
            log.info("broker takes hints again", seconds=round(self._clock() - self._blocked_at, 1))
            self._blocked_at = None

    def _end(self) -> None:
        ringer, self._ringer, self._generation = self._ringer, None, None
        self.queues.end()
        self._drop()
        if ringer is not None:
            ringer.close()
        self._blocked_at = None

    def _drop(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for sendings in waiting.values():
            for sending in sendings:
                self._answered(sending, "dropped", "")

    def _send(self, sending: Sending) -> None:
        ringer = self._ringer
        if ringer is None:
            self._answered(sending, "dropped", "")
        elif self.queues.there(sending.line):
            ringer.ring(sending)
        else:
            self._waiting.setdefault(sending.line, []).append(sending)
            self.queues.want(sending.line)

    def _settled(self, line: Line) -> None:
        """The queue is there, or is mute."""
        reason = self.queues.mute(line)
        for sending in self._waiting.pop(line, ()):
            if reason is None:
                self._send(sending)
            else:
                self._answered(sending, "refused", reason)

    def _answered(self, sending: Sending, answer: Answer, detail: str) -> None:
        self._telemetry.published(answer)
        if answer == "confirmed":
            self._nacked.pop(sending.line, None)
            reach("relay.published")
        elif answer == "nacked":
            self._was_nacked(sending.line)
        elif answer == "returned":
            self.queues.forget(sending.line)
            if not sending.returned and self._ringer is not None:
                sending.returned = True
                self._send(sending)
                return
        self._ids -= len(sending.ids)
        if (words := _TROUBLES.get(answer)) is not None:
            self.trouble.note(sending.ids, f"{words}: {detail}" if detail else words)

    def _was_nacked(self, line: Line) -> None:
        """A queue whose bound was lifted goes on refusing a channel that it refused before (seen in 3.10)."""
        now = self._clock()
        first, last = self._nacked.get(line, (now, now))
        if now - last > self.nack_patience:
            # Long ago, and nothing was published since: no refusal of everything.
            first = now
        self._nacked[line] = (first, now)
        if self._generation is not None and now - first >= self.nack_patience:
            self._nacked.clear()
            self._generation.end(f"queue {self.queues.name(line)} refuses every hint")


_TROUBLES: Mapping[Answer, str] = {
    "returned": "returned",
    "nacked": "nacked",
    "timed_out": "timed out",
    "refused": "refused",
}
"""What is written onto a wake-up. That a hint was dropped says nothing about it, but about the broker."""
