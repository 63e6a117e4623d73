"""When to raise the sleep flag: it costs submitters a NOTIFY, so it is up only while few of them come.

With the flag up a submit notifies, and the relay hears of a lone job within a millisecond; under load the
same NOTIFY would serialise the submitters' commits. So the flag goes up when the next look is some way off
and few jobs have gone lately, comes down when notifications come thick, and after such a storm stays down a
while, longer each time it proves wrong. It is written at most once a second, and never believed past the
ownership's end.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

__all__ = ["Drowsiness"]


class Drowsiness:
    """Decides; somebody else writes, and says so by `slept` and `woke`."""

    def __init__(
        self,
        *,
        worth: float = 0.02,
        storm: int = 20,
        between_writes: float = 1.0,
        margin: float = 1.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worth = worth
        self._storm = storm
        self._between = between_writes
        self._margin = margin
        self._clock = clock
        self._until = float("-inf")
        self._written = float("-inf")
        self._nudges: deque[float] = deque(maxlen=storm + 1)
        self._gone: deque[tuple[float, int]] = deque()
        self._gone_lately = 0
        self._awake_until = float("-inf")
        self._awake_for = 2.0

    @property
    def up(self) -> bool:
        """Whether the flag is up as far as this process knows."""
        return self._clock() < self._until

    def nudged(self) -> None:
        """A submit notified."""
        self._nudges.append(self._clock())

    def admitted(self, count: int) -> None:
        """So many jobs went. Where they go thick a flag would only hold up who submits them."""
        now = self._clock()
        if count:
            self._gone.append((now, count))
            self._gone_lately += count
        while self._gone and self._gone[0][0] < now - 1.0:
            self._gone_lately -= self._gone.popleft()[1]
        if self._gone_lately > self._storm:
            self._awake_until = max(self._awake_until, now + 1.0)

    def wanted(self, pause: float) -> Literal["sleep", "wake"] | None:
        """What to write before a pause of this length; None: nothing."""
        now = self._clock()
        if now - self._written < self._between:
            return None
        storming = len(self._nudges) > self._storm and now - self._nudges[0] < 1.0
        if self.up:
            if storming:
                return "wake"
            return "sleep" if self._until - now < self._margin else None
        return "sleep" if pause >= self._worth and now >= self._awake_until else None

    def slept(self, until: float) -> bool:
        """The flag was raised until then. True: it had been down, so look once more before sleeping."""
        now = self._clock()
        was_up = self.up
        self._until = until
        self._written = now
        if now - self._awake_until > 30.0:
            self._awake_for = 2.0
        return not was_up

    def woke(self) -> None:
        """The flag was lowered."""
        now = self._clock()
        self._until = float("-inf")
        self._written = now
        self._nudges.clear()
        self._awake_until = now + self._awake_for
        self._awake_for = min(30.0, self._awake_for * 2)

    def forget(self) -> None:
        """The flag is no longer known to be up everywhere: kinds were gained, or LISTEN fell."""
        self._until = float("-inf")

    def pause(self, pause: float, *, pressed: bool, floor: float) -> float:
        """The pause to make. `pressed`: slots or caps are waited for, which nobody notifies."""
        left = self._until - self._clock()
        if left > 0 and not pressed:
            # Not past the flag's end: from there on nobody notifies.
            return min(floor, left)
        return min(pause, 0.05) if self._clock() < self._awake_until else pause
