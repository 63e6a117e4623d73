"""How fast hints are taken, seen from outside: what was out, plus what went out, less what is out now.

Claims are made by consumers, in their own transactions; the relay never hears of one. But it knows what it
admitted and is told what is still unclaimed, and the difference is what the window may be widened by.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

__all__ = ["ClaimRate", "Line"]

Line = tuple[str, int]
"""A kind and a version."""


class ClaimRate:
    """Claims of the last `period` seconds, by kind and version."""

    def __init__(self, *, period: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._period = period
        self._clock = clock
        self._out: dict[Line, int] = {}
        self._claims: deque[tuple[float, Line, int]] = deque()
        self._sums: dict[Line, int] = {}

    def saw(self, admitted: Mapping[Line, int], outstanding: Mapping[Line, int]) -> None:
        """One admission: what it let go, and what is unclaimed after it (nothing, where not named)."""
        now = self._clock()
        for line in {*self._out, *outstanding, *admitted}:
            gone = self._out.get(line, 0) + admitted.get(line, 0) - outstanding.get(line, 0)
            # Below zero: another relay's admissions, found at a take-over.
            if gone > 0:
                self._claims.append((now, line, gone))
                self._sums[line] = self._sums.get(line, 0) + gone
        self._out = {line: n for line, n in outstanding.items() if n > 0}
        self._forget(now)

    def recent(self) -> dict[Line, int]:
        """Claims within the period, for those lines that had any."""
        self._forget(self._clock())
        return dict(self._sums)

    def _forget(self, now: float) -> None:
        while self._claims and self._claims[0][0] <= now - self._period:
            _, line, gone = self._claims.popleft()
            left = self._sums[line] - gone
            if left > 0:
                self._sums[line] = left
            else:
                del self._sums[line]
