"""The verdict: reads the database and the folder as a stranger would, and says whether they add up.

It imports nothing of Bellwire and nothing of this example, so a mistake of ours cannot hide itself by being
on both sides. All rows are read in one snapshot. Exit code: 0 everything adds up, 1 something does not, 2 it
could not look.
"""

import argparse
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

SHOWN = 3

JOBS = """
    SELECT id, state, attempt, payload ->> 'account_id' AS account, payload ->> 'period' AS period, version
      FROM bellwire.job WHERE kind = %s ORDER BY id
"""
ATTEMPTS = """
    SELECT a.job_id, a.number, a.outcome, a.started_at, a.ended_at
      FROM bellwire.attempt a JOIN bellwire.job j ON j.id = a.job_id
     WHERE j.kind = %s ORDER BY a.job_id, a.number, a.ended_at
"""
STATEMENTS = """
    SELECT account_id::text AS account, period, version, key, sha256, bytes, job_id, attempt
      FROM shop.statement
"""
REQUESTS = "SELECT account_id::text AS account, period, job_id, outcome FROM shop.request"
WAKE_UPS = "SELECT job_id FROM bellwire.outbox WHERE kind = %s"


@dataclass
class Verdict:
    """What was claimed, how often it was looked at, and what contradicts it."""

    lines: list[tuple[str, int, list[str]]] = field(default_factory=list)

    def claim(self, text: str, looked_at: int, wrong: Iterable[object]) -> None:
        self.lines.append((text, looked_at, sorted(str(each) for each in wrong)))

    @property
    def failed(self) -> int:
        return sum(1 for _, _, wrong in self.lines if wrong)

    def show(self) -> None:
        width = max(len(text) for text, _, _ in self.lines)
        for text, looked_at, wrong in self.lines:
            print(f"  {'WRONG' if wrong else 'ok':5}  {text:{width}}  {looked_at:>7,}")
            for each in wrong[:SHOWN]:
                print(f"         - {each}")
            if len(wrong) > SHOWN:
                print(f"         - and {len(wrong) - SHOWN:,} more")


@dataclass(frozen=True)
class Rows:
    jobs: Sequence[Any]
    attempts: Sequence[Any]
    statements: Sequence[Any]
    requests: Sequence[Any]
    wake_ups: Sequence[Any]


def read(address: str, kind: str) -> Rows:
    """Everything we judge, in one snapshot."""
    with psycopg.connect(address, row_factory=namedtuple_row) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.read_only = True
        return Rows(
            jobs=conn.execute(JOBS, (kind,)).fetchall(),
            attempts=conn.execute(ATTEMPTS, (kind,)).fetchall(),
            statements=conn.execute(STATEMENTS).fetchall(),
            requests=conn.execute(REQUESTS).fetchall(),
            wake_ups=conn.execute(WAKE_UPS, (kind,)).fetchall(),
        )


def judge_jobs(verdict: Verdict, rows: Rows) -> None:
    """Requests, jobs and attempts among themselves."""
    jobs = {job.id: job for job in rows.jobs}
    lost = [
        f"request for {r.account}/{r.period}: no job {r.job_id}"
        for r in rows.requests
        if r.job_id not in jobs
    ]
    verdict.claim("every accepted request has its job", len(rows.requests), lost)

    asked: dict[tuple[str, str], set[Any]] = {}
    for request in rows.requests:
        asked.setdefault((request.account, request.period), set()).add(request.job_id)
    verdict.claim(
        "an account and period has one job, however often it was asked for",
        len(asked),
        [f"{account}/{period}: {len(ids)} jobs" for (account, period), ids in asked.items() if len(ids) > 1],
    )
    twice = [
        name
        for name, n in Counter((job.account, job.period, job.version) for job in rows.jobs).items()
        if n > 1
    ]
    verdict.claim("no job was made twice", len(jobs), twice)
    verdict.claim(
        "every job has succeeded",
        len(jobs),
        [f"{j.id}: {j.state}" for j in rows.jobs if j.state != "succeeded"],
    )
    verdict.claim("no wake-up is left", len(rows.wake_ups), [w.job_id for w in rows.wake_ups])

    by_job: dict[Any, list[Any]] = {job_id: [] for job_id in jobs}
    for attempt in rows.attempts:
        by_job[attempt.job_id].append(attempt)
    verdict.claim(
        "every job succeeded once, in its last attempt",
        len(jobs),
        [
            f"{job_id}: {[attempt.outcome for attempt in attempts]}"
            for job_id, attempts in by_job.items()
            if [n for n, attempt in enumerate(attempts, start=1) if attempt.outcome == "succeeded"]
            != [len(attempts)]
        ],
    )
    verdict.claim(
        "attempt numbers rise by one, and each has one ending",
        len(rows.attempts),
        [
            f"{job_id}: {[attempt.number for attempt in attempts]}, the job says {jobs[job_id].attempt}"
            for job_id, attempts in by_job.items()
            if [attempt.number for attempt in attempts] != list(range(1, jobs[job_id].attempt + 1))
        ],
    )
    verdict.claim(
        "no two leases of a job ran at once",
        len(rows.attempts),
        [
            f"{job_id}: attempt {later.number} began before {earlier.number} had ended"
            for job_id, attempts in by_job.items()
            for earlier, later in pairwise(attempts)
            if later.started_at < earlier.ended_at
        ],
    )


def judge_statements(verdict: Verdict, rows: Rows, folder: Path) -> None:
    """Rows against jobs, files against rows."""
    jobs = {job.id: job for job in rows.jobs}
    made = {statement.job_id for statement in rows.statements}
    verdict.claim("every job has its statement row", len(jobs), [i for i in jobs if i not in made])
    verdict.claim(
        "every statement row belongs to its job and to the attempt that succeeded",
        len(rows.statements),
        [
            f"{s.key}: job {s.job_id}, attempt {s.attempt}"
            for s in rows.statements
            if (job := jobs.get(s.job_id)) is None
            or (s.account, s.period, s.version, s.attempt)
            != (job.account, job.period, job.version, job.attempt)
        ],
    )
    verdict.claim(
        "every key is the deterministic one",
        len(rows.statements),
        [s.key for s in rows.statements if s.key != f"statements/{s.account}/{s.period}/v{s.version}.pdf"],
    )
    wrong = [
        text for statement in rows.statements if (text := file_trouble(folder / statement.key, statement))
    ]
    verdict.claim("every row's file is there, whole, with the row's checksum", len(rows.statements), wrong)
    keys = {statement.key for statement in rows.statements}
    files = [
        path.relative_to(folder).as_posix() for path in (folder / "statements").rglob("*") if path.is_file()
    ]
    verdict.claim(
        "no file stands under a key without a row", len(files), [name for name in files if name not in keys]
    )


def judge_temporaries(verdict: Verdict, rows: Rows, folder: Path) -> None:
    """Nobody points at an unfinished file, and of finished statements none is left."""
    keys = {statement.key for statement in rows.statements}
    left = [path.name for path in folder.glob(".temporary/*")]
    finished = {key.replace("/", "+") for key in keys}
    verdict.claim(
        "no row points at a temporary file", len(keys), [key for key in keys if ".temporary" in key]
    )
    verdict.claim(
        "no temporary file of a finished statement is left",
        len(left),
        [name for name in left if name.rsplit(".", 2)[0] in finished],
    )


def file_trouble(path: Path, statement: Any) -> str | None:
    try:
        content = path.read_bytes()
    except OSError as error:
        return f"{statement.key}: {error.strerror}"
    digest = hashlib.sha256(content).hexdigest()
    if digest != statement.sha256:
        return f"{statement.key}: the file has SHA-256 {digest}, its row {statement.sha256}"
    if len(content) != statement.bytes:
        return f"{statement.key}: the file has {len(content)} bytes, its row says {statement.bytes}"
    if not content.startswith(b"%PDF-") or not content.rstrip().endswith(b"%%EOF"):
        return f"{statement.key}: no whole PDF"
    return None


def judge(rows: Rows, folder: Path, *, jobs: int | None = None, recovered: int = 0) -> Verdict:
    """All claims; `jobs` and `recovered` are what whoever ran the jobs says there must be."""
    verdict = Verdict()
    found = sum(1 for attempt in rows.attempts if attempt.outcome == "recovered")
    if jobs is not None:
        short = [] if len(rows.jobs) == jobs else [f"{len(rows.jobs):,} jobs, expected {jobs:,}"]
        verdict.claim("there are as many jobs as were asked for", len(rows.jobs), short)
    elif not rows.jobs:
        verdict.claim("there are jobs to judge", 0, ["no job of this kind"])
    few = [] if found >= recovered else [f"{found:,} recovered leases, expected at least {recovered:,}"]
    verdict.claim("leases were taken back from the dead", found, few)
    judge_jobs(verdict, rows)
    judge_statements(verdict, rows, folder)
    judge_temporaries(verdict, rows, folder)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Do the statements, their rows and their jobs add up?")
    parser.add_argument("--database-url", default=os.environ.get("BELLWIRE_DATABASE_URL"))
    parser.add_argument(
        "--artifacts", type=Path, default=os.environ.get("STATEMENTS_ARTIFACTS", "out/statements")
    )
    parser.add_argument("--kind", default="render_statement")
    parser.add_argument("--jobs", type=int, help="how many jobs there must be")
    parser.add_argument("--recovered", type=int, default=0, help="how many leases must have been taken back")
    given = parser.parse_args(arguments)
    if not given.database_url:
        print("verify: give --database-url or set BELLWIRE_DATABASE_URL", file=sys.stderr)
        return 2
    try:
        rows = read(given.database_url, given.kind)
    except psycopg.Error as error:
        print(f"verify: cannot read the database: {str(error).strip()}", file=sys.stderr)
        return 2
    verdict = judge(rows, Path(given.artifacts), jobs=given.jobs, recovered=given.recovered)
    verdict.show()
    if verdict.failed:
        print(f"{verdict.failed} of {len(verdict.lines)} claims do not hold")
        return 1
    print(f"all {len(verdict.lines)} claims hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
