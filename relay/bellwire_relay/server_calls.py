"""The relay's calls, each one statement that is its own transaction, on an autocommit connection.

What they mean stands in the functions of the same name, their text in the schema's `statements`. Answers
travel in binary.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from bellwire_runtime.database import Connection
from bellwire_schema import statements as text
from bellwire_schema.statements import Admitted, Holder, Mended, Promoted, Recovered, Repeated

__all__ = [
    "Admitted",
    "Holder",
    "Mended",
    "Promoted",
    "Recovered",
    "Repeated",
    "admit",
    "await_row",
    "disown",
    "evict",
    "expire",
    "known_lines",
    "measure",
    "mend",
    "note_publish",
    "overdue",
    "own",
    "promote",
    "recover",
    "republish",
    "sleep",
    "wake",
]


async def own(
    conn: Connection,
    *,
    relay: UUID,
    token: UUID,
    host: str,
    pid: int,
    version: str,
    lease: timedelta,
    broker_well: bool | None = None,
    broker_error: str | None = None,
    avoid: Sequence[str] = (),
) -> list[str]:
    """All kinds this relay serves now.

    `broker_well` is None where no broker was given. `avoid` are kinds of which it could publish nothing for
    an ownership's length; it counts only beside a broker that is not well.
    """
    rows = await _all(
        conn,
        text.OWN,
        (relay, token, host, pid, version, lease, broker_well, broker_error, list(avoid)),
    )
    return [kind for (kind,) in rows]


async def disown(conn: Connection, *, relay: UUID, token: UUID) -> None:
    """Let everything go."""
    await _all(conn, text.DISOWN, (relay, token))


async def sleep(conn: Connection, *, relay: UUID, token: UUID, lasting: timedelta) -> datetime | None:
    """Raise the flag. Until when, by the database's clock; None: nothing is owned."""
    rows = await _all(conn, text.SLEEP, (relay, token, lasting))
    until: datetime | None = rows[0][0]
    return until


async def wake(conn: Connection, *, relay: UUID, token: UUID) -> None:
    """Lower the flag."""
    await _all(conn, text.WAKE, (relay, token))


async def admit(
    conn: Connection,
    *,
    relay: UUID,
    token: UUID,
    kinds: Sequence[str],
    versions: Sequence[int],
    recent: Sequence[int],
    notify: bool = True,
) -> list[Admitted]:
    """Let go what may go; the three lists are parallel: claims seen in the last second.

    `notify`: consumers are told by the database, as they are where nobody publishes hints.
    """
    rows = await _all(
        conn,
        text.ADMIT,
        (relay, token, list(kinds), list(versions), list(recent), notify),
    )
    return [Admitted(*row) for row in rows]


async def republish(
    conn: Connection, *, relay: UUID, token: UUID, everything: bool = False, limit: int = 5000
) -> list[Repeated]:
    """What is to be published again: by its age, or everything that is out. It is marked as published."""
    rows = await _all(conn, text.REPUBLISH, (relay, token, everything, limit))
    return [Repeated(*row) for row in rows]


async def note_publish(
    conn: Connection, *, relay: UUID, token: UUID, ids: Sequence[UUID], errors: Sequence[str]
) -> int:
    """Count trouble with the hints of these jobs; how many were still out. The two lists are parallel."""
    rows = await _all(conn, text.NOTE_PUBLISH, (relay, token, list(ids), list(errors)))
    count: int = rows[0][0]
    return count


async def known_lines(conn: Connection) -> list[tuple[str, int]]:
    """Kinds and versions that were applied and are in use, of many the newest versions."""
    rows = await _all(
        conn,
        "SELECT name, version FROM bellwire.kind CROSS JOIN LATERAL unnest(versions) AS version"
        " WHERE retired_at IS NULL ORDER BY row_number() OVER (PARTITION BY name ORDER BY version DESC), name"
        " LIMIT 200",
        (),
    )
    return [(kind, version) for kind, version in rows]


async def promote(conn: Connection, *, limit: int) -> Promoted:
    """What is due becomes ready."""
    rows = await _all(
        conn,
        text.PROMOTE,
        (limit,),
    )
    return Promoted(*rows[0])


async def recover(conn: Connection, *, limit: int, randoms: Sequence[float]) -> list[Recovered]:
    """Jobs are taken back from expired leases; the random numbers are for their backoff."""
    rows = await _all(
        conn,
        text.RECOVER,
        (limit, list(randoms)),
    )
    return [Recovered(*row) for row in rows]


async def expire(conn: Connection, *, limit: int) -> list[tuple[UUID, str]]:
    """Unstarted jobs past their deadline fail: id and kind of each."""
    rows = await _all(conn, text.EXPIRE, (limit,))
    return [(job_id, kind) for job_id, kind in rows]


async def mend(conn: Connection, *, after: UUID | None, wakeup_after: UUID | None, limit: int) -> Mended:
    """One step of the walk that holds the two tables in step."""
    rows = await _all(
        conn,
        text.MEND,
        (after, wakeup_after, limit),
    )
    return Mended(*rows[0])


async def overdue(conn: Connection, *, over: timedelta, limit: int) -> list[UUID]:
    """Running jobs whose lease has been over for longer than that."""
    return [job for (job,) in await _all(conn, text.OVERDUE, (over, limit))]


async def await_row(conn: Connection, *, job: UUID) -> bool:
    """Wait for a job's row, half a second at most: whether it is free."""
    free: bool = (await _all(conn, text.AWAIT_ROW, (job,)))[0][0]
    return free


async def evict(conn: Connection) -> list[Holder]:
    """End what `await_row` waits for on another connection, where it is ours."""
    return [Holder(*row) for row in await _all(conn, text.EVICT, ())]


async def measure(
    conn: Connection, *, relay: UUID, token: UUID, kinds: Sequence[str], rates: Sequence[float]
) -> int:
    """Write the measures; how many kinds. The two lists are parallel: jobs a second."""
    rows = await _all(
        conn,
        text.MEASURE,
        (relay, token, list(kinds), list(rates)),
    )
    count: int = rows[0][0]
    return count


async def _all(conn: Connection, query: LiteralString, args: Sequence[Any]) -> list[tuple[Any, ...]]:
    async with conn.cursor(binary=True) as cursor:
        await cursor.execute(query, args)
        rows: list[tuple[Any, ...]] = await cursor.fetchall()
        return rows
