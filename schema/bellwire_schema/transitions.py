"""Every edge as a plain function, for whoever holds a synchronous psycopg connection.

Each is one statement: in autocommit it is its own transaction, else it joins the caller's. All take sets, and
answer with a row for each member. A lost lease is an answer (`lost`), never an exception, so one stale member
harms no batch. What a call does stands at the function of the same name in `sql/`; the daemons send the same
texts asynchronously.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, LiteralString, Protocol, TypeAlias
from uuid import UUID, uuid4

import psycopg

from bellwire_schema import statements as text
from bellwire_schema.statements import (
    Beat,
    Cancelled,
    Claimed,
    Promoted,
    Receipt,
    Recovered,
    Redriven,
    Settled,
    Superseded,
)

__all__ = [
    "Leased",
    "begin_attempt",
    "cancel",
    "checkpoint",
    "claim",
    "complete",
    "draw",
    "expire",
    "fail",
    "hasten",
    "heartbeat",
    "hold_token",
    "promote",
    "prune",
    "recover",
    "redrive",
    "release",
    "release_doubtful",
    "replace",
    "reprioritise",
    "retry",
    "snooze",
    "stop",
    "submit",
    "succeed",
    "supersede",
    "throttle",
]

Connection: TypeAlias = psycopg.Connection[Any]


class Leased(Protocol):
    """One attempt by its lease: what a claim answers, and what every ending names."""

    @property
    def job_id(self) -> UUID: ...
    @property
    def token(self) -> UUID: ...
    @property
    def attempt_id(self) -> UUID: ...


def submit(conn: Connection, jobs: Sequence[Mapping[str, Any]]) -> list[Receipt]:
    """Write the set or, where one is refused, nothing. Each has JSON values by the names of `try_submit`."""
    return [Receipt._make(row) for row in _all(conn, text.SUBMIT, json.dumps(list(jobs)))]


def replace(conn: Connection, ids: Sequence[UUID], jobs: Sequence[Mapping[str, Any]]) -> list[UUID]:
    """The newest arguments for unclaimed jobs: job n becomes submission n. Answers with those that did."""
    return [row[0] for row in _all(conn, text.REPLACE, list(ids), json.dumps(list(jobs)))]


def supersede(conn: Connection, ids: Sequence[UUID], by: Sequence[UUID]) -> list[Superseded]:
    """Job n gives its key away to job n of `by`. Finished ones are left out of the answer."""
    return [Superseded._make(row) for row in _all(conn, text.SUPERSEDE, list(ids), list(by))]


def cancel(conn: Connection, ids: Sequence[UUID], *, actor: str, reason: str) -> list[Cancelled]:
    return [Cancelled._make(row) for row in _all(conn, text.CANCEL, list(ids), actor, reason)]


def claim(
    conn: Connection,
    *,
    consumer: UUID,
    version: str | None,
    host: str,
    kinds: Sequence[str],
    versions: Sequence[int],
    attempts: Sequence[UUID],
    tokens: Sequence[UUID],
    ids: Sequence[UUID] | None = None,
    min_age: timedelta = timedelta(0),
) -> list[Claimed]:
    """At most as many jobs as attempt ids are given; of `ids` only, or of the oldest admitted.

    Without `ids`, only of those that were admitted at least `min_age` ago.
    """
    declared = (list(kinds), list(versions))
    drawn = (list(attempts), list(tokens))
    wanted = None if ids is None else list(ids)
    return [
        Claimed._make(row)
        for row in _all(conn, text.CLAIM, consumer, version, host, *declared, *drawn, wanted, min_age)
    ]


def heartbeat(
    conn: Connection,
    leases: Sequence[Leased],
    *,
    progress: Sequence[int | None] | None = None,
    totals: Sequence[int | None] | None = None,
    notes: Sequence[str | None] | None = None,
) -> list[Beat]:
    """Renew these leases; their progress rides along."""
    none = [None for _ in leases]
    ids, tokens, _ = _fence(leases)
    told = (list(progress or none), list(totals or none), list(notes or none))
    return [Beat._make(row) for row in _all(conn, text.HEARTBEAT, ids, tokens, *told)]


def release_doubtful(conn: Connection, *, consumer: UUID, tokens: Sequence[UUID]) -> list[UUID]:
    """Hand back what a claim whose answer was lost has brought after all; uses nothing up."""
    return [row[0] for row in _all(conn, text.RELEASE_DOUBTFUL, consumer, list(tokens))]


def succeed(
    conn: Connection, leases: Sequence[Leased], *, results: Sequence[str | None] | None = None
) -> list[Settled]:
    """`results` are JSON texts."""
    return _settle(conn, text.SUCCEED, leases, list(results or [None for _ in leases]))


def retry(
    conn: Connection,
    leases: Sequence[Leased],
    *,
    classes: Sequence[str],
    codes: Sequence[str],
    messages: Sequence[str | None],
    randoms: Sequence[float],
    delays: Sequence[timedelta | None] | None = None,
) -> list[Settled]:
    """`randoms` are numbers of [0, 1) for the backoff; a delay that is given counts instead of it."""
    delayed = list(delays or [None for _ in leases])
    return _settle(
        conn, text.RETRY, leases, list(classes), list(codes), list(messages), list(randoms), delayed
    )


def throttle(
    conn: Connection,
    leases: Sequence[Leased],
    *,
    codes: Sequence[str],
    messages: Sequence[str | None],
    delays: Sequence[timedelta],
    scopes: Sequence[str | None],
) -> list[Settled]:
    """`scopes`: None, or what else is held back that long: "tenant" or "kind"."""
    return _settle(conn, text.THROTTLE, leases, list(codes), list(messages), list(delays), list(scopes))


def snooze(
    conn: Connection, leases: Sequence[Leased], *, codes: Sequence[str | None], delays: Sequence[timedelta]
) -> list[Settled]:
    return _settle(conn, text.SNOOZE, leases, list(codes), list(delays))


def fail(
    conn: Connection,
    leases: Sequence[Leased],
    *,
    classes: Sequence[str],
    codes: Sequence[str],
    messages: Sequence[str | None],
) -> list[Settled]:
    return _settle(conn, text.FAIL, leases, list(classes), list(codes), list(messages))


def stop(
    conn: Connection, leases: Sequence[Leased], *, messages: Sequence[str | None] | None = None
) -> list[Settled]:
    return _settle(conn, text.STOP, leases, list(messages or [None for _ in leases]))


def release(conn: Connection, leases: Sequence[Leased]) -> list[Settled]:
    return _settle(conn, text.RELEASE, leases)


def begin_attempt(conn: Connection, *, installation: UUID, lease: timedelta) -> bool:
    """Bounds how long this transaction may sit idle. False: this is not the installation's database."""
    return bool(_one(conn, text.BEGIN_ATTEMPT, installation, lease))


def complete(conn: Connection, leased: Leased, *, result: str | None = None) -> str:
    """The status, as of `succeed`; waits for the job's row. The last statement before COMMIT."""
    status: str = _one(conn, text.COMPLETE, leased.job_id, leased.token, leased.attempt_id, result)
    return status


def checkpoint(conn: Connection, leased: Leased, *, value: str) -> bool:
    """Keep this JSON text with the job. False: the lease is lost. The last statement before COMMIT."""
    return bool(_one(conn, text.CHECKPOINT, leased.job_id, leased.token, value))


def hold_token(conn: Connection, leased: Leased) -> bool:
    """Nobody else can end the attempt until this transaction ends. False: the lease is lost."""
    return bool(_one(conn, text.HOLD_TOKEN, leased.job_id, leased.token))


def promote(conn: Connection, *, limit: int) -> Promoted:
    return Promoted._make(_all(conn, text.PROMOTE, limit)[0])


def recover(conn: Connection, *, limit: int, randoms: Sequence[float]) -> list[Recovered]:
    """`randoms` are numbers of [0, 1) for the backoff; at least one."""
    return [Recovered._make(row) for row in _all(conn, text.RECOVER, limit, list(randoms))]


def expire(conn: Connection, *, limit: int) -> list[tuple[UUID, str]]:
    """Id and kind of each job that failed because its deadline had come before it was started."""
    return [(row[0], row[1]) for row in _all(conn, text.EXPIRE, limit)]


def redrive(
    conn: Connection,
    ids: Sequence[UUID],
    *,
    actor: str,
    reason: str,
    generations: Sequence[int] | None = None,
    deadline: datetime | None = None,
    keep_checkpoint: bool = True,
) -> list[Redriven]:
    """Each id is judged alone; one whose generation is not the one given is refused."""
    expected = None if generations is None else list(generations)
    rows = _all(conn, text.REDRIVE, list(ids), expected, actor, reason, deadline, keep_checkpoint)
    return [Redriven._make(row) for row in rows]


def hasten(conn: Connection, ids: Sequence[UUID], *, actor: str, reason: str) -> list[UUID]:
    """Answers with those that were scheduled."""
    return [row[0] for row in _all(conn, text.HASTEN, list(ids), actor, reason)]


def reprioritise(
    conn: Connection, ids: Sequence[UUID], *, priority: int, actor: str, reason: str
) -> list[UUID]:
    """Answers with those that were not claimed."""
    return [row[0] for row in _all(conn, text.REPRIORITISE, list(ids), priority, actor, reason)]


def prune(conn: Connection, *, limit: int) -> int:
    """How many jobs are gone, with their attempts and effects."""
    return int(_one(conn, text.PRUNE, limit))


def draw(count: int) -> list[UUID]:
    """Ids for attempts, or tokens: they are made before the claim, so that a lost answer can be asked for."""
    return [uuid4() for _ in range(count)]


def _settle(
    conn: Connection, query: LiteralString, leases: Sequence[Leased], *columns: Sequence[Any]
) -> list[Settled]:
    return [Settled._make(row) for row in _all(conn, query, *_fence(leases), *columns)]


def _fence(leases: Sequence[Leased]) -> tuple[list[UUID], list[UUID], list[UUID]]:
    return (
        [each.job_id for each in leases],
        [each.token for each in leases],
        [each.attempt_id for each in leases],
    )


def _one(conn: Connection, query: LiteralString, *args: Any) -> Any:
    return _all(conn, query, *args)[0][0]


def _all(conn: Connection, query: LiteralString, *args: Any) -> list[tuple[Any, ...]]:
    with conn.cursor(binary=True) as cursor:
        cursor.execute(query, args)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
