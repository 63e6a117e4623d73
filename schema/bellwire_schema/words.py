"""Times as people read them, the same in every sentence that we print."""

from datetime import datetime, timedelta


def clock(moment: datetime) -> str:
    """An instant for people, in this machine's zone; the date only where it is not today."""
    here = moment.astimezone()
    today = datetime.now(here.tzinfo).date()
    return here.strftime("%H:%M:%S" if here.date() == today else "%Y-%m-%d %H:%M:%S")


def span(duration: timedelta) -> str:
    """A duration for people, at two steps of precision."""
    seconds = abs(duration.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for size, unit, smaller, its in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit} {rest} {its}" if rest else f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"
