"""The consumer's calls, each one statement that is its own transaction, on an autocommit connection.

What they mean stands in the functions of the same name, their text in the schema's `statements`. Everything
is set-based: no statement is sent for one job alone while others wait.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

import psycopg

from bellwire_consumer.lease import Lease
from bellwire_consumer.outcome import Fail, Retried, Snoozed, Stop, Succeed, Throttled
from bellwire_runtime.database import Connection
from bellwire_schema import statements as text
from bellwire_schema.statements import Beat, Settled

__all__ = [
    "Beat",
    "Claimed",
    "Settled",
    "beat_consumer",
    "claim",
    "fail",
    "forget_consumer",
    "heartbeat",
    "release",
    "release_doubtful",
    "retry",
    "snooze",
    "stop",
    "succeed",
    "throttle",
]


_AT_ONCE = timedelta(0)


class Claimed(NamedTuple):
    """One claimed job, as its consumer needs it. Payload and checkpoint are JSON text; times are in
    seconds."""

    job_id: UUID
    attempt_id: UUID
    token: UUID
    kind: str
    version: int
    attempt: int
    payload: str | None
    tenant: str
    key: str | None
    started_at: datetime
    delay: float
    deadline_at: datetime | None
    remaining: float | None
    lease: float
    timeout: float | None
    progress_timeout: float | None
    checkpoint: str | None


async def claim(
    conn: Connection,
    *,
    consumer: UUID,
    version: str | None,
    host: str,
    kinds: Sequence[str],
    versions: Sequence[int],
    attempts: Sequence[str],
    tokens: Sequence[str],
    ids: Sequence[UUID] | Sequence[str] | None = None,
    min_age: timedelta = _AT_ONCE,
) -> list[Claimed]:
    """At most as many jobs as attempt ids are given; of `ids` only, or of the oldest admitted.

    Ids may be hexadecimal, as hints bring them. Without `ids`, only of what was admitted at least `min_age`
    ago.
    """
    parameters = (
        consumer,
        version,
        host,
        list(kinds),
        list(versions),
        _literal(attempts),
        _literal(tokens),
        None if ids is None else _literal([job if isinstance(job, str) else job.hex for job in ids]),
        min_age,
    )
    cursor = await conn.execute(text.CLAIM_AS_TEXT, parameters, binary=True)
    return [Claimed._make(row) for row in await cursor.fetchall()]


async def heartbeat(conn: Connection, leases: Sequence[Lease]) -> list[Beat]:
    """Renew these leases, and hear who asked to cancel."""
    parameters = (
        _literal([lease.job_id.hex for lease in leases]),
        _literal([lease.token.hex for lease in leases]),
        [lease.progress for lease in leases],
        [lease.progress_total for lease in leases],
        [lease.note for lease in leases],
    )
    cursor = await conn.execute(text.HEARTBEAT, parameters, binary=True)
    return [Beat._make(row) for row in await cursor.fetchall()]


async def beat_consumer(
    conn: Connection,
    *,
    consumer: UUID,
    app: str,
    version: str | None,
    host: str,
    pid: int,
    slots: int,
    kinds: Sequence[str],
    versions: Sequence[int],
    stopping: bool,
    hears: bool | None = None,
    hears_error: str | None = None,
) -> None:
    """Say that this consumer lives, and whether the broker has it registered (None: no broker was given)."""
    declared = (list(kinds), list(versions))
    parameters = (consumer, app, version, host, pid, slots, *declared, stopping, hears, hears_error)
    await conn.execute(text.BEAT_CONSUMER, parameters)


async def forget_consumer(conn: Connection, consumer: UUID) -> None:
    await conn.execute(text.FORGET_CONSUMER, (consumer,))


async def release_doubtful(conn: Connection, consumer: UUID, tokens: Sequence[str]) -> list[UUID]:
    """Hand back what a claim whose answer was lost has brought after all. Answers with those jobs."""
    cursor = await conn.execute(text.RELEASE_DOUBTFUL, (consumer, _literal(tokens)))
    return [row[0] for row in await cursor.fetchall()]


async def succeed(conn: Connection, leases: Sequence[Lease], endings: Sequence[Succeed]) -> list[Settled]:
    """Answers only for those that were not settled just now."""
    results = [ending.result for ending in endings]
    # unnest fills a shorter array up with NULL.
    return await _settle(conn, text.SUCCEED_EXCEPTIONS, leases, results if any(results) else [])


async def retry(
    conn: Connection, leases: Sequence[Lease], endings: Sequence[Retried], randoms: Sequence[float]
) -> list[Settled]:
    return await _settle(
        conn,
        text.RETRY,
        leases,
        [ending.error_class for ending in endings],
        [ending.code for ending in endings],
        [ending.message for ending in endings],
        list(randoms),
        [None for _ in endings],
    )


async def throttle(conn: Connection, leases: Sequence[Lease], endings: Sequence[Throttled]) -> list[Settled]:
    return await _settle(
        conn,
        text.THROTTLE,
        leases,
        [ending.code for ending in endings],
        [ending.message for ending in endings],
        [ending.delay for ending in endings],
        [ending.scope for ending in endings],
    )


async def snooze(conn: Connection, leases: Sequence[Lease], endings: Sequence[Snoozed]) -> list[Settled]:
    return await _settle(
        conn, text.SNOOZE, leases, [ending.code for ending in endings], [ending.delay for ending in endings]
    )


async def fail(conn: Connection, leases: Sequence[Lease], endings: Sequence[Fail]) -> list[Settled]:
    return await _settle(
        conn,
        text.FAIL,
        leases,
        [ending.error_class for ending in endings],
        [ending.code for ending in endings],
        [ending.message for ending in endings],
    )


async def stop(conn: Connection, leases: Sequence[Lease], endings: Sequence[Stop]) -> list[Settled]:
    return await _settle(conn, text.STOP, leases, [ending.message for ending in endings])


async def release(conn: Connection, leases: Sequence[Lease]) -> list[Settled]:
    return await _settle(conn, text.RELEASE, leases)


async def _settle(
    conn: "psycopg.AsyncConnection[Any]", query: LiteralString, leases: Sequence[Lease], *columns: list[Any]
) -> list[Settled]:
    parameters = (
        _literal([lease.job_id.hex for lease in leases]),
        _literal([lease.token.hex for lease in leases]),
        _literal([lease.id.hex for lease in leases]),
        *columns,
    )
    cursor = await conn.execute(query, parameters, binary=True)
    return [Settled._make(row) for row in await cursor.fetchall()]


def _literal(ids: Sequence[str]) -> str:
    """An array of ids as PostgreSQL reads it."""
    return f"{{{','.join(ids)}}}"
