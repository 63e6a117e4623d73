"""What this relay serves, and until when it may believe so: counted from before the call that said it.

The database alone decides (every admission is guarded by the token); the local view only saves calls that
would find nothing, so it errs on the short side. When the database is away the ownership runs out on both
sides, and another relay takes over within its length.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from bellwire_relay import server_calls
from bellwire_runtime.database import SupervisedConnection

__all__ = ["REST", "BrokerReport", "Identity", "Ownership", "OwnershipLoop"]

REST = "*"
"""The reserved name of what belongs to no kind: promote, recover, expire, mend, measure."""

log = structlog.get_logger("bellwire.relay")


class Identity:
    """Who this relay is. New at each start, as is its token: a process that froze is not its successor."""

    def __init__(self, *, relay: UUID, token: UUID, host: str, pid: int, version: str) -> None:
        self.relay = relay
        self.token = token
        self.host = host
        self.pid = pid
        self.version = version


@dataclass(frozen=True)
class BrokerReport:
    """What other relays, and `doctor`, are told of this one's broker; `well` is None where none was given.

    `avoid` are kinds of which it could publish nothing for an ownership's length.
    """

    well: bool | None = None
    error: str | None = None
    avoid: Sequence[str] = ()


class Ownership:
    """The local view."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: frozenset[str] = frozenset()
        self._until = float("-inf")

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds served now, `*` left out."""
        return self._kinds - {REST} if self._clock() < self._until else frozenset()

    @property
    def rest(self) -> bool:
        """Whether the housekeeping is ours."""
        return REST in self._kinds and self._clock() < self._until

    @property
    def until(self) -> float:
        """Monotonic time at which the ownership ends unless it is renewed."""
        return self._until

    def renewed(self, kinds: Iterable[str], until: float) -> tuple[frozenset[str], frozenset[str]]:
        """The database's answer; what was gained and what was lost by it."""
        now = frozenset(kinds)
        before = self._kinds if self._clock() < self._until else frozenset()
        self._kinds, self._until = now, until
        return now - before, before - now

    def gone(self) -> None:
        """Everything was let go."""
        self._kinds, self._until = frozenset(), float("-inf")


class OwnershipLoop:
    """Renews, lets go of the surplus, takes what is free: one statement."""

    name = "ownership"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        identity: Identity,
        ownership: Ownership,
        length: float,
        on_gain: Callable[[frozenset[str]], None] = lambda _kinds: None,
        broker: Callable[[], BrokerReport] = BrokerReport,
        rng: random.Random | None = None,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._ownership = ownership
        self._length = length
        self._on_gain = on_gain
        self._broker = broker
        self._rng = rng or random.Random()  # noqa: S311 (spreads relays apart, no secret)
        self._registered = False

    async def run_once(self) -> float | None:
        me, broker = self._identity, self._broker()
        sent = time.monotonic()
        kinds = await self._connection.run(
            lambda conn: server_calls.own(
                conn,
                relay=me.relay,
                token=me.token,
                host=me.host,
                pid=me.pid,
                version=me.version,
                lease=timedelta(seconds=self._length),
                broker_well=broker.well,
                broker_error=broker.error,
                avoid=broker.avoid,
            ),
            # An answer later than this says nothing any more.
            within=self._length,
        )
        self._registered = True
        gained, lost = self._ownership.renewed(kinds, sent + self._length)
        if gained or lost:
            log.info(
                "serving",
                kinds=len(self._ownership.kinds),
                housekeeping=self._ownership.rest,
                gained=len(gained),
                lost=len(lost),
            )
        if gained:
            self._on_gain(gained)
        return self._length / 3 * self._rng.uniform(0.9, 1.1)

    async def let_go(self, *, within: float) -> None:
        """At a stop in order: others take over at once."""
        self._ownership.gone()
        if not self._registered:
            return
        me = self._identity
        await self._connection.run(
            lambda conn: server_calls.disown(conn, relay=me.relay, token=me.token), within=within
        )
