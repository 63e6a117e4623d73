"""Renews leases from a thread with a connection and an event loop of its own, so that a blocked handler
loop cannot starve them.

Each lease is renewed when a third of it has passed since it was last *sent*; one statement takes along all
that are nearly due. What the server answers travels to the handler loop: lost, past a limit, or asked to
cancel. A row that is busy is somebody's open transaction: still ours, renewed at the next beat. The same
thread keeps the registry entry alive, and asks after claims in doubt.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

import psycopg
import structlog

from bellwire_consumer import server_calls
from bellwire_consumer.identity import Identity
from bellwire_consumer.lease import CancelRequest, Gone, Lease
from bellwire_consumer.server_calls import Beat
from bellwire_consumer.slots import Slots
from bellwire_runtime.database import Connection, SupervisedConnection, is_transient

__all__ = ["REGISTER_EVERY_S", "Heartbeat"]

T = TypeVar("T")
log = structlog.get_logger("bellwire.consumer")
REGISTER_EVERY_S = 5.0
"""A consumer counts as alive for 15 s after it was last heard."""
MAX_BATCH = 500
_DOUBT_EVERY_S = 1.0
_REGISTER_AGAIN_S = 1.0
_STOP_S = 5.0


def _hears_nothing() -> tuple[bool | None, str | None]:
    return None, None


class Heartbeat:
    """`end` and `on_looked` are called on the handlers' loop; `hears` is asked in the thread: whether the
    broker is heard (None: there is none), and why not.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], SupervisedConnection],
        identity: Identity,
        slots: Slots,
        longest_lease: float,
        end: Callable[[Lease, Gone], None],
        on_looked: Callable[[], None],
        hears: Callable[[], tuple[bool | None, str | None]] = _hears_nothing,
    ) -> None:
        self._connect = connect
        self._identity = identity
        self._slots = slots
        self._longest_lease = longest_lease
        self._end = end
        self._on_looked = on_looked
        self._hears = hears
        self._home = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name="bellwire-heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nudge: asyncio.Event | None = None
        self._next_wake = 0.0
        self._shortest = 30.0
        self._stopping = False
        self._leaving = False
        self._register_soon = False
        self._fresh_doubts: list[tuple[str, ...]] = []
        self._doubts: dict[str, float] = {}
        self._connection: SupervisedConnection | None = None
        self.registered = asyncio.Event()
        self.last_success = time.monotonic()
        self._said_at = 0.0

    # --- asked by the handlers' loop ---

    def start(self) -> None:
        self._thread.start()

    def doubt(self, tokens: Sequence[str]) -> None:
        """A claim with these tokens was sent and not answered."""
        self._fresh_doubts.append(tuple(tokens))
        self._wake()

    @property
    def in_doubt(self) -> bool:
        """Whether a claim in doubt was not looked for yet."""
        return bool(self._fresh_doubts)

    def watch_over(self, lease: float) -> None:
        """A lease of this many seconds was claimed: make sure to be awake in time."""
        self._shortest = min(self._shortest, lease)
        if time.monotonic() + lease / 3 < self._next_wake:
            self._wake()

    def register_now(self) -> None:
        """What the registry should say of this consumer has changed."""
        self._register_soon = True
        self._wake()

    def stopping(self) -> None:
        """From now on nothing is claimed; leases are renewed as before."""
        self._stopping = True
        self._wake()

    @property
    def down(self) -> str | None:
        """For health: why heartbeats do not get through."""
        silent = time.monotonic() - self.last_success
        if silent > 3 * REGISTER_EVERY_S:
            return f"no heartbeat got through for {silent:.0f} s"
        return None

    async def close(self) -> None:
        """Leave the registry and end the thread, within a few seconds whatever the database does."""
        self._leaving = True
        self._wake()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, _STOP_S)

    def _wake(self) -> None:
        loop, nudge = self._loop, self._nudge
        if loop is not None and nudge is not None:
            try:
                loop.call_soon_threadsafe(nudge.set)
            except RuntimeError:
                return

    # --- the thread ---

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._nudge = asyncio.Event()
        self._connection = self._connect()
        register_at = 0.0
        told_stopping = registered = False
        try:
            while not self._leaving:
                self._nudge.clear()
                # The leases first and by themselves: a registry row that somebody holds must not cost them.
                if not await self._done(self._keep_leases):
                    await asyncio.sleep(0.05)
                    continue
                now = time.monotonic()
                if now >= register_at or self._stopping != told_stopping or self._register_soon:
                    told_stopping = self._stopping
                    self._register_soon = False
                    registered = await self._done(self._register)
                    register_at = now + (REGISTER_EVERY_S if registered else _REGISTER_AGAIN_S)
                if registered:
                    self.last_success = time.monotonic()
                await self._sleep(register_at)
            await self._leave()
        finally:
            await self._connection.close()

    async def _done(self, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except Exception as error:  # noqa: BLE001 (weather or bug, the leases must be renewed)
            self._note(error)
            return False
        return True

    async def _keep_leases(self) -> None:
        await self._renew()
        await self._look_for_doubts()

    @property
    def _patience(self) -> float:
        # No longer than a beat may take: a connection that hangs is given up while there is a lease to save.
        return max(1.0, self._shortest / 3)

    async def _call(self, call: Callable[[Connection], Awaitable[T]], *, within: float) -> T:
        assert self._connection is not None  # noqa: S101 (made before anything is called)
        return await self._connection.run(call, within=within)

    async def _register(self) -> None:
        who = self._identity
        hears, hears_error = self._hears()
        await self._call(
            within=self._patience / 2,
            call=lambda conn: server_calls.beat_consumer(
                conn,
                consumer=who.id,
                app=who.app,
                version=who.app_version,
                host=who.host,
                pid=who.pid,
                slots=who.slots,
                kinds=who.kinds,
                versions=who.versions,
                stopping=self._stopping,
                hears=hears,
                hears_error=hears_error,
            ),
        )
        self._home.call_soon_threadsafe(self.registered.set)

    async def _renew(self) -> None:
        now = time.monotonic()
        # Whoever is nearly due comes along, so that leases of one claim keep being renewed together.
        due = [
            lease
            for lease in self._slots.snapshot()
            if lease.next_beat - lease.seconds / 12 <= now and not lease.settled and lease.gone is None
        ]
        for at in range(0, len(due), MAX_BATCH):
            await self._beat(due[at : at + MAX_BATCH])

    async def _beat(self, due: list[Lease]) -> None:
        going = []
        for lease in due:
            # In this order: whoever pauses the beats looks for this flag after it has paused.
            lease.beating = True
            if lease.paused:
                lease.beating = False
            else:
                going.append(lease)
        if not going:
            return
        sent = time.monotonic()
        try:
            beats = await self._call(lambda conn: server_calls.heartbeat(conn, going), within=self._patience)
        finally:
            for lease in going:
                lease.beating = False
        told = {beat.token: beat for beat in beats}
        for lease in going:
            beat = told.get(lease.token)
            if beat is not None:
                self._file(lease, beat, sent)

    def _file(self, lease: Lease, beat: Beat, sent: float) -> None:
        lease.busy = beat.status == "busy"
        match beat.status:
            case "alive":
                lease.expires = sent + lease.seconds
                lease.next_beat = sent + lease.seconds / 3
            case "busy":
                lease.next_beat = sent + min(1.0, lease.seconds / 6)
            case "lost" | "timed_out" | "stalled" as reason:
                lease.next_beat = sent + lease.seconds / 3
                self._home.call_soon_threadsafe(self._ended, lease, reason)
        if beat.cancel_requested_at is not None and lease.cancel is None:
            self._home.call_soon_threadsafe(self._cancelled, lease, beat, beat.cancel_requested_at)

    def _ended(self, lease: Lease, reason: Gone) -> None:
        # While a settle or a completing transaction is in flight, its own answer decides.
        if not lease.settling and not lease.settled:
            self._end(lease, reason)

    def _cancelled(self, lease: Lease, beat: Beat, at: datetime) -> None:
        lease.cancel = CancelRequest(beat.cancel_actor, beat.cancel_reason, at)
        if lease.handler.handler.interruptible:
            self._end(lease, "interrupted")

    async def _look_for_doubts(self) -> None:
        now = time.monotonic()
        fresh, self._doubts = list(self._fresh_doubts), {t: u for t, u in self._doubts.items() if u > now}
        for tokens in fresh:
            self._doubts.update(dict.fromkeys(tokens, now + self._longest_lease + 5.0))
        if not self._doubts:
            return
        doubted = list(self._doubts)
        released = await self._call(
            lambda conn: server_calls.release_doubtful(conn, self._identity.id, doubted),
            within=self._patience,
        )
        if released:
            log.info("handed back what an unanswered claim had brought", jobs=len(released))
        if fresh:
            del self._fresh_doubts[: len(fresh)]
            self._home.call_soon_threadsafe(self._on_looked)

    async def _sleep(self, register_at: float) -> None:
        wake = register_at
        for lease in self._slots.snapshot():
            if not lease.settled and lease.gone is None:
                pause = lease.next_beat if not lease.paused else max(lease.next_beat, time.monotonic() + 0.1)
                wake = min(wake, pause)
        if self._doubts:
            wake = min(wake, time.monotonic() + _DOUBT_EVERY_S)
        self._next_wake = wake
        if self._fresh_doubts or self._leaving:
            return
        try:
            async with asyncio.timeout(max(0.0, wake - time.monotonic())):
                await self._nudge.wait()  # type: ignore[union-attr]
        except TimeoutError:
            return

    async def _leave(self) -> None:
        try:
            # A claim that was cut short by the stop itself: handed back now rather than found by its lease.
            await self._look_for_doubts()
            await self._call(lambda conn: server_calls.forget_consumer(conn, self._identity.id), within=2.0)
        except (psycopg.Error, OSError, TimeoutError):
            # The registry forgets by itself whom it has not heard.
            return

    def _note(self, error: Exception) -> None:
        now = time.monotonic()
        if not is_transient(error) and now - self._said_at >= 60:
            self._said_at = now
            log.error("heartbeat failed", exc_info=error)
