"""How soon to look again: nobody says when a slot is free, so throughput must not be window ÷ poll floor.

While a window or a cap holds something back, the pause halves when more than half of the window had been
taken since the last look, and doubles when none was: from 1 ms up to the floor. Short pauses also grow a
little while less than a third is taken: each look costs the database some 0.5 ms whatever it admits, and with
two thirds of the window still out nobody waits. While there is nothing to hold back it doubles from 1 ms to
the floor and starts over with the next thing found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LEAST", "Look", "Pace"]

LEAST = 0.001
_THRIFTY = 0.016
"""Up to here a pause grows for the sake of larger batches. Beyond it an urgent job would notice."""


@dataclass(frozen=True)
class Look:
    """What one admission found for one kind and version; `held` is why it stopped, None: it had no need."""

    admitted: int
    window: int
    waiting: bool
    held: str | None

    @property
    def pressed(self) -> bool:
        """Something waits for a slot or a cap, which no notification will announce."""
        return self.waiting and self.held in {"window", "cap", "tenant_cap"}

    @property
    def unfinished(self) -> bool:
        """More could go at once."""
        return self.waiting and self.held is None


class Pace:
    """The pause between two admissions, in seconds."""

    def __init__(self, *, floor: float, least: float = LEAST) -> None:
        self._floor = floor
        self._least = least
        self._pressed: float | None = None
        self._idle = least

    @property
    def pressed(self) -> bool:
        """Whether the last pause waits for slots or a cap."""
        return self._pressed is not None

    def after(self, looks: Sequence[Look]) -> float:
        """The pause after a cycle that found this."""
        admitted = sum(look.admitted for look in looks)
        if admitted:
            self._idle = self._least
        if any(look.unfinished and look.admitted for look in looks):
            return 0.0
        if pressed := [look for look in looks if look.pressed]:
            return self._under_pressure(pressed)
        self._pressed = None
        pause, self._idle = self._idle, min(self._floor, self._idle * 2)
        return pause

    def restart(self) -> None:
        """Something is known to have changed: look eagerly for a while."""
        self._pressed = None
        self._idle = self._least

    def _under_pressure(self, looks: Sequence[Look]) -> float:
        if self._pressed is None:
            # From rest the window has just been filled for the first time; the first look follows at once.
            self._pressed = self._least
        elif any(2 * look.admitted > max(1, look.window) for look in looks):
            # All of it taken: somebody may have been waiting, so come down faster.
            drained = any(look.admitted >= max(1, look.window) for look in looks)
            self._pressed = max(self._least, self._pressed / (4 if drained else 2))
        elif not any(look.admitted for look in looks):
            self._pressed = min(self._floor, self._pressed * 2)
        elif self._pressed < _THRIFTY and all(3 * look.admitted < look.window for look in looks):
            self._pressed = min(self._floor, self._pressed * 1.25)
        return self._pressed
