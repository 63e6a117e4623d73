"""`make bench`: measure, compare with the floor, and say so; exit code 1 where a floor is missed.

Rates are quoted as multiples of the same run's bare one-row commits, because this machine's disk is not a
merit. `--quick` takes a tenth of the jobs: for a look, not for a verdict.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.measures import bare_commits, drain, resident, single_submits, start_latency, work_off
from benchmarks.stand import Stand

MIB = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs: a look, no verdict")
    quick = parser.parse_args().quick
    scale, seconds = (10, 5) if quick else (1, 10)
    console = Console()
    floors: list[tuple[str, str, str, bool]] = []

    with Stand() as stand:
        if not stand.durable():
            console.print(
                "the server does not wait for its disk (fsync, synchronous_commit, full_page_writes)"
            )
            return 1
        console.print("bare commits …")
        bare = bare_commits(stand, seconds=seconds)
        stand.start_daemons()
        warm_up, jobs, total = 20_000 // scale, 60_000 // scale, 200_000 // scale
        console.print("latency …")
        alone = 300 // scale
        delays = start_latency(stand, samples=alone)
        median = statistics.median(delays) * 1000
        p99 = delays[int(len(delays) * 0.99)] * 1000
        floors.append(
            (
                "commit → handler start, idle",
                f"median {median:.1f} ms, 99th {p99:.1f} ms",
                "median ≤ 8 ms",
                median <= 8,
            )
        )
        console.print("draining …")
        stand.submit(warm_up)
        stand.wait_succeeded(alone + warm_up, 120)
        before = resident(stand)
        found = drain(stand, jobs=jobs, done=alone + warm_up)
        bare = (bare + bare_commits(stand, seconds=seconds)) / 2
        exact = found.attempts == found.lines == found.distinct == jobs
        floors.append(
            (
                f"{jobs:,} no-op jobs drained",
                f"{found.rate:,.0f}/s = {found.rate / bare:.2f} × bare commits ({bare:,.0f}/s)",
                "≥ 2.0 ×",
                found.rate / bare >= 2.0,
            )
        )
        floors.append(
            (
                "each run once",
                f"{found.attempts:,} attempt rows, {found.lines:,} lines, {found.distinct:,} jobs",
                f"{jobs:,} each",
                exact,
            )
        )
        console.print("memory …")
        work_off(stand, done=alone + warm_up + jobs, to=alone + total)
        relay, consumer = (after - start for start, after in zip(before, resident(stand), strict=True))
        span = f"from job {warm_up:,} to {total:,}"
        floors.append((f"relay's growth {span}", f"{relay:+.1f} MiB", "< 20 MiB", relay < MIB))
        floors.append(("consumer's growth likewise", f"{consumer:+.1f} MiB", "< 20 MiB", consumer < MIB))
        console.print("latency again …")
        late = start_latency(stand, samples=100 // scale)
        floors.append(
            (
                "the same right after these jobs, before a vacuum",
                f"median {statistics.median(late) * 1000:.1f} ms",
                "none",
                True,
            )
        )
        console.print("submits …")
        submits, inserts = single_submits(stand)
        floors.append(
            (
                "single submits, one client",
                f"{submits:,.0f}/s = {submits / inserts:.2f} × BEGIN, INSERT, COMMIT ({inserts:,.0f}/s)",
                "≥ 0.5 ×",
                submits / inserts >= 0.5,
            )
        )

    table = Table(
        "measured", "figure", "floor", "", title="bellwire: the speed floor" + (" (quick)" if quick else "")
    )
    for name, figure, floor, held in floors:
        table.add_row(name, figure, floor, "[green]held[/]" if held else "[red]missed[/]")
    console.print(table)
    return 0 if quick or all(held for *_, held in floors) else 1


if __name__ == "__main__":
    sys.exit(main())
