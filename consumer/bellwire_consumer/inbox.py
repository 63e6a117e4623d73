"""Hints that were heard and not looked at yet. A hint is never held for longer than a second.

So the broker never waits for a handler, and its acknowledgement timeout, delivery limits and redeliveries
have nothing to say about jobs. What the hint named and no slot was free for is still known after that, and is
the first thing to look at when one is: nothing is reserved by it, and who has a slot before takes it by the
net. Only so many ids are known as are worth it; older ones are forgotten: their wake-ups stay admitted, and
polling or the next hint finds them. Acknowledgements belong to the channel that delivered: those of a channel
that is gone are dropped.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["HOLD_S", "Inbox", "Mouth"]

HOLD_S = 0.9
"""How long a hint is held at the most, in seconds; the rest of the second is for the acknowledgement."""


class Mouth(Protocol):
    """A channel to acknowledge on."""

    def acknowledge(self, tag: int) -> None: ...


class _Heard:
    """One delivery: the ids not taken yet, and how many taken ones have not been answered."""

    __slots__ = ("acknowledged", "ids", "mouth", "out", "since", "tag")

    def __init__(self, ids: Sequence[str], mouth: Mouth, tag: int, since: float) -> None:
        self.ids = deque(ids)
        self.mouth = mouth
        self.tag = tag
        self.since = since
        self.out = 0
        self.acknowledged = False

    def acknowledge(self) -> None:
        if not self.acknowledged:
            self.acknowledged = True
            self.mouth.acknowledge(self.tag)


class Inbox:
    """At most `known` ids are remembered from hints that found no slot in time.

    `on_hint` is called when something came, `on_late` when a hint was let go before all of it was taken, and
    `on_forgotten` with the number of ids that were too many to remember.
    """

    def __init__(
        self,
        *,
        on_hint: Callable[[], None],
        on_late: Callable[[], None],
        on_forgotten: Callable[[int], None],
        known: int,
        hold: float = HOLD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_hint = on_hint
        self._on_late = on_late
        self._on_forgotten = on_forgotten
        self._limit = known
        self._known: deque[str] = deque()
        self._hold = hold
        self._clock = clock
        self._heard: deque[_Heard] = deque()
        self._taken: list[tuple[_Heard, int]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._known) or any(heard.ids for heard in self._heard)

    def hear(self, ids: Sequence[str], mouth: Mouth, tag: int) -> None:
        """A hint was delivered. From the event loop."""
        self._heard.append(_Heard(ids, mouth, tag, self._clock()))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._hold, self._let_go)
        self._on_hint()

    def take(self, limit: int) -> list[str]:
        """The oldest ids, at most `limit`, for one claim; `answered` must follow before the next."""
        taken = [self._known.popleft() for _ in range(min(limit, len(self._known)))]
        for heard in self._heard:
            count = min(limit - len(taken), len(heard.ids))
            if count:
                taken += [heard.ids.popleft() for _ in range(count)]
                heard.out += count
                self._taken.append((heard, count))
            if len(taken) == limit:
                break
        return taken

    def answered(self) -> None:
        """The claim for what was taken has ended, whatever it brought."""
        taken, self._taken = self._taken, []
        for heard, count in taken:
            heard.out -= count
            if not heard.ids and not heard.out:
                heard.acknowledge()
        while self._heard and not self._heard[0].ids and not self._heard[0].out:
            self._heard.popleft()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heard.clear()
        self._known.clear()

    def _let_go(self) -> None:
        """What was held for long enough is acknowledged, claimed or not."""
        self._timer = None
        until = self._clock() - self._hold + 0.001
        late = False
        while self._heard and self._heard[0].since <= until:
            heard = self._heard.popleft()
            late = late or bool(heard.ids)
            self._known += heard.ids
            heard.ids.clear()
            heard.acknowledge()
        if self._heard:
            wait = max(0.001, self._heard[0].since + self._hold - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self._let_go)
        forgotten = max(0, len(self._known) - self._limit)
        for _ in range(forgotten):
            self._known.popleft()
        if late:
            self._on_late()
        if forgotten:
            self._on_forgotten(forgotten)
