"""A slot is held from before the claim until the attempt's ending is in the database, so that the rows
running under this process never outnumber its slots, whatever is in flight.

The set of running leases is read by the heartbeat thread while the loop changes it: copying a set is one
step under the interpreter's lock, and a lease that is in one copy too many is beaten once too often, which
is harmless.
"""

from collections.abc import Callable

from bellwire_consumer.lease import Lease

__all__ = ["Slots"]


class Slots:
    """`total` slots; `on_free` is called when some have become free."""

    def __init__(self, *, total: int) -> None:
        self.total = total
        self.running: set[Lease] = set()
        self.on_free: Callable[[], None] = _nothing
        self._claiming = 0

    @property
    def free(self) -> int:
        return self.total - len(self.running) - self._claiming

    def reserve(self, count: int) -> None:
        """Before a claim for `count` jobs is sent."""
        self._claiming += count

    def unreserve(self, count: int) -> None:
        """When that claim has answered; the leases it brought were added first."""
        self._claiming -= count

    def take(self, lease: Lease) -> None:
        self.running.add(lease)

    def give_back(self, lease: Lease) -> None:
        """The attempt has ended. `freed` follows, once for all that ended together."""
        self.running.discard(lease)

    def freed(self) -> None:
        self.on_free()

    def snapshot(self) -> list[Lease]:
        return list(self.running)


def _nothing() -> None:
    pass
