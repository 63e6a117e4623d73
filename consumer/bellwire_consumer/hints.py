"""Where a consumer hears that something was admitted. A hint carries no meaning but "look"; polling is the
floor.

Without a broker the relay notifies one channel of each consumer. LISTEN shares the claim connection, so it
costs no connection of its own: between two claims the event loop watches the socket itself, and during one
psycopg hands over what arrives. A dead LISTEN looks like a quiet one, and costs the poll floor.

With a broker hints name jobs, and polling is the net under them: twice a second, by the clock and not when it
is quiet (or it would starve under steady flow), for what was admitted more than a second ago. Who has more
work than slots is another matter: there a wake-up waits for longer than a second without being lost, and the
net would only take from the hints, one statement for a job or two. So where all slots were taken within the
last second and there are hints to look at, the net takes what is older than ten seconds; so does that of a
consumer that has just registered, for which the queue may have kept some. While the broker cannot be heard
this is a consumer without one, that looks more often.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal, NamedTuple, Protocol
from uuid import UUID

import psycopg
from psycopg import Notify, sql

from bellwire_consumer.inbox import Inbox
from bellwire_runtime.database import Connection

__all__ = ["Announcements", "Doorbell", "HintSource", "Look"]

Source = Literal["hint", "poll"]


class Look(NamedTuple):
    """What to claim: these jobs, or, where `ids` is None, the oldest that were admitted `min_age` ago."""

    ids: Sequence[str] | None = None
    min_age: timedelta = timedelta(0)

    @property
    def source(self) -> Source:
        return "poll" if self.ids is None else "hint"


class HintSource(Protocol):
    """What the claimer asks for."""

    def look(self, limit: int) -> Look | None:
        """What to claim now; None: nothing. `answered` follows each."""

    def answered(self, look: Look, *, wanted: int, claimed: int) -> None:
        """The claim has ended; where it failed, nothing was claimed."""

    @property
    def waiting(self) -> bool:
        """Whether a look is worth it as soon as a slot is free."""

    @property
    def pause(self) -> float:
        """Seconds until the next look, unless something is heard."""

    async def before_claim(self, conn: Connection) -> None: ...
    def after_claim(self, conn: Connection) -> None: ...
    def close(self) -> None: ...


class Announcements:
    """Listens on the consumer's own channel; `on_hint` is called on the event loop."""

    def __init__(
        self, *, consumer: UUID, on_hint: Callable[[], None], poll_floor: float, listen: bool = True
    ) -> None:
        self._channel = f"bellwire_{consumer.hex}"
        self._on_hint = on_hint
        self._listen = listen
        self._conn: Connection | None = None
        self._watched: int | None = None
        self.pause = poll_floor
        self.waiting = False

    def look(self, limit: int) -> Look:  # noqa: ARG002 (this source names no jobs)
        return Look()

    def answered(self, look: Look, *, wanted: int, claimed: int) -> None:  # noqa: ARG002 (as above)
        self.waiting = claimed == wanted

    async def before_claim(self, conn: Connection) -> None:
        """The connection is psycopg's again; a new one is told to listen."""
        self._unwatch()
        if self._listen and conn is not self._conn:
            conn.add_notify_handler(self._notified)
            await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._conn = conn

    def after_claim(self, conn: Connection) -> None:
        """Watch the idle socket until the next claim."""
        if self._listen and conn is self._conn and not conn.closed:
            self._watched = conn.fileno()
            asyncio.get_running_loop().add_reader(self._watched, self._readable, conn)

    def close(self) -> None:
        self._unwatch()
        self._conn = None

    def _unwatch(self) -> None:
        if self._watched is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _readable(self, conn: Connection) -> None:
        try:
            conn.pgconn.consume_input()
            heard = False
            while conn.pgconn.notifies() is not None:
                heard = True
        except psycopg.Error:
            # The server has gone; the next claim finds out, and says so.
            self._unwatch()
            heard = True
        if heard:
            self._on_hint()

    def _notified(self, _note: Notify) -> None:
        self._on_hint()


class Doorbell:
    """Hints from the broker first, announcements where the relay cannot publish, and the net under both."""

    NET_S = 1.0
    """What is older than this is taken by the net, cast twice as often: what no hint brought starts within
    1.5 s. Where polls find a good part of the jobs, hints are being lost, and both become shorter."""
    LEAST_S = 0.1
    LOSING = 0.25
    """Of the jobs of late: found by polls instead of hints."""
    MEMORY_S = 5.0
    """Half of what happened so long ago still counts."""
    AWAY_S = 0.25
    LOST_S = 10.0
    """What is older than this is looked for even where hints could fill every slot; the relay has repeated
    its hint by then."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        announcements: Announcements,
        hearing: Callable[[], bool],
        free: Callable[[], int],
        poll: bool,
        poll_floor: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inbox = inbox
        self._announcements = announcements
        self._hearing = hearing
        self._free = free
        self._poll = poll
        self._away = min(poll_floor, self.AWAY_S)
        self._clock = clock
        self._net_at = float("-inf")
        self._lost_at = float("-inf")
        self._fresh_until = float("-inf")
        self._busy_until = float("-inf")
        self._age = self.NET_S
        self._by_hint = self._by_poll = 0.0
        self._tallied_at = clock()
        self._losing_since: float | None = None
        self._excused_until = float("-inf")
        self._offered = 0
        self._crowded = False
        self._announced = False
        self._full = False

    def announced(self) -> None:
        """The relay notified: it cannot publish just now."""
        self._announced = True
        self._excused_until = self._clock() + self.MEMORY_S

    def registered(self) -> None:
        """This consumer has just (re)registered at the broker: cast the net, after the queue's chance."""
        self._net_at = self._lost_at = float("-inf")
        self._fresh_until = self._clock() + self.NET_S
        # What was polled before says nothing of the hints that come now.
        self._by_hint = self._by_poll = 0.0
        self._losing_since = None

    def check(self) -> None:
        """Cast the net at the next look: a hint was forgotten."""
        self._net_at = float("-inf")

    def freed(self) -> None:
        """A slot is free again."""
        if self._crowded:
            self._crowded = False
            self._busy_until = self._clock() + self.NET_S

    def look(self, limit: int) -> Look | None:
        now = self._clock()
        self._offered = self._free()
        if self._poll and self._announced:
            self._announced = False
            return Look()
        if self._net_due:
            # By the clock, whatever the inbox holds: a net that waits for quiet starves under steady flow.
            self._adapt(now)
            self._net_at = now + self._age / 2
            self._lost_at = now + 2 * self.NET_S
            return Look(min_age=timedelta(seconds=self._age))
        if self._poll and self._hearing() and self._lost_at <= now < max(self._fresh_until, self._busy_until):
            self._lost_at = now + 2 * self.NET_S
            return Look(min_age=timedelta(seconds=self.LOST_S))
        if ids := self._inbox.take(limit):
            return Look(ids)
        return Look() if self._poll and not self._hearing() else None

    def answered(self, look: Look, *, wanted: int, claimed: int) -> None:
        self._inbox.answered()
        if look.ids is not None:
            self._by_hint += claimed
        elif look.min_age:
            # What was announced, or polled while nothing was heard, no hint was to bring.
            self._by_poll += claimed
        if claimed >= self._offered:
            self._crowded = True
            if self._free():
                self.freed()
        if look.ids is None:
            self._full = claimed == wanted
            if self._full and self._hearing():
                self.check()

    def _adapt(self, now: float) -> None:
        """How much of late came by polls decides how patient this cast is."""
        fading = 0.5 ** ((now - self._tallied_at) / self.MEMORY_S)
        self._tallied_at = now
        self._by_hint *= fading
        self._by_poll *= fading
        if self._by_poll >= 0.5 and self._by_poll > self.LOSING * (self._by_hint + self._by_poll):
            self._age = max(self.LEAST_S, self._age / 2)
            # A relay that cannot publish says so by its notifications; then nothing is lost.
            if now < self._excused_until:
                self._losing_since = None
            elif self._losing_since is None:
                self._losing_since = now
        else:
            self._age = min(self.NET_S, self._age * 2)
            self._losing_since = None

    @property
    def losing(self) -> float:
        """For how many seconds polls have found what hints should have brought; 0: hints do."""
        return 0.0 if self._losing_since is None else self._clock() - self._losing_since

    @property
    def waiting(self) -> bool:
        return self._full or self._announced or bool(self._inbox) or self._net_due

    @property
    def pause(self) -> float:
        if not self._hearing():
            return self._away
        if not self._poll:
            return self.NET_S
        return max(0.001, max(self._net_at, self._fresh_until, self._expecting_until) - self._clock())

    @property
    def _net_due(self) -> bool:
        now = self._clock()
        if not self._poll or not self._hearing() or now < max(self._net_at, self._fresh_until):
            return False
        # Patient only while there are hints to look at: a free slot and nothing heard is what the net is for,
        # once a hint that is on its way had the time to come.
        return now >= self._busy_until or (not self._inbox and now >= self._expecting_until)

    @property
    def _expecting_until(self) -> float:
        """Until when a slot that became free waits for a hint; hardly at all where hints are being lost."""
        return self._busy_until - self.NET_S + self._age / 2

    async def before_claim(self, conn: Connection) -> None:
        await self._announcements.before_claim(conn)

    def after_claim(self, conn: Connection) -> None:
        self._announcements.after_claim(conn)

    def close(self) -> None:
        self._announcements.close()
        self._inbox.close()
