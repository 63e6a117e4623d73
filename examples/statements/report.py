"""What the demo tells a person: read from database and folder, not from what the demo thinks it did."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg
from rich.console import Console
from rich.table import Table

KIND = "render_statement"

_STATES = "SELECT state, count(*) FROM bellwire.job WHERE kind = %s GROUP BY state"
_RUNNING = (
    "SELECT consumer, count(*) FROM bellwire.job WHERE kind = %s AND state = 'running' GROUP BY consumer"
)
_ENDINGS = """
    SELECT a.outcome, count(*) FROM bellwire.attempt a JOIN bellwire.job j ON j.id = a.job_id
     WHERE j.kind = %s GROUP BY a.outcome
"""
_ROWS = "SELECT key, sha256 FROM shop.statement"
_WAITS = """
    SELECT j.tenant, count(*),
           percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM a.started_at - j.created_at))
      FROM bellwire.job j JOIN bellwire.attempt a ON a.job_id = j.id AND a.number = 1
     WHERE j.kind = %s GROUP BY j.tenant ORDER BY count(*) DESC, j.tenant
"""


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

    def running(self) -> int:
        """Leases held by a living or dead consumer right now."""
        return sum(count for _, count in self._conn.execute(_RUNNING, (KIND,)).fetchall())

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
    console: Console, counts: Counts, *, duplicates: int, conflicts: int, killed_with: int, seconds: float
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
