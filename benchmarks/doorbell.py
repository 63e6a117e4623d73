"""Through RabbitMQ: drains by one and by two consumers, the latency of a lone job, what a relay costs those
who submit. Rates are medians of five, each beside bare commits taken right before and after it.
"""

from __future__ import annotations

import statistics
import subprocess
from dataclasses import dataclass

from rich.console import Console

from bellwire_testkit.server_binaries import find_bin_dir
from benchmarks.measures import bare_commits, drain, start_latency, tps_of
from benchmarks.processor import seconds
from benchmarks.report import Report
from benchmarks.stand import Stand

__all__ = ["doorbell"]

ROUNDS = 5
SUBMITTERS = 64
_SUBMIT = """SELECT job_id FROM bellwire.submit(kind => 'noop', version => 1, payload => '{"n": 1}');\n"""


@dataclass(frozen=True)
class Drained:
    """Medians of the rounds; `costs` are processor microseconds a job, by part."""

    rate: float
    multiple: float
    bare: float
    costs: dict[str, float]
    exact: bool


def doorbell(console: Console, *, scale: int) -> Report:
    """All measurements, with a tenth of the jobs where `scale` is 10."""
    report = Report("through RabbitMQ, median of five")
    jobs = 40_000 // scale
    with Stand(broker=True) as stand:
        stand.start_daemons()
        console.print("latency through the broker …")
        alone = 1000 // scale
        delays = start_latency(stand, samples=alone)
        median, worst = statistics.median(delays) * 1000, delays[int(len(delays) * 0.99)] * 1000
        report.add(
            f"commit → handler start, idle, {alone:,} jobs",
            f"median {median:.1f} ms, 99th {worst:.1f} ms",
            "≤ 5 ms, ≤ 15 ms",
            held=median <= 5 and worst <= 15,
        )
        stand.submit(jobs)
        done = alone + jobs
        stand.wait_succeeded(done, 300)
        for consumers, floor in ((1, 2.5), (2, 3.0)):
            if consumers > 1:
                stand.start_consumer()
            console.print(f"draining by {consumers} …")
            found = _drains(stand, jobs=jobs, done=done)
            done += ROUNDS * jobs
            report.add(
                f"{jobs:,} no-op jobs, one relay, {consumers} consumer{'s' * (consumers > 1)}",
                f"{found.rate:,.0f}/s = {found.multiple:.2f} × bare commits ({found.bare:,.0f}/s)",
                f"≥ {floor} ×",
                held=found.multiple >= floor,
            )
            report.add("each run once", "yes" if found.exact else "no", "yes", held=found.exact)
            split = ", ".join(f"{part} {cost:.0f}" for part, cost in found.costs.items())
            report.add("processor time a job", f"{split}; {sum(found.costs.values()):.0f} µs in all")
        console.print("what the relay costs submitters …")
        with_relay, without = _submitters(stand, duration=5 if scale == 1 else 2)
        report.add(
            f"{SUBMITTERS} submitters, no consumer, the relay running",
            f"{with_relay:,.0f}/s against {without:,.0f}/s = {with_relay / without:.2f} ×",
            "≥ 0.9 ×",
            held=with_relay / without >= 0.9,
        )
    return report


def _drains(stand: Stand, *, jobs: int, done: int) -> Drained:
    rates, multiples, bares = [], [], []
    costs: list[dict[str, float]] = []
    exact = True
    bare = bare_commits(stand, seconds=4)
    for _ in range(ROUNDS):
        before, spent = bare, _spent(stand)
        found = drain(stand, jobs=jobs, done=done)
        costs.append({part: (after - spent[part]) / jobs * 1e6 for part, after in _spent(stand).items()})
        bare = bare_commits(stand, seconds=4)
        done += jobs
        exact = exact and found.attempts == found.lines == found.distinct == jobs
        rates.append(found.rate)
        bares.append((before + bare) / 2)
        multiples.append(found.rate / bares[-1])
    return Drained(
        rate=statistics.median(rates),
        multiple=statistics.median(multiples),
        bare=statistics.median(bares),
        costs={part: statistics.median([cost[part] for cost in costs]) for part in costs[0]},
        exact=exact,
    )


def _spent(stand: Stand) -> dict[str, float]:
    assert stand.broker is not None
    return {
        # The submit of the backlog, all in one transaction, is in here too.
        "database": seconds(stand.server.pid),
        "relay": seconds(stand.relay_pid),
        "consumers": sum(seconds(pid) for pid in stand.consumer_pids),
        "broker": seconds(stand.broker.pid),
    }


def _submitters(stand: Stand, *, duration: int) -> tuple[float, float]:
    """Submits a second with a relay and without one, in turns; the medians of five."""
    stand.stop_daemons()
    script = stand.folder / "submit.sql"
    script.write_text(_SUBMIT)
    command = [
        str(find_bin_dir() / "pgbench"), "--no-vacuum", "--protocol", "prepared", "--client", str(SUBMITTERS),
        "--jobs", "2", "--time", str(duration), "--file", str(script), stand.url,
    ]  # fmt: skip
    rates: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * ROUNDS):
        relay = turn % 2 == 0
        if relay:
            stand.start_relay()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rates[relay].append(tps_of(done.stdout))
        if relay:
            stand.stop_daemons()
    return statistics.median(rates[True]), statistics.median(rates[False])
