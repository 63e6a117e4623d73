"""Doors at which a rehearsal holds an attempt, so that a kill hits the very moment it is meant for.

`STATEMENTS_PAUSE` names them as `point:account`, comma separated; `STATEMENTS_PAUSE_FOLDER` is where an
attempt that stands at a door leaves a file, which tells whoever waits to kill. Without them, reaching a point
does nothing.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

Point = Literal["before_render", "after_temporary", "after_promotion"]

VARIABLE = "STATEMENTS_PAUSE"
FOLDER_VARIABLE = "STATEMENTS_PAUSE_FOLDER"


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Which attempts stop where."""

    doors: frozenset[tuple[Point, int]] = frozenset()
    folder: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        given = environment.get(VARIABLE, "")
        doors = frozenset(_door(text) for text in given.split(",") if text)
        folder = environment.get(FOLDER_VARIABLE)
        if doors and not folder:
            raise SystemExit(f"{VARIABLE} is set, so {FOLDER_VARIABLE} must be")
        return cls(doors=doors, folder=Path(folder) if folder else None)

    def environment(self) -> dict[str, str]:
        """The variables that make another process stop at these doors."""
        text = ",".join(f"{point}:{account}" for point, account in sorted(self.doors))
        return {VARIABLE: text, FOLDER_VARIABLE: str(self.folder)} if self.doors else {}

    async def reach(self, point: Point, account_id: int) -> None:
        """Go on at once; or, where a door is, leave a file behind and never return."""
        if self.folder is None or (point, account_id) not in self.doors:
            return
        await asyncio.to_thread(self._stand_at(point, account_id).touch)
        await asyncio.Event().wait()

    def standing(self) -> set[tuple[Point, int]]:
        """The doors at which somebody stands, or stood when it was killed."""
        return {door for door in self.doors if self._stand_at(*door).exists()}

    def _stand_at(self, point: Point, account_id: int) -> Path:
        if self.folder is None:
            raise ValueError("doors need a folder")
        return self.folder / f"{point}-{account_id}"


def _door(text: str) -> tuple[Point, int]:
    known: tuple[Point, ...] = get_args(Point)
    name, _, account = text.partition(":")
    for point in known:
        if name == point and account.isdecimal():
            return point, int(account)
    raise SystemExit(f"{VARIABLE}: {text!r} is not {' | '.join(known)}, a colon and an account")
