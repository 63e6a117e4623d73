"""What tests of the edges need around them: a kind, jobs, claims, and one look at everything about a job.

Nothing runs here: no relay, no consumer. An admission is one UPDATE, so a test decides what may be claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from bellwire_schema import transitions as edges
from bellwire_schema.statements import Claimed
from bellwire_testkit.databases import Database
from bellwire_testkit.waiting import wait_for_lock

Conn = psycopg.Connection[Any]
CONSUMER = UUID(int=1)
MINUTE = timedelta(minutes=1)


class Stage:
    """One session's view of the tables, and the short forms of the calls."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn

    def kind(self, name: str = "work", **columns: Any) -> None:
        """A kind as `apply` would write it; a second call changes it."""
        columns = {"app": "test", "retry_jitter": False, **columns}
        names = ", ".join(columns)
        marks = ", ".join(["%s"] * len(columns))
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        self.conn.execute(
            f"INSERT INTO bellwire.kind (name, {names}) VALUES (%s, {marks})"
            f" ON CONFLICT (name) DO UPDATE SET {changes}".encode(),
            [name, *columns.values()],
        )

    def submit(self, count: int = 1, *, kind: str = "work", **fields: Any) -> list[UUID]:
        """Jobs alike; fields are `try_submit`'s, as JSON has them."""
        job = {"kind": kind, "version": 1, "payload": {}, **fields}
        receipts = edges.submit(self.conn, [job] * count)
        assert all(r.code is None for r in receipts), receipts
        return [r.job_id for r in receipts if r.job_id is not None]

    def admit(self, ids: Sequence[UUID]) -> None:
        self.conn.execute(
            "UPDATE bellwire.outbox SET admitted_at = bellwire.now() WHERE job_id = ANY (%s)", (list(ids),)
        )

    def claim(
        self,
        ids: Sequence[UUID] | None,
        *,
        limit: int | None = None,
        kind: str = "work",
        consumer: UUID = CONSUMER,
    ) -> list[Claimed]:
        """Claims these, or the oldest admitted, as somebody who declares version 1 of the kind."""
        count = limit if limit is not None else len(ids or ())
        claimed = edges.claim(
            self.conn,
            consumer=consumer,
            version="1.0",
            host="here",
            kinds=[kind],
            versions=[1],
            attempts=edges.draw(count),
            tokens=edges.draw(count),
            ids=ids,
        )
        return sorted(claimed, key=lambda row: row.job_id)

    def running(self, count: int = 1, **fields: Any) -> list[Claimed]:
        """Jobs submitted, admitted and claimed, in id order."""
        ids = self.submit(count, **fields)
        self.admit(ids)
        claimed = self.claim(ids, kind=fields.get("kind", "work"))
        assert len(claimed) == count
        return claimed

    def again(self, job_id: UUID) -> Claimed:
        """The next attempt of a job that is ready."""
        self.admit([job_id])
        (claimed,) = self.claim([job_id], kind=self.job(job_id)["kind"])
        return claimed

    def retry(self, claims: Sequence[Claimed], code: str = "mail_down", **more: Any) -> list[str | None]:
        """All retryable; the jobs' states, in the order given."""
        n = len(claims)
        given = {"classes": ["retryable"] * n, "messages": [None] * n, "randoms": [0.5] * n, **more}
        answers = edges.retry(self.conn, claims, codes=[code] * n, **given)
        states = {answer.attempt_id: answer.state for answer in answers}
        return [states[claim.attempt_id] for claim in claims]

    def throttle(
        self, claims: Sequence[Claimed], delay: timedelta = MINUTE, scope: str | None = None
    ) -> list[Any]:
        n = len(claims)
        return edges.throttle(
            self.conn,
            claims,
            codes=["busy"] * n,
            messages=[None] * n,
            delays=[delay] * n,
            scopes=[scope] * n,
        )

    def snooze(self, claims: Sequence[Claimed], delay: timedelta = MINUTE) -> list[Any]:
        return edges.snooze(self.conn, claims, codes=["later"] * len(claims), delays=[delay] * len(claims))

    def fail(self, claims: Sequence[Claimed], code: str = "no_such_account") -> list[Any]:
        n = len(claims)
        return edges.fail(
            self.conn, claims, classes=["terminal"] * n, codes=[code] * n, messages=["it is not there"] * n
        )

    def cancel(self, *ids: UUID) -> list[str]:
        return [row.outcome for row in edges.cancel(self.conn, ids, actor="ana", reason="closed")]

    def redrive(self, *ids: UUID, **more: Any) -> list[str]:
        return [r.outcome for r in edges.redrive(self.conn, ids, actor="ana", reason="mended", **more)]

    def job(self, job_id: UUID) -> dict[str, Any]:
        (row,) = self.rows("SELECT * FROM bellwire.job WHERE id = %s", job_id)
        return row

    def state(self, job_id: UUID) -> tuple[str, str | None]:
        """State and reason."""
        row = self.job(job_id)
        return row["state"], row["reason"]

    def attempts(self, job_id: UUID) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM bellwire.attempt WHERE job_id = %s ORDER BY number", job_id)

    def wakeup(self, job_id: UUID) -> dict[str, Any] | None:
        rows = self.rows("SELECT * FROM bellwire.outbox WHERE job_id = %s", job_id)
        return rows[0] if rows else None

    def now(self) -> Any:
        return self.rows("SELECT bellwire.now() AS at")[0]["at"]

    def rows(self, query: LiteralString, *args: Any) -> list[dict[str, Any]]:
        with self.conn.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, args).fetchall()

    def assert_in_step(self) -> None:
        """A wake-up exists exactly while its job is ready (the other rules are CHECKs)."""
        broken = self.rows(
            "SELECT j.id, j.state, o.job_id"
            " FROM bellwire.job j FULL JOIN bellwire.outbox o ON o.job_id = j.id"
            " WHERE (o.job_id IS NOT NULL) <> COALESCE(j.state = 'ready', false)"
        )
        assert not broken, broken


class Second:
    """A call under way on a session of its own, seen waiting; `result` ends it."""

    def __init__(self, run: Any, conn: Conn) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self.conn = conn
        self._thread = Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def _run(self, run: Any) -> None:
        try:
            self._answer = run(Stage(self.conn))
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, deadline: float = 10.0) -> Any:
        self._thread.join(deadline)
        assert self.done, "the second session still waits"
        if self._error is not None:
            raise self._error
        return self._answer


class Race:
    """Two sessions and an onlooker: `first` is in a transaction; what `second` does is seen waiting."""

    def __init__(self, database: Database, watcher: Conn, first: Conn, second: Conn) -> None:
        self.database = database
        self.watcher = watcher
        self.first = Stage(first)
        self.second = second

    def waits(self, run: Any) -> Second:
        """Starts `run(stage)` on the second session; returns when it waits for the first."""
        started = Second(run, self.second)
        blockers = wait_for_lock(self.watcher, self.second.info.backend_pid)
        assert blockers == [self.first.conn.info.backend_pid]
        return started

    def commit(self) -> None:
        self.first.conn.commit()

    def rollback(self) -> None:
        self.first.conn.rollback()


@contextmanager
def race(database: Database, watcher: Conn, *, isolation: Any = None) -> Iterator[Race]:
    with (
        database.connect(autocommit=False) as first,
        database.connect() as second,
    ):
        if isolation is not None:
            second.isolation_level = isolation
        yield Race(database, watcher, first, second)


def submission(key: str | None = None, *, unique_until: str | None = None, **fields: Any) -> dict[str, Any]:
    """One job of kind work with a key."""
    job: dict[str, Any] = {"kind": "work", "version": 1, "payload": {}, **fields}
    if key is not None:
        job |= {"key": key, "unique_until": unique_until or "pruned"}
    return job


__all__ = [
    "CONSUMER",
    "MINUTE",
    "Conn",
    "Jsonb",
    "Race",
    "Second",
    "Stage",
    "race",
    "submission",
    "uuid4",
]
