"""The measurements, each as plain as it can be: what is counted, over which time, by whose clock."""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bellwire import submit
from bellwire_testkit.server_binaries import find_bin_dir
from benchmarks.app import Noop
from benchmarks.stand import Stand


@dataclass(frozen=True)
class Drain:
    """`rate` is jobs a second, from the commit that made them all to the last one's ending."""

    jobs: int
    rate: float
    attempts: int
    lines: int
    distinct: int


def bare_commits(stand: Stand, *, seconds: int = 10) -> float:
    """One-row commits a second of one pgbench client, prepared: what the disk and the server allow one
    client."""
    stand.conn.execute("CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, n integer)")
    script = stand.folder / "bare.sql"
    script.write_text("INSERT INTO bare (n) VALUES (1);\n")
    command = [
        str(find_bin_dir() / "pgbench"), "--no-vacuum", "--protocol", "prepared", "--client", "1", "--jobs",
        "1", "--time", str(seconds), "--file", str(script), stand.url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tps_of(done.stdout)


def tps_of(said: str) -> float:
    """Transactions a second, from what pgbench printed."""
    found = re.search(r"tps = ([0-9.]+)", said)
    if found is None:
        raise SystemExit(f"pgbench said no tps:\n{said}")
    return float(found.group(1))


def drain(stand: Stand, *, jobs: int, done: int) -> Drain:
    """How fast a backlog that was committed in one transaction is worked off, when `done` jobs are behind."""
    before = len(stand.lines())
    stand.submit(jobs, at_once=jobs)
    committed = stand.conn.execute("SELECT clock_timestamp()").fetchone()
    stand.wait_succeeded(done + jobs, 600)
    seconds = stand.conn.execute(
        "SELECT extract(epoch FROM max(ended_at) - %s)::float8 FROM bellwire.attempt", committed
    ).fetchone()
    lines = stand.lines()[before:]
    return Drain(
        jobs=jobs,
        rate=jobs / (seconds[0] if seconds else float("inf")),
        attempts=stand.one("SELECT count(*) FROM bellwire.attempt") - done,
        lines=len(lines),
        distinct=len({line.split()[0] for line in lines}),
    )


def single_submits(stand: Stand, *, rounds: int = 6, each: int = 400) -> tuple[float, float]:
    """Submits a second, and bare BEGIN, INSERT, COMMIT a second, of one psycopg client: in turns, the best
    of each.

    The jobs are due tomorrow, so that nobody works them off meanwhile.
    """
    submits, inserts = [], []
    run_in = stand.conn.execute("SELECT interval '1 day'").fetchone()
    tomorrow = run_in[0] if run_in else None
    with stand.connect() as conn:
        for _ in range(rounds):
            began = time.perf_counter()
            for n in range(each):
                submit(conn, Noop(n=n), run_in=tomorrow)
                conn.commit()
            submits.append(each / (time.perf_counter() - began))
            began = time.perf_counter()
            for n in range(each):
                conn.execute("INSERT INTO bare (n) VALUES (%s)", (n,))
                conn.commit()
            inserts.append(each / (time.perf_counter() - began))
    return statistics.median(submits), statistics.median(inserts)


def start_latency(stand: Stand, *, samples: int = 200) -> list[float]:
    """Seconds from the answered COMMIT to the handler's first line, one job at a time, with pauses
    between."""
    seen = len(stand.lines())
    at: dict[str, int] = {}
    with stand.connect() as conn:
        for n in range(samples):
            receipt = submit(conn, Noop(n=n))
            conn.commit()
            at[str(receipt.job_id)] = time.monotonic_ns()
            time.sleep(random.uniform(0.05, 0.15))
    stand.wait(lambda: len(stand.lines()) >= seen + samples, 30, "the last of the single jobs")
    started = {line.split()[0]: int(line.split()[1]) for line in stand.lines()[seen:]}
    return sorted((started[job] - committed) / 1e9 for job, committed in at.items())


def work_off(stand: Stand, *, done: int, to: int) -> None:
    """Submit and wait until `to` jobs in all are behind, in parts of twenty thousand."""
    while done < to:
        step = min(20_000, to - done)
        stand.submit(step)
        done += step
        stand.wait_succeeded(done, 600)


def resident(stand: Stand) -> tuple[float, float]:
    """MiB that relay and consumer occupy now."""
    return _resident(stand.relay_pid), _resident(stand.consumer_pids[0])


def _resident(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise SystemExit(f"process {pid} has no memory to read")
    return int(found.group(1)) / 1024
