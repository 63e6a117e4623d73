"""A small world to watch the two rules of order in: tenants, arrivals, slots, and a clock that counts.

It admits as the relay does (as late as possible, at most a window ahead of the slots) and runs jobs of one
length, so a wait is the scheduler's doing and nothing else's.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bellwire_relay.rank import rank
from bellwire_relay.rotation import Place, Queue, rotate

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Arrival:
    at: int
    tenant: str
    priority: int = 0


@dataclass(frozen=True)
class Started:
    arrival: Arrival
    at: int

    @property
    def wait(self) -> int:
        return self.at - self.arrival.at


@dataclass
class World:
    """One kind. Times are whole seconds; every job takes `length`."""

    slots: int
    length: int = 1
    aging: timedelta = timedelta(seconds=60)
    weights: dict[str, int] = field(default_factory=dict)
    ahead: int = 1
    """Hints that are out beyond the free slots: what "finished in the last second, at least 1" comes to."""

    def run(self, arrivals: Iterable[Arrival], *, until: int = 100_000) -> list[Started]:
        """Start everything that arrives, in the order the rules give. Stops early when all is done."""
        coming = sorted(arrivals, key=lambda a: a.at)
        waiting: dict[str, list[tuple[datetime, int, Arrival]]] = {}
        out: list[Arrival] = []
        busy: list[int] = []
        started: list[Started] = []
        place, number = Place(), 0
        for now in range(until):
            while number < len(coming) and coming[number].at <= now:
                arrival = coming[number]
                eligible = EPOCH + timedelta(seconds=arrival.at)
                heapq.heappush(
                    waiting.setdefault(arrival.tenant, []),
                    (rank(eligible, arrival.priority, self.aging), number, arrival),
                )
                number += 1
            while busy and busy[0] <= now:
                heapq.heappop(busy)
            free = self.slots - len(busy)
            quota = free + self.ahead - len(out)
            queues = {
                name: Queue(waiting=len(queue), weight=self.weights.get(name, 1))
                for name, queue in waiting.items()
                if queue
            }
            turns = rotate(queues, place, max(0, quota))
            place = turns.place
            for name, count in turns.taken.items():
                out += [heapq.heappop(waiting[name])[2] for _ in range(count)]
            for arrival in out[:free]:
                started.append(Started(arrival, now))
                heapq.heappush(busy, now + self.length)
            del out[:free]
            if number == len(coming) and not out and not any(waiting.values()):
                break
        return started
