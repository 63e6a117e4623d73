"""Without a broker: what the database, one relay and one consumer do by themselves."""

from __future__ import annotations

import statistics

from rich.console import Console

from benchmarks.measures import bare_commits, drain, resident, single_submits, start_latency, work_off
from benchmarks.report import Report
from benchmarks.stand import Stand

__all__ = ["straight"]

MIB = 20.0


def straight(console: Console, *, scale: int) -> Report:
    """All measurements, with a tenth of the jobs where `scale` is 10."""
    report = Report("without a broker")
    seconds = 10 if scale == 1 else 5
    with Stand() as stand:
        if not stand.durable():
            raise SystemExit(
                "the server does not wait for its disk (fsync, synchronous_commit, full_page_writes)"
            )
        console.print("bare commits …")
        bare = bare_commits(stand, seconds=seconds)
        stand.start_daemons()
        warm_up, jobs, total = 20_000 // scale, 60_000 // scale, 200_000 // scale
        console.print("latency …")
        alone = 300 // scale
        delays = start_latency(stand, samples=alone)
        median = statistics.median(delays) * 1000
        report.add(
            "commit → handler start, idle",
            f"median {median:.1f} ms, 99th {delays[int(len(delays) * 0.99)] * 1000:.1f} ms",
            "median ≤ 8 ms",
            held=median <= 8,
        )
        console.print("draining …")
        stand.submit(warm_up)
        stand.wait_succeeded(alone + warm_up, 120)
        before = resident(stand)
        found = drain(stand, jobs=jobs, done=alone + warm_up)
        bare = (bare + bare_commits(stand, seconds=seconds)) / 2
        report.add(
            f"{jobs:,} no-op jobs drained",
            f"{found.rate:,.0f}/s = {found.rate / bare:.2f} × bare commits ({bare:,.0f}/s)",
            "≥ 2.0 ×",
            held=found.rate / bare >= 2.0,
        )
        report.add(
            "each run once",
            f"{found.attempts:,} attempt rows, {found.lines:,} lines, {found.distinct:,} jobs",
            f"{jobs:,} each",
            held=found.attempts == found.lines == found.distinct == jobs,
        )
        console.print("memory …")
        work_off(stand, done=alone + warm_up + jobs, to=alone + total)
        relay, consumer = (after - start for start, after in zip(before, resident(stand), strict=True))
        span = f"from job {warm_up:,} to {total:,}"
        report.add(f"relay's growth {span}", f"{relay:+.1f} MiB", "< 20 MiB", held=relay < MIB)
        report.add("consumer's growth likewise", f"{consumer:+.1f} MiB", "< 20 MiB", held=consumer < MIB)
        console.print("latency again …")
        late = start_latency(stand, samples=100 // scale)
        report.add(
            "the same right after these jobs, before a vacuum",
            f"median {statistics.median(late) * 1000:.1f} ms",
        )
        console.print("submits …")
        submits, inserts = single_submits(stand)
        report.add(
            "single submits, one client",
            f"{submits:,.0f}/s = {submits / inserts:.2f} × BEGIN, INSERT, COMMIT ({inserts:,.0f}/s)",
            "≥ 0.5 ×",
            held=submits / inserts >= 0.5,
        )
    return report
