"""The relay's calls, each one statement that is its own transaction, on an autocommit connection.

What they mean stands in the functions of the same name; here are only types. The text never changes, so the
server keeps its plan; parameters travel in binary.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from bellwire_runtime.database import Connection

__all__ = [
    "Admitted",
    "Mended",
    "Promoted",
    "Recovered",
    "admit",
    "disown",
    "expire",
    "measure",
    "mend",
    "own",
    "promote",
    "recover",
    "sleep",
    "wake",
]


class Admitted(NamedTuple):
    """One kind and version that has wake-ups, after the cycle."""

    kind: str
    version: int
    job_ids: list[UUID]
    outstanding: int
    win: int
    waiting: bool
    held: str | None


class Promoted(NamedTuple):
    """How many became ready; when the next is due, by the database's clock, and how far off that is."""

    promoted: int
    next_due: datetime | None
    due_in: timedelta | None


class Recovered(NamedTuple):
    """One job taken back from an expired lease."""

    job_id: UUID
    kind: str
    outcome: str
    state: str
    consumer: UUID


class Mended(NamedTuple):
    """Wake-ups without a ready job, ready jobs without a wake-up, where to go on (None: from the start)."""

    orphans: int
    missing: int
    position: UUID | None
    wakeup_position: UUID | None


async def own(
    conn: Connection, *, relay: UUID, token: UUID, host: str, pid: int, version: str, lease: timedelta
) -> list[str]:
    """All kinds this relay serves now."""
    rows = await _all(
        conn,
        "SELECT kind FROM bellwire.own(%b, %b, %b, %b::integer, %b, %b)",
        (relay, token, host, pid, version, lease),
    )
    return [kind for (kind,) in rows]


async def disown(conn: Connection, *, relay: UUID, token: UUID) -> None:
    """Let everything go."""
    await _all(conn, "SELECT bellwire.disown(%b, %b)", (relay, token))


async def sleep(conn: Connection, *, relay: UUID, token: UUID, lasting: timedelta) -> datetime | None:
    """Raise the flag. Until when, by the database's clock; None: nothing is owned."""
    rows = await _all(conn, "SELECT bellwire.sleep(%b, %b, %b)", (relay, token, lasting))
    until: datetime | None = rows[0][0]
    return until


async def wake(conn: Connection, *, relay: UUID, token: UUID) -> None:
    """Lower the flag."""
    await _all(conn, "SELECT bellwire.wake(%b, %b)", (relay, token))


async def admit(
    conn: Connection,
    *,
    relay: UUID,
    token: UUID,
    kinds: Sequence[str],
    versions: Sequence[int],
    recent: Sequence[int],
) -> list[Admitted]:
    """Let go what may go; the three lists are parallel: claims seen in the last second."""
    rows = await _all(
        conn,
        "SELECT kind, version, job_ids, outstanding, win, waiting, held"
        " FROM bellwire.admit(%b, %b, %b::text[], %b::smallint[], %b::integer[])",
        (relay, token, list(kinds), list(versions), list(recent)),
    )
    return [Admitted(*row) for row in rows]


async def promote(conn: Connection, *, limit: int) -> Promoted:
    """What is due becomes ready."""
    rows = await _all(
        conn,
        "SELECT promoted, next_due, next_due - bellwire.now() FROM bellwire.promote(%b::integer)",
        (limit,),
    )
    return Promoted(*rows[0])


async def recover(conn: Connection, *, limit: int, randoms: Sequence[float]) -> list[Recovered]:
    """Jobs are taken back from expired leases; the random numbers are for their backoff."""
    rows = await _all(
        conn,
        "SELECT job_id, kind, outcome, state, consumer FROM bellwire.recover(%b::integer, %b::float8[])",
        (limit, list(randoms)),
    )
    return [Recovered(*row) for row in rows]


async def expire(conn: Connection, *, limit: int) -> list[tuple[UUID, str]]:
    """Unstarted jobs past their deadline fail: id and kind of each."""
    rows = await _all(conn, "SELECT job_id, kind FROM bellwire.expire(%b::integer)", (limit,))
    return [(job_id, kind) for job_id, kind in rows]


async def mend(conn: Connection, *, after: UUID | None, wakeup_after: UUID | None, limit: int) -> Mended:
    """One step of the walk that holds the two tables in step."""
    rows = await _all(
        conn,
        "SELECT orphans, missing, position, wakeup_position"
        " FROM bellwire.mend(%b::uuid, %b::uuid, %b::integer)",
        (after, wakeup_after, limit),
    )
    return Mended(*rows[0])


async def measure(
    conn: Connection, *, relay: UUID, token: UUID, kinds: Sequence[str], rates: Sequence[float]
) -> int:
    """Write the measures; how many kinds. The two lists are parallel: jobs a second."""
    rows = await _all(
        conn,
        "SELECT bellwire.measure(%b, %b, %b::text[], %b::float8[])",
        (relay, token, list(kinds), list(rates)),
    )
    count: int = rows[0][0]
    return count


async def _all(conn: Connection, query: LiteralString, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    async with conn.cursor(binary=True) as cursor:
        await cursor.execute(query, args)
        rows: list[tuple[Any, ...]] = await cursor.fetchall()
        return rows
