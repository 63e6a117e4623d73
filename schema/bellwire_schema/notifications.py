"""How full the server's one queue of notifications is, and who keeps it from being emptied.

It is shared by all databases, and emptied only as far as the slowest listener has read; one that sits in a
transaction reads nothing. Full, it would fail every COMMIT that notifies, so submits stop notifying from half
of it on, and jobs are found by looking. Source: PostgreSQL manual, "NOTIFY".
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from bellwire_schema.finding import Finding
from bellwire_schema.words import clock, span

# Submits notify below this.
_HALF = 0.5
# A queue of gigabytes that is this full has somebody to thank for it.
_FILLING = 0.05
_LONG = timedelta(seconds=5)


def notifications(connection: Connection, now: datetime) -> list[Finding]:
    """The usage, and the oldest transactions: the server does not say who listens."""
    usage: float = connection.execute(text("SELECT pg_notification_queue_usage()")).scalar_one()
    sessions = connection.execute(
        text(
            """SELECT pid, usename, datname, application_name, xact_start FROM pg_stat_activity
                WHERE backend_type = 'client backend' AND xact_start < clock_timestamp() - :long
                  AND pid <> pg_backend_pid()
                ORDER BY xact_start LIMIT 3"""
        ),
        {"long": _LONG},
    ).all()
    return [judged(usage, sessions, now)]


def judged(usage: float, sessions: Sequence[Any], now: datetime) -> Finding:
    """`sessions` are those that have been in a transaction for long, the longest first."""
    told = f"the server's queue is {usage:.0%} full"
    if sessions:
        who = ", ".join(
            f"{row.pid} ({row.usename}, {row.application_name or 'nameless'}, in {row.datname}, "
            f"since {clock(row.xact_start)}, {span(now - row.xact_start)})"
            for row in sessions
        )
        told += f"; sessions longest in a transaction, which empty none of it where they listen: {who}"
    if usage < _FILLING:
        return Finding(check="notifications", level="ok", text=told)
    if usage >= _HALF:
        told += "; submits notify no more, so jobs wait for the next look"
    mend = "end the transaction of the listener, or its session: SELECT pg_terminate_backend(pid)"
    return Finding(check="notifications", level="wrong" if usage >= _HALF else "note", text=told, mend=mend)
