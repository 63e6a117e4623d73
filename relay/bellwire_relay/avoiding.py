"""Kinds of which this relay can publish nothing go to a relay that can, if there is one.

The database decides: it gives avoided kinds away only while another live relay calls its broker well, so no
kind is ever left alone for it. A kind that went stays away for a minute, so that a broker that comes and goes
does not send kinds to and fro; one that nobody could take is not avoided any longer than the trouble lasts.
"""

import time
from collections.abc import Callable, Collection

from bellwire_relay.ownership import BrokerReport, Ownership
from bellwire_relay.publishing import Publisher

__all__ = ["Avoidance", "Reporting"]


class Avoidance:
    """`patience`: how long a kind must have been mute, in seconds; `away`: how long it then stays away."""

    def __init__(
        self, *, patience: float, away: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience = patience
        self._away = away
        self._clock = clock
        self._mute_since: dict[str, float] = {}
        self._until: dict[str, float] = {}

    def look(self, *, owned: Collection[str], mute: Collection[str]) -> list[str]:
        """The kinds to avoid now. `mute`: those of which nothing can be published."""
        now = self._clock()
        self._mute_since = {kind: self._mute_since.get(kind, now) for kind in mute}
        for kind in owned:
            if kind not in self._mute_since:
                self._until.pop(kind, None)
            elif now - self._mute_since[kind] >= self._patience:
                self._until[kind] = now + self._away
        self._until = {kind: until for kind, until in self._until.items() if until > now}
        return sorted(self._until)


class Reporting:
    """What this relay says of its broker each time it renews what it serves.

    After an outage that was long enough to let kinds go, it is back only when it has been for as long: relays
    that all lost one broker come back seconds apart, and the first must not be handed the kinds of the rest.
    """

    def __init__(
        self,
        *,
        publisher: Publisher,
        ownership: Ownership,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._ownership = ownership
        self._patience = patience
        self._clock = clock
        self._avoidance = Avoidance(patience=patience, clock=clock)
        self._long = False
        self._back_at: float | None = None

    def __call__(self) -> BrokerReport:
        publisher, owned = self._publisher, self._ownership.kinds
        mute = publisher.queues.mute_kinds() & owned if publisher.well else owned
        avoid = self._avoidance.look(owned=owned, mute=mute)
        error = publisher.error
        if not publisher.rings:
            self._back_at = None
            self._long = self._long or bool(avoid)
            # Only who calls itself unwell is left out when the others share the kinds among themselves.
            return BrokerReport(well=False, error=error or "not all queues are known yet", avoid=avoid)
        now = self._clock()
        if self._back_at is None:
            self._back_at = now
        if self._long and now - self._back_at < self._patience:
            return BrokerReport(well=False, error=f"back for {now - self._back_at:.0f} s", avoid=avoid)
        self._long = False
        if avoid:
            error = "back; kinds that went to another relay stay there for a minute"
            return BrokerReport(well=False, error=error, avoid=avoid)
        return BrokerReport(well=True)
