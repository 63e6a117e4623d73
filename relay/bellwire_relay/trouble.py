"""What went wrong with hints, kept until it is written onto their wake-ups: in one call, and not too much.

It only explains; what stays admitted is published again by its age whether or not this was ever written.
"""

from collections.abc import Iterable
from itertools import islice
from uuid import UUID

__all__ = ["Trouble"]


class Trouble:
    """The last trouble of each job id, of the `most` that came first since the last writing."""

    def __init__(self, *, most: int = 5000) -> None:
        self._most = most
        self._noted: dict[UUID, str] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, ids: Iterable[UUID], error: str) -> None:
        """Short words: what happened, then a detail."""
        error = error[:200]
        for job in islice(ids, max(0, self._most - len(self._noted))):
            self._noted[job] = error

    def take(self) -> dict[UUID, str]:
        """All of it, to be written now."""
        noted, self._noted = self._noted, {}
        return noted
