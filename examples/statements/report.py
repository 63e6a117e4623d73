"""What the demo tells a person: read from database and folder, not from what the demo thinks it did."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self, cast

import psycopg
from rich.console import Console
from rich.table import Table

from examples.statements.fleet import Claims

KIND = "render_statement"

_STATES = "SELECT state, count(*) FROM bellwire.job WHERE kind = %s GROUP BY state"
_OF_PROCESS = """
    SELECT (SELECT count(*) FROM bellwire.attempt WHERE consumer = who.id),
           (SELECT count(*) FROM bellwire.job WHERE consumer = who.id AND state = 'running')
      FROM bellwire.consumer who WHERE pid = %s
"""
_ATTEMPTS = """
    SELECT (SELECT count(*) FROM bellwire.attempt a JOIN bellwire.job j ON j.id = a.job_id WHERE j.kind = %s)
         + (SELECT count(*) FROM bellwire.job WHERE kind = %s AND state = 'running')
"""
_ENDINGS = """
    SELECT a.outcome, count(*) FROM bellwire.attempt a JOIN bellwire.job j ON j.id = a.job_id
     WHERE j.kind = %s GROUP BY a.outcome
"""
_ROWS = "SELECT key, sha256 FROM shop.statement"
_AWAY = """
    SELECT count(*),
           coalesce(max(extract(epoch FROM a.started_at - j.created_at)) FILTER (WHERE j.created_at >= %s), 0)
      FROM bellwire.job j JOIN bellwire.attempt a ON a.job_id = j.id
     WHERE j.kind = %s AND a.started_at BETWEEN %s AND %s
"""
_WAITS = """
    SELECT j.tenant, count(*),
           percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM a.started_at - j.created_at))
      FROM bellwire.job j JOIN bellwire.attempt a ON a.job_id = j.id AND a.number = 1
     WHERE j.kind = %s GROUP BY j.tenant ORDER BY count(*) DESC, j.tenant
"""


@dataclass(frozen=True, kw_only=True)
class Away:
    """The time without the broker, by the database's clock; `quiet` is when no backlog was left."""

    gone: datetime
    quiet: datetime
    back: datetime


@dataclass(frozen=True, kw_only=True)
class Bell:
    """What the broker was good for, and what its absence cost."""

    claims: Claims
    uncounted: int
    away_started: int | None = None
    away_wait: float | None = None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The run's numbers."""

    submitted: int
    succeeded: int
    attempts: int
    recovered: int
    files: int
    matching: int


class Watch:
    """A connection of the demo's own, for looking."""

    def __init__(self, address: str) -> None:
        self._conn: psycopg.Connection[Any] = psycopg.connect(address, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    def states(self) -> dict[str, int]:
        return dict(self._conn.execute(_STATES, (KIND,)).fetchall())

    def of_process(self, pid: int) -> tuple[int, int]:
        """A consumer's attempts that have ended, and the leases it holds, dead or alive."""
        row = self._conn.execute(_OF_PROCESS, (pid,)).fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def attempts(self) -> int:
        """All that ever started, ended or not."""
        row = self._conn.execute(_ATTEMPTS, (KIND, KIND)).fetchone()
        assert row is not None
        return int(row[0])

    def now(self) -> datetime:
        row = self._conn.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        return cast("datetime", row[0])

    def serving(self, consumers: Sequence[int]) -> int:
        """How many of these processes have registered."""
        row = self._conn.execute(
            "SELECT count(*) FROM bellwire.consumer WHERE pid = ANY (%s)", (list(consumers),)
        ).fetchone()
        assert row is not None
        return int(row[0])

    def bell(self, claims: Claims, away: Away | None) -> Bell:
        """`claims` are those of all consumers, as each counted them last."""
        uncounted = self.attempts() - claims.total
        if away is None:
            return Bell(claims=claims, uncounted=uncounted)
        row = self._conn.execute(_AWAY, (away.quiet, KIND, away.gone, away.back)).fetchone()
        assert row is not None
        return Bell(claims=claims, uncounted=uncounted, away_started=int(row[0]), away_wait=float(row[1]))

    def waits(self) -> list[tuple[str, int, float]]:
        """For each customer: jobs, and the median of seconds from submit to the first start."""
        rows = self._conn.execute(_WAITS, (KIND,)).fetchall()
        return [(str(tenant), int(count), float(wait)) for tenant, count, wait in rows]

    def counts(self, folder: Path) -> Counts:
        states = self.states()
        endings = dict(self._conn.execute(_ENDINGS, (KIND,)).fetchall())
        rows = self._conn.execute(_ROWS).fetchall()
        return Counts(
            submitted=sum(states.values()),
            succeeded=states.get("succeeded", 0),
            attempts=sum(endings.values()),
            recovered=endings.get("recovered", 0),
            files=sum(1 for path in (folder / "statements").rglob("*.pdf") if path.is_file()),
            matching=sum(1 for key, sha256 in rows if _checksum(folder / key) == sha256),
        )


def _checksum(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def show(
    console: Console,
    counts: Counts,
    bell: Bell | None,
    *,
    duplicates: int,
    conflicts: int,
    killed_with: int,
    seconds: float,
) -> None:
    table = Table(title="The run", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_row("submitted", f"{counts.submitted:,}")
    table.add_row("succeeded", f"{counts.succeeded:,}")
    table.add_row("attempts", f"{counts.attempts:,}")
    table.add_row("leases held by the killed consumer", f"{killed_with:,}")
    table.add_row("recovered leases", f"{counts.recovered:,}")
    table.add_row("duplicates prevented", f"{duplicates:,}")
    table.add_row("conflicts refused (other paper)", f"{conflicts:,}")
    table.add_row("files whose checksum matches their row", f"{counts.matching:,} of {counts.files:,}")
    if bell is not None:
        table.add_row("claims named by a hint", f"{bell.claims.hints:,}")
        table.add_row("claims found by polling", f"{bell.claims.polls:,}")
        if bell.uncounted:
            table.add_row("claims the killed consumer did not tell of", f"{bell.uncounted:,}")
        if bell.away_started is not None:
            table.add_row("jobs started while the broker was away", f"{bell.away_started:,}")
            table.add_row("longest wait of those asked for meanwhile", f"{bell.away_wait:.2f} s")
    table.add_row("time", f"{seconds:.1f} s")
    console.print(table)


def show_waits(console: Console, waits: list[tuple[str, int, float]]) -> None:
    table = Table(title="Fairness: the flood waits, the others do not", title_justify="left")
    table.add_column("customer")
    table.add_column("statements", justify="right")
    table.add_column("median wait", justify="right")
    for customer, count, wait in waits:
        table.add_row(customer, f"{count:,}", f"{wait:.1f} s")
    console.print(table)
