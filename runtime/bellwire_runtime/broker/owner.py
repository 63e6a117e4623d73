"""One task owns a connection: it makes it, has everything on it built from nothing, and throws it away whole.

The library's own recovery is not used: connections that came back without their consumers were seen, and
look well from inside. Here a *generation* is one connection with all that was built on it; a closed channel,
a cancelled consumer, a missed deadline or a lost socket end it, and the next starts from nothing.
Reconnecting is jittered, so that fifty processes do not come back in the same second, and silent between the
line that says the broker was lost and the line that says it is back, save for one a minute.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPError

from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.broker.wire import BrokerLost, Wire, bounded, reason_of
from bellwire_runtime.left_behind import forget
from bellwire_schema.errors import QueueMismatch

__all__ = ["BrokerOwner", "Generation", "backoff"]

log = structlog.get_logger("bellwire.broker")
_BLOCKED_AFTER = 0.2
_STEADY = 5.0
_FLAPS = 5


class Generation:
    """One connection and what is built on it, until the first of it breaks."""

    def __init__(self, wire: Wire, address: BrokerAddress, *, on_stand: Callable[[], None]) -> None:
        self.connection = wire.connection
        self.timeout = address.timeout
        self._broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_stand = on_stand
        wire.connection.close_callbacks.add(self._connection_closed)

    async def open_channel(self, *, confirms: bool) -> AbstractChannel:
        """A channel that this generation lives and dies with."""
        channel = self.connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await bounded(channel.initialize(), within=self.timeout, what="open a channel")
        channel.close_callbacks.add(self._channel_closed)
        return channel

    def stand(self) -> None:
        """All is built: from here on the broker counts as well."""
        self._on_stand()

    def end(self, reason: str) -> None:
        """Something on it broke; only the first reason counts. From the event loop."""
        if not self._broken.done():
            self._broken.set_result(reason)

    @property
    def over(self) -> bool:
        return self._broken.done()

    async def broken(self) -> str:
        """Wait for the reason."""
        return await asyncio.shield(self._broken)

    async def blocked(self) -> bool:
        """Whether the broker has stopped reading from us (a memory or disk alarm)."""
        transport = self.connection.transport
        if transport is None:
            return False
        ready = asyncio.ensure_future(_awaited(transport.ready()))
        done, _ = await asyncio.wait({ready}, timeout=_BLOCKED_AFTER)
        ready.cancel()
        return not done

    def _connection_closed(self, _connection: object, error: BaseException | None) -> None:
        self.end(f"connection closed: {reason_of(error)}" if error else "connection closed")

    def _channel_closed(self, _channel: object, error: BaseException | None) -> None:
        self.end(f"channel closed: {reason_of(error)}" if error else "channel closed")


Session = Callable[[Generation], Awaitable[None]]
"""Builds everything, calls `stand()`, and stays until it breaks; it is cancelled when the generation ends."""


class BrokerOwner:
    """Runs `session` on one connection after another until it is stopped."""

    def __init__(
        self,
        *,
        address: BrokerAddress,
        name: str,
        session: Session,
        on_change: Callable[[bool], None] | None = None,
        backoff_cap: float = 2.5,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._address = address
        self._session = session
        self._on_change = on_change or _ignored
        self._cap = backoff_cap
        self._rng = rng or random.Random()  # noqa: S311 (jitter, no secret)
        self._clock = clock
        self._failures = 0
        self._lost_at: float | None = clock()
        self._said_at = float("-inf")
        self._said: str | None = None
        self._losses: deque[float] = deque(maxlen=_FLAPS)
        self._flaps_said_at = float("-inf")
        self._quiet = False
        self._stood_at = 0.0
        self.well = False
        """Whether everything stands right now."""
        self.connects = 0
        """How often it came to stand."""
        self.error: str | None = "not connected yet"
        """Why it does not stand; None while it does."""
        self.mismatch: QueueMismatch | None = None
        """The last try found a queue with other arguments."""
        self._settled = asyncio.Event()

    @property
    def down(self) -> str | None:
        """For health: why the broker is not well; None while it is."""
        if self._lost_at is None:
            return None
        return f"no broker ({self.name}) for {self._clock() - self._lost_at:.0f} s: {self.error}"

    async def first(self, *, within: float | None) -> None:
        """Wait for the first try to stand or to fail, so many seconds (None: however long).

        Raises `QueueMismatch` if it found one.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._settled.wait()
        if self.mismatch is not None:
            raise self.mismatch

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then the connection is closed, by force if it must be."""
        _calm(asyncio.get_running_loop())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                try:
                    await self._generation(stopping)
                except Exception as error:  # noqa: BLE001 (a session's failures are classified here)
                    self._lost(error)
                self._settled.set()
                if not stop.is_set():
                    await asyncio.wait({stopping}, timeout=self._pause())
        finally:
            stopping.cancel()
            if self.well:
                self._change(well=False)
            self.error = "stopped"

    async def _generation(self, stopping: "asyncio.Future[Any]") -> None:
        wire = await Wire.connect(self._address, name=f"bellwire {self.name}")
        generation = Generation(wire, self._address, on_stand=self._found)
        session: asyncio.Task[None] = asyncio.ensure_future(_awaited(self._session(generation)))
        broken = asyncio.ensure_future(generation.broken())
        try:
            await asyncio.wait({session, broken, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if session.done() and not session.cancelled() and (error := session.exception()):
                raise error
            if broken.done():
                raise BrokerLost(broken.result())
            if not stopping.done():
                raise BrokerLost("its session ended")
        finally:
            if self.well:
                self._change(well=False)
            generation.end("discarded")
            broken.cancel()
            session.cancel()
            session.add_done_callback(forget)
            await asyncio.wait({session}, timeout=1.0)
            await wire.discard(within=1.0 if stopping.done() else 0.3)

    def _found(self) -> None:
        now = self._clock()
        if self.well:
            return
        self._stood_at = now
        if self._quiet:
            self._quiet = False
        elif self.connects or self._said is not None:
            away = 0.0 if self._lost_at is None else now - self._lost_at
            log.info("broker back", connection=self.name, seconds=round(away, 1))
        else:
            log.info("broker found", connection=self.name, broker=self._address.shown)
        self.connects += 1
        self._lost_at = self._said = self.error = self.mismatch = None
        self._change(well=True)
        self._settled.set()

    def _lost(self, error: Exception) -> None:
        now = self._clock()
        # One that stood for a while starts the backoff anew; one that falls at once goes on with it.
        self._failures = 1 if now - self._stood_at > _STEADY and self._lost_at is None else self._failures + 1
        self._lost_at = now if self._lost_at is None else self._lost_at
        self.mismatch = error if isinstance(error, QueueMismatch) else None
        self.error = reason_of(error)
        if self._said is not None and now - self._said_at < 60:
            return
        if self._said is None and self._flaps(now):
            self._said, self._said_at = self.error, now
            return
        weather = isinstance(error, OSError | AMQPError | TimeoutError | QueueMismatch)
        log.warning(
            "broker lost; jobs are found by polling meanwhile"
            if self._said is None
            else "broker still lost; jobs are found by polling meanwhile",
            connection=self.name,
            broker=self._address.shown,
            error=self.error,
            exc_info=None if weather else error,
        )
        self._said, self._said_at = self.error, now

    def _flaps(self, now: float) -> bool:
        """Whether it comes and goes; then that is said once a minute, instead of each change."""
        often = len(self._losses) == _FLAPS and now - self._losses[0] < 60
        self._losses.append(now)
        self._quiet = often
        if often and now - self._flaps_said_at >= 60:
            self._flaps_said_at = now
            log.warning(
                "broker comes and goes; jobs are found by polling meanwhile",
                connection=self.name,
                broker=self._address.shown,
                error=self.error,
                connects=self.connects,
            )
        return often

    def _pause(self) -> float:
        return backoff(self._failures, cap=self._cap, rng=self._rng)

    def _change(self, *, well: bool) -> None:
        self.well = well
        self._on_change(well)


def backoff(failures: int, *, cap: float, rng: random.Random) -> float:
    """Seconds before the next try, after so many in a row; drawn over the whole range, so that those who
    lost the same broker at the same moment drift apart.
    """
    return rng.uniform(0.1, min(cap, 0.2 * 2.0 ** min(failures, 10)))


def _calm(loop: asyncio.AbstractEventLoop) -> None:
    """What the library's background tasks end with is said by the owner, once, in its own words."""
    for name in ("aiormq", "aio_pika"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL + 1)
    before = loop.get_exception_handler()
    if getattr(before, "calm", False):
        return

    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, AMQPError | OSError | asyncio.CancelledError):
            log.debug("background task of the broker's library", error=type(error).__name__)
        elif before is None:
            loop.default_exception_handler(context)
        else:
            before(loop, context)

    handler.calm = True  # type: ignore[attr-defined]
    loop.set_exception_handler(handler)


async def _awaited(call: Awaitable[Any]) -> None:
    await call


def _ignored(_well: bool) -> None:
    pass
