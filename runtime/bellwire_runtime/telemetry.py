"""All instruments of both daemons, each with unit and description; docs/reference/metrics.md is held to them.

Labels are bounded: kinds come from the policy table, codes are counted by name up to a limit and as `other`
beyond it, ids are never labels. What the relay measured is shown by the relay that measured it, and by nobody
once it stops measuring, so that a sum over processes stays true.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

__all__ = ["CORE", "Backlog", "BrokerState", "Core", "Heard", "Published", "Telemetry"]


@dataclass(frozen=True)
class Core:
    """One core metric, as the page shows it."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    labels: tuple[str, ...]
    description: str


CORE: tuple[Core, ...] = (
    Core("bellwire.job.ready", "gauge", "{job}", ("kind",), "Jobs that are eligible and wait to be claimed."),
    Core(
        "bellwire.job.ready.age",
        "gauge",
        "s",
        ("kind",),
        "How long the oldest ready job has been eligible; 0 where none waits.",
    ),
    Core("bellwire.job.running", "gauge", "{job}", ("kind",), "Jobs that hold a lease."),
    Core(
        "bellwire.job.claimed",
        "counter",
        "{job}",
        ("kind", "source"),
        "Attempts started by this process, and what named their jobs: a `hint`, or a `poll` of the table.",
    ),
    Core(
        "bellwire.job.settled",
        "counter",
        "{job}",
        ("kind", "outcome", "code"),
        "Attempts ended by this process, by outcome (`lost`: the lease was gone) and error code.",
    ),
    Core(
        "bellwire.job.recovered",
        "counter",
        "{job}",
        ("kind", "outcome"),
        "Jobs taken back from an expired lease by this process.",
    ),
    Core(
        "bellwire.job.start.delay",
        "histogram",
        "s",
        ("kind",),
        "From the time a job was due (its submit, or its run time) to the start of its attempt.",
    ),
    Core(
        "bellwire.loop.success.age",
        "gauge",
        "s",
        ("loop",),
        "Since the last successful pass of each background loop of this process.",
    ),
    Core(
        "bellwire.hint.published",
        "counter",
        "{hint}",
        ("result",),
        "Hints sent to the broker, by what became of them: `confirmed`, `returned`, `nacked`, `timed_out`, "
        "`refused`, or `dropped` unsent while the broker was away or blocked.",
    ),
    Core(
        "bellwire.hint.repeated",
        "counter",
        "{job}",
        (),
        "Jobs whose hint was published again because they stayed unclaimed.",
    ),
    Core(
        "bellwire.hint.heard",
        "counter",
        "{job}",
        ("result",),
        "Job ids heard: `fresh` (claimed), `stale` (nothing to claim), `forgotten` (more than twice the "
        "slots, while none was free). Whole messages: `garbage`, `foreign` (of another installation).",
    ),
    Core(
        "bellwire.broker.connected",
        "gauge",
        "1",
        ("connection",),
        "1 while everything on this process's broker connection stands, else 0.",
    ),
    Core(
        "bellwire.broker.blocked",
        "gauge",
        "1",
        ("connection",),
        "1 while the broker takes nothing from this process (a memory or disk alarm), else 0.",
    ),
    Core(
        "bellwire.broker.connects",
        "gauge",
        "{connection}",
        ("connection",),
        "How often the broker connection came to stand since the process started.",
    ),
)
_BY_NAME = {core.name: core for core in CORE}
_DELAYS = [
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
    0.064,
    0.125,
    0.25,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    300,
    1800,
    7200,
    86400,
]
_MAX_CODES = 100


Published = Literal["confirmed", "returned", "nacked", "timed_out", "refused", "dropped"]
Heard = Literal["fresh", "stale", "forgotten", "garbage", "foreign"]


class BrokerState(NamedTuple):
    """Of one connection: whether it stands, whether the broker blocks it, how often it came to stand."""

    connected: bool
    blocked: bool
    connects: int


@dataclass(frozen=True)
class Backlog:
    """What was measured of one kind. Ages in seconds."""

    ready: int
    ready_age: float
    running: int


class StartDelays(Collector):
    """The one histogram, recorded once a job; by the SDK that would be a fifth of what a job may cost."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def record(self, kind: str, delay: float) -> None:
        counts = self._counts.get(kind)
        if counts is None:
            counts = self._counts[kind] = [0] * (len(_DELAYS) + 1)
            self._sums[kind] = 0.0
        delay = max(0.0, delay)
        counts[bisect_left(_DELAYS, delay)] += 1
        self._sums[kind] += delay

    def collect(self) -> Iterable[HistogramMetricFamily]:
        name = self._core.name.replace(".", "_")
        family = HistogramMetricFamily(name, self._core.description, labels=self._core.labels, unit="seconds")
        bounds = [*(str(float(bound)) for bound in _DELAYS), "+Inf"]
        for kind, counts in list(self._counts.items()):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([kind], buckets, self._sums[kind])
        return [family]


class Telemetry:
    """The instruments of one process. Two in one process (tests) do not disturb each other."""

    def __init__(self, *, component: str, instance: str, version: str = "") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._reader = PrometheusMetricReader(registry=self.registry, scope_info_enabled=False)
        self._provider = MeterProvider(
            metric_readers=[self._reader],
            resource=Resource.create(
                {
                    "service.name": f"bellwire-{component}",
                    "service.instance.id": instance,
                    "service.version": version,
                }
            ),
            shutdown_on_exit=False,
        )
        self.meter = self._provider.get_meter("bellwire")
        self._codes: set[str] = set()
        self._backlog: Mapping[str, Backlog] = {}
        self._ages: dict[str, Callable[[], float]] = {}
        self._gauge("bellwire.job.ready", lambda: ((k, b.ready) for k, b in self._backlog.items()))
        self._gauge("bellwire.job.ready.age", lambda: ((k, b.ready_age) for k, b in self._backlog.items()))
        self._gauge("bellwire.job.running", lambda: ((k, b.running) for k, b in self._backlog.items()))
        self._gauge("bellwire.loop.success.age", lambda: ((n, age()) for n, age in self._ages.items()))
        self._brokers: dict[str, Callable[[], BrokerState]] = {}
        self._gauge("bellwire.broker.connected", lambda: self._broker_states(0))
        self._gauge("bellwire.broker.blocked", lambda: self._broker_states(1))
        self._gauge("bellwire.broker.connects", lambda: self._broker_states(2))
        self._published = self._counter("bellwire.hint.published")
        self._repeated = self._counter("bellwire.hint.repeated")
        self._heard = self._counter("bellwire.hint.heard")
        self._claimed = self._counter("bellwire.job.claimed")
        self._settled = self._counter("bellwire.job.settled")
        self._recovered = self._counter("bellwire.job.recovered")
        self._delays = StartDelays(_BY_NAME["bellwire.job.start.delay"])
        self.registry.register(self._delays)

    def claimed(self, kind: str, count: int = 1, *, source: Literal["hint", "poll"] = "poll") -> None:
        """`count` attempts of this kind were started, named by a hint or found by polling."""
        self._claimed.add(count, {"kind": kind, "source": source})

    def published(self, result: Published, count: int = 1) -> None:
        """What became of `count` hints."""
        self._published.add(count, {"result": result})

    def repeated(self, count: int) -> None:
        """`count` job ids were published again."""
        self._repeated.add(count)

    def heard(self, result: Heard, count: int = 1) -> None:
        """What became of `count` job ids, or messages, that were heard."""
        self._heard.add(count, {"result": result})

    def broker(self, connection: str, state: "Callable[[], BrokerState]") -> None:
        """Show a broker connection's state under its name."""
        self._brokers[connection] = state

    def started(self, kind: str, delay: float) -> None:
        """An attempt started `delay` seconds after its job was due."""
        self._delays.record(kind, delay)

    def settled(self, kind: str, outcome: str, code: str = "", count: int = 1) -> None:
        """`count` attempts ended. `code` is empty for a success."""
        self._settled.add(count, {"kind": kind, "outcome": outcome, "code": self._bounded(code)})

    def recovered(self, kind: str, outcome: str, count: int = 1) -> None:
        """`count` jobs were taken back from an expired lease."""
        self._recovered.add(count, {"kind": kind, "outcome": outcome})

    def backlog(self, measured: Mapping[str, Backlog]) -> None:
        """Replace what is shown of the backlog; an empty mapping: this process no longer measures."""
        self._backlog = dict(measured)

    def loop_age(self, name: str, age: Callable[[], float]) -> None:
        """Show a loop's age under its name."""
        self._ages[name] = age

    def close(self) -> None:
        """Let go of the registry; safe to call twice."""
        self._provider.shutdown(timeout_millis=1000)

    def _broker_states(self, which: int) -> Iterable[tuple[str, float]]:
        return [(name, float(state()[which])) for name, state in self._brokers.items()]

    def _bounded(self, code: str) -> str:
        if code in self._codes or not code:
            return code
        if len(self._codes) >= _MAX_CODES:
            return "other"
        self._codes.add(code)
        return code

    def _counter(self, name: str) -> Counter:
        core = _BY_NAME[name]
        return self.meter.create_counter(name, unit=core.unit, description=core.description)

    def _gauge(self, name: str, read: Callable[[], Iterable[tuple[str, float]]]) -> None:
        core = _BY_NAME[name]
        label = core.labels[0]

        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, {label: who}) for who, value in read()]

        self.meter.create_observable_gauge(
            name, callbacks=[observe], unit=core.unit, description=core.description
        )
