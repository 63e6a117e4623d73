"""What people type for times and ids, read strictly: a misread time runs work at the wrong hour."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TypeVar
from uuid import UUID

from bellwire_console.cli.exits import Exit, Failure

__all__ = ["did_you_mean", "duration", "identifier", "instant", "within"]

_Moment = TypeVar("_Moment", datetime, timedelta)

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration(option: str, text: str) -> timedelta:
    """`500ms`, `30s`, `10m`, `2h`, `1d`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise Failure(Exit.USAGE, f"{option}: {text!r} is no duration: write 30s, 10m, 2h or 1d")
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
    except OverflowError:
        raise Failure(Exit.USAGE, f"{option}: {text} is longer than any calendar") from None


def instant(option: str, text: str) -> datetime:
    """ISO 8601 with an offset."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Failure(Exit.USAGE, f"{option}: {text!r} is no time: write 2026-05-01T03:00:00+02:00") from None
    if found.utcoffset() is None:
        raise Failure(Exit.USAGE, f"{option}: {text} names no offset: add +02:00, or Z for UTC")
    return found


def within(option: str, text: str, found: _Moment) -> _Moment:
    """The same, refused outside the calendar that the library takes."""
    from bellwire_outbox.config import LONGEST
    from bellwire_outbox.submission import EARLIEST, LATEST

    if isinstance(found, datetime):
        if not EARLIEST <= found <= LATEST:
            raise Failure(
                Exit.USAGE,
                f"{option}: {text} must lie between the years {EARLIEST.year} and {LATEST.year}",
            )
    elif found > LONGEST:
        raise Failure(Exit.USAGE, f"{option}: {text} must be at most {LONGEST.days} days")
    return found


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The name that was not found, with the one it is nearest to."""
    near = get_close_matches(name, sorted(known), n=1)
    return f"{name} (did you mean {near[0]}?)" if near else name


def identifier(option: str, text: str) -> UUID:
    """A UUID."""
    try:
        return UUID(text.strip())
    except ValueError:
        raise Failure(
            Exit.USAGE, f"{option}: {text!r} is no job id: it looks like 01890a5d-ac96-774b-bcce-b302099a8057"
        ) from None
