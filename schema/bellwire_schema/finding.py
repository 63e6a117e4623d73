"""What a check of `doctor` answers: even where all is well, so that silence is not taken for health."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection

Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found. `note` is worth knowing and no failure; `mend` says what to do."""

    check: str
    level: Level
    text: str
    mend: str | None = None


Check = Callable[[Connection, datetime], list[Finding]]
