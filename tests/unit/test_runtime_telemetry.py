"""The metrics page and the code say the same; labels are bounded; what is not measured is not shown."""

import re
from pathlib import Path

from prometheus_client import generate_latest

from bellwire_runtime.telemetry import CORE, Backlog, BrokerState, Telemetry

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()


def exposed(name: str, kind: str, unit: str) -> str:
    """The name as a scrape shows it, by the rules of the OpenTelemetry exporter."""
    suffix = {"counter": "_total"}.get(kind, "")
    return name.replace(".", "_") + ("_seconds" if unit == "s" else "") + suffix


def scrape(telemetry: Telemetry) -> str:
    return generate_latest(telemetry.registry).decode()


def test_the_page_lists_exactly_the_core_metrics() -> None:
    rows = re.findall(
        r"^\| `(bellwire\.[a-z.]+)` \| `(\w+)` \| (\w+) \| `([^`]*)` \| ([^|]*) \| ", PAGE, re.MULTILINE
    )
    assert [
        (core.name, exposed(core.name, core.kind, core.unit), core.kind, core.unit, ", ".join(core.labels))
        for core in CORE
    ] == [
        (name, shown, kind, unit, labels.replace("`", "").strip()) for name, shown, kind, unit, labels in rows
    ]
    for core in CORE:
        assert core.description in PAGE, f"the page says something else about {core.name}"


def test_every_core_metric_is_scraped_under_its_name() -> None:
    telemetry = Telemetry(component="relay", instance="i")
    telemetry.backlog({"work": Backlog(ready=3, ready_age=1.5, running=2)})
    telemetry.loop_age("admit", lambda: 0.25)
    telemetry.claimed("work", 2)
    telemetry.started("work", 0.003)
    telemetry.settled("work", "succeeded")
    telemetry.recovered("work", "lease_expired")
    telemetry.published("confirmed")
    telemetry.repeated(1)
    telemetry.heard("fresh")
    telemetry.broker("relay", lambda: BrokerState(connected=True, blocked=False, connects=1))
    text = scrape(telemetry)
    for core in CORE:
        name = exposed(core.name, core.kind, core.unit)
        line = next(line for line in text.splitlines() if re.match(rf"{name}(_count)?(\{{| )", line))
        assert all(f'{label}="' in line for label in core.labels), line
    assert 'bellwire_job_ready_age_seconds{kind="work"} 1.5' in text
    assert 'bellwire_job_start_delay_seconds_bucket{kind="work",le="0.004"} 1.0' in text
    telemetry.close()


def test_codes_are_bounded() -> None:
    telemetry = Telemetry(component="consumer", instance="i")
    for number in range(500):
        telemetry.settled("work", "retry", f"code_{number}")
    codes = set(re.findall(r'settled_total\{code="([^"]*)"', scrape(telemetry)))
    assert len(codes) == 101
    assert "other" in codes
    telemetry.close()


def test_who_no_longer_measures_shows_nothing() -> None:
    telemetry = Telemetry(component="relay", instance="i")
    telemetry.backlog({"a": Backlog(1, 0.0, 0), "b": Backlog(2, 0.0, 0)})
    assert 'bellwire_job_ready{kind="b"} 2.0' in scrape(telemetry)
    telemetry.backlog({"a": Backlog(1, 0.0, 0)})
    assert 'kind="b"' not in scrape(telemetry)
    telemetry.backlog({})
    assert "bellwire_job_ready{" not in scrape(telemetry)
    telemetry.close()


def test_two_in_one_process_do_not_add_up() -> None:
    first, second = (Telemetry(component="relay", instance=i) for i in "ab")
    first.claimed("work", 5)
    assert "claimed_total{" not in scrape(second)
    first.close()
    second.close()
