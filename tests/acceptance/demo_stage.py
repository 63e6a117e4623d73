"""What tests of `make demo` look at: its processes, its database while it runs, and its daemons' metrics."""

import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
QUIET = {"BROKER": ""}  # as a developer's shell may have it set
_LOOK = """
    SELECT (SELECT count(*) FROM bellwire.job),
           (SELECT count(*) FROM bellwire.job WHERE state = 'succeeded'),
           (SELECT count(*) FROM bellwire.attempt),
           (SELECT count(*) FROM bellwire.attempt WHERE outcome = 'recovered'),
           (SELECT count(*) FROM bellwire.outbox),
           (SELECT bool_or(broker_well) FROM bellwire.relay)
"""


def running(folder: Path) -> list[str]:
    """Command lines of processes that were told of this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "environ").read_bytes()
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"STATEMENTS_ARTIFACTS={folder}".encode() in told:
            found.append(line)
    return found


def told_table(output: str) -> dict[str, str]:
    """The table that the demo prints."""
    return dict(re.findall(r"│ ([a-z][^│]*?) +│ +([^│]+?) │", output))


@dataclass
class Seen:
    """What the database said last."""

    jobs: int = 0
    succeeded: int = 0
    attempts: int = 0
    recovered: int = 0
    wake_ups: int = 0
    publishing: list[bool] = field(default_factory=list)
    """Whether the relay could publish, by its own word, each time that changed."""


class Witness:
    """Looks into the demo's database from outside, from its making to its end, by a connection of its own."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen = Seen()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            try:
                with psycopg.connect(self._server, autocommit=True) as conn:
                    row = conn.execute(
                        "SELECT datname FROM pg_database WHERE datname LIKE 'statements_demo%'"
                    ).fetchone()
                if row is not None:
                    with psycopg.connect(self._server, dbname=row[0], autocommit=True) as conn:
                        self._look(conn)
            except psycopg.Error:
                continue  # not made yet, or taken away

    def _look(self, conn: psycopg.Connection[Any]) -> None:
        while not self._stop.wait(0.1):
            row = conn.execute(_LOOK).fetchone()
            assert row is not None
            seen = self.seen
            seen.jobs, seen.succeeded, seen.attempts, seen.recovered, seen.wake_ups, well = row
            if well is not None and seen.publishing[-1:] != [well]:
                seen.publishing.append(well)


def counted(folder: Path, daemons: str, metric: str, label: str) -> Counter[str]:
    """A metric by one of its labels, summed over these daemons, each as it stood when it was last asked."""
    found: Counter[str] = Counter()
    for file in sorted((folder / "metrics").glob(f"{daemons}.txt")):
        for family in text_string_to_metric_families(file.read_text()):
            for sample in family.samples:
                if sample.name == metric:
                    found[sample.labels[label]] += int(sample.value)
    return found


def claims(folder: Path) -> Counter[str]:
    """What named the jobs that the three consumers claimed."""
    assert len(list((folder / "metrics").glob("consumer-?.txt"))) == 3
    return counted(folder, "consumer-*", "bellwire_job_claimed_total", "source")
