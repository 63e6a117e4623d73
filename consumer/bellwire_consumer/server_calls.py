"""The consumer's calls, each one statement that is its own transaction, on an autocommit connection.

What they mean stands in the functions of the same name; here are only types. The texts never change, so the
server keeps their plans. Everything is set-based: no statement is sent for one job alone while others wait.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

import psycopg

from bellwire_consumer.lease import Lease
from bellwire_consumer.outcome import Fail, Retried, Snoozed, Stop, Succeed, Throttled
from bellwire_runtime.database import Connection

__all__ = [
    "Answer",
    "Beat",
    "Claimed",
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


class Beat(NamedTuple):
    """What a heartbeat says of one lease: alive, busy, lost, timed_out or stalled."""

    token: UUID
    status: str
    cancel_requested_at: datetime | None
    cancel_actor: str | None
    cancel_reason: str | None


class Answer(NamedTuple):
    """What became of one settled attempt: settled, already, busy or lost; and the job's state now."""

    attempt_id: UUID
    status: str
    state: str | None


_CLAIM: LiteralString = """
    SELECT job_id, attempt_id, token, kind, version, attempt, payload::text, tenant, key, started_at,
           extract(epoch FROM started_at - run_at)::float8, deadline_at, extract(epoch FROM
           remaining)::float8, extract(epoch FROM lease)::float8, extract(epoch FROM timeout)::float8,
           extract(epoch FROM progress_timeout)::float8, checkpoint::text
      FROM bellwire.claim(%s::uuid, %s::text, %s::text, %s::text[], %s::smallint[], %s::uuid[], %s::uuid[],
                          %s::uuid[])
"""
_HEARTBEAT: LiteralString = """
    SELECT token, status, cancel_requested_at, cancel_actor, cancel_reason
      FROM bellwire.heartbeat(%s::uuid[], %s::uuid[], %s::bigint[], %s::bigint[], %s::text[])
"""
_BEAT_CONSUMER: LiteralString = """
    SELECT bellwire.beat_consumer(%s::uuid, %s::text, %s::text, %s::text, %s::integer, %s::integer,
    %s::text[],
                                  %s::smallint[], %s::boolean)
"""
# Hundreds of rows that say "settled" would be read for nothing: of a success only what is otherwise is told.
_SUCCEED: LiteralString = (
    "SELECT * FROM bellwire.succeed(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[]::jsonb[])"
    " WHERE status <> 'settled'"
)
_RETRY: LiteralString = (
    "SELECT * FROM bellwire.retry(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::text[],"
    " %s::double precision[], %s::interval[])"
)
_THROTTLE: LiteralString = (
    "SELECT * FROM bellwire.throttle(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[],"
    " %s::interval[], %s::text[])"
)
_SNOOZE: LiteralString = (
    "SELECT * FROM bellwire.snooze(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::interval[])"
)
_FAIL: LiteralString = (
    "SELECT * FROM bellwire.fail(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::text[])"
)
_STOP: LiteralString = "SELECT * FROM bellwire.stop(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[])"
_RELEASE: LiteralString = "SELECT * FROM bellwire.release(%s::uuid[], %s::uuid[], %s::uuid[])"


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
    ids: Sequence[UUID] | None = None,
) -> list[Claimed]:
    """At most as many jobs as attempt ids are given; of `ids` only, or of the oldest admitted."""
    parameters = (
        consumer,
        version,
        host,
        list(kinds),
        list(versions),
        _literal(attempts),
        _literal(tokens),
        None if ids is None else _literal([job.hex for job in ids]),
    )
    cursor = await conn.execute(_CLAIM, parameters, binary=True)
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
    cursor = await conn.execute(_HEARTBEAT, parameters, binary=True)
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
) -> None:
    """Say that this consumer lives."""
    parameters = (consumer, app, version, host, pid, slots, list(kinds), list(versions), stopping)
    await conn.execute(_BEAT_CONSUMER, parameters)


async def forget_consumer(conn: Connection, consumer: UUID) -> None:
    await conn.execute("SELECT bellwire.forget_consumer(%s::uuid)", (consumer,))


async def release_doubtful(conn: Connection, consumer: UUID, tokens: Sequence[str]) -> list[UUID]:
    """Hand back what a claim whose answer was lost has brought after all. Answers with those jobs."""
    cursor = await conn.execute(
        "SELECT job_id FROM bellwire.release_doubtful(%s::uuid, %s::uuid[])", (consumer, _literal(tokens))
    )
    return [row[0] for row in await cursor.fetchall()]


async def succeed(conn: Connection, leases: Sequence[Lease], endings: Sequence[Succeed]) -> list[Answer]:
    """Answers only for those that were not settled just now."""
    results = [ending.result for ending in endings]
    # unnest fills a shorter array up with NULL.
    return await _settle(conn, _SUCCEED, leases, results if any(results) else [])


async def retry(
    conn: Connection, leases: Sequence[Lease], endings: Sequence[Retried], randoms: Sequence[float]
) -> list[Answer]:
    return await _settle(
        conn,
        _RETRY,
        leases,
        [ending.error_class for ending in endings],
        [ending.code for ending in endings],
        [ending.message for ending in endings],
        list(randoms),
        [None for _ in endings],
    )


async def throttle(conn: Connection, leases: Sequence[Lease], endings: Sequence[Throttled]) -> list[Answer]:
    return await _settle(
        conn,
        _THROTTLE,
        leases,
        [ending.code for ending in endings],
        [ending.message for ending in endings],
        [ending.delay for ending in endings],
        [ending.scope for ending in endings],
    )


async def snooze(conn: Connection, leases: Sequence[Lease], endings: Sequence[Snoozed]) -> list[Answer]:
    return await _settle(
        conn, _SNOOZE, leases, [ending.code for ending in endings], [ending.delay for ending in endings]
    )


async def fail(conn: Connection, leases: Sequence[Lease], endings: Sequence[Fail]) -> list[Answer]:
    return await _settle(
        conn,
        _FAIL,
        leases,
        [ending.error_class for ending in endings],
        [ending.code for ending in endings],
        [ending.message for ending in endings],
    )


async def stop(conn: Connection, leases: Sequence[Lease], endings: Sequence[Stop]) -> list[Answer]:
    return await _settle(conn, _STOP, leases, [ending.message for ending in endings])


async def release(conn: Connection, leases: Sequence[Lease]) -> list[Answer]:
    return await _settle(conn, _RELEASE, leases)


async def _settle(
    conn: "psycopg.AsyncConnection[Any]", text: LiteralString, leases: Sequence[Lease], *columns: list[Any]
) -> list[Answer]:
    parameters = (
        _literal([lease.job_id.hex for lease in leases]),
        _literal([lease.token.hex for lease in leases]),
        _literal([lease.id.hex for lease in leases]),
        *columns,
    )
    cursor = await conn.execute(text, parameters, binary=True)
    return [Answer._make(row) for row in await cursor.fetchall()]


def _literal(ids: Sequence[str]) -> str:
    """An array of ids as PostgreSQL reads it."""
    return f"{{{','.join(ids)}}}"
