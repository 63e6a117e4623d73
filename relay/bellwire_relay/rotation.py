"""Order across tenants: weighted round-robin from a remembered place, so a flood waits behind its own turn.

Tenants are walked by name from the cursor on; each turn takes up to the tenant's weight, and a turn that the
quota cut short goes on where it stopped (`spent`), so that weights hold even when a cycle admits one job at
a time. Between two turns of a tenant every other waiting tenant has at most one turn, which bounds what a
flood can cost its neighbours. The database does the same in bulk; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Place", "Queue", "Turns", "rotate"]


@dataclass(frozen=True)
class Place:
    """Where the walk stands: in the turn of `tenant`, which has taken `spent` of its weight."""

    tenant: str = ""
    spent: int = 0


@dataclass(frozen=True)
class Queue:
    """One tenant's side: how many wait, how many of them its cap and pauses still allow, its weight."""

    waiting: int
    allowed: int | None = None
    weight: int = 1

    @property
    def available(self) -> int:
        return self.waiting if self.allowed is None else min(self.waiting, max(0, self.allowed))


@dataclass(frozen=True)
class Turns:
    """What each tenant may send now, in the order of the walk, and where to go on next time."""

    taken: Mapping[str, int]
    place: Place


def rotate(queues: Mapping[str, Queue], place: Place, quota: int) -> Turns:
    """Deal out `quota` places. Gives exactly min(quota, all available) of them."""
    left = {name: queue.available for name, queue in queues.items() if queue.available > 0}
    taken: dict[str, int] = {}
    while quota > 0 and left:
        name, spent = _whose_turn(left, place, queues)
        n = min(queues[name].weight - spent, left[name], quota)
        taken[name] = taken.get(name, 0) + n
        quota -= n
        left[name] -= n
        place = Place(name, spent + n)
        if left[name] == 0:
            # Nothing more to give: its turn is over, whatever it left of it.
            del left[name]
            place = Place(name, queues[name].weight)
    return Turns(taken, place)


def _whose_turn(left: Mapping[str, int], place: Place, queues: Mapping[str, Queue]) -> tuple[str, int]:
    """The tenant, and how much of its weight this turn has used already."""
    if place.tenant in left and 0 < place.spent < queues[place.tenant].weight:
        return place.tenant, place.spent
    return next((name for name in sorted(left) if name > place.tenant), min(left)), 0
