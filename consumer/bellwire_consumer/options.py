"""How a kind runs, as its handler declares it: plain frozen values, refused when written and not when used.

They are what `bellwire apply` writes into `bellwire.kind`; the daemons read that row, never these objects, so
an operator's override wins without a deploy. Every duration is a `timedelta`.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from bellwire_schema.errors import ConfigError

__all__ = ["Limits", "Process", "Rate", "Retention", "Retry"]

_SMALLINT = 32_767
_INTEGER = 2_147_483_647


def count(owner: str, name: str, value: int | None, *, least: int = 1, most: int = _INTEGER) -> None:
    """Refuse what is no whole number between `least` and `most`; None passes."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{owner}: {name} must be a whole number from {least} to {most}, got {value!r}")


def duration(
    owner: str, name: str, value: timedelta | None, *, least: timedelta = timedelta(milliseconds=1)
) -> None:
    """Refuse what is no `timedelta` of at least `least` and at most ten years; None passes."""
    if value is None:
        return
    if not isinstance(value, timedelta):
        raise ConfigError(f"{owner}: {name} must be a timedelta, got {value!r}")
    if not least <= value <= timedelta(days=3653):
        raise ConfigError(f"{owner}: {name} must lie between {least} and ten years, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What happens after an attempt that failed.

    The delay before run n + 1 is drawn uniformly from `floor` to min(cap, base × factor ** (n − 1)), or is
    that upper value where `jitter` is off. With jitter the first retry therefore comes after anything from
    `floor` to `base`, on average half of it. No retry is planned beyond the job's deadline.

    The budgets are counted apart since the last redrive, and the one that runs out ends the job as failed:
    `max_attempts` runs in all; `unknown` errors that nobody declared (None: no budget but max_attempts);
    `deaths` of the process that held it; `waits`, which are throttles and snoozes; `releases` at shutdown.
    """

    max_attempts: int = 5
    base: timedelta = timedelta(seconds=30)
    factor: float = 2
    cap: timedelta = timedelta(minutes=10)
    floor: timedelta = timedelta(0)
    jitter: bool = True
    unknown: int | None = None
    deaths: int = 5
    waits: int = 1000
    releases: int = 100

    def __post_init__(self) -> None:
        for name in ("max_attempts", "unknown", "deaths", "waits", "releases"):
            count("Retry", name, getattr(self, name), most=_SMALLINT)
        duration("Retry", "base", self.base)
        duration("Retry", "cap", self.cap)
        duration("Retry", "floor", self.floor, least=timedelta(0))
        if isinstance(self.factor, bool) or not isinstance(self.factor, (int, float)):
            raise ConfigError(f"Retry: factor must be a number, got {self.factor!r}")
        if not 1 <= self.factor <= 100:
            raise ConfigError(f"Retry: factor must lie between 1 and 100, got {self.factor}")
        if self.cap < self.base:
            raise ConfigError(f"Retry: cap ({self.cap}) is below base ({self.base}); raise cap or lower base")
        if self.floor > self.cap:
            raise ConfigError(f"Retry: floor ({self.floor}) is above cap ({self.cap})")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts a `per`, with at most `burst` at once (by default the count)."""

    count: int
    per: timedelta
    burst: int | None = None

    def __post_init__(self) -> None:
        count("Rate", "count", self.count)
        duration("Rate", "per", self.per)
        count("Rate", "burst", self.burst)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds over all consumers: jobs running at once, and jobs waiting (`backlog`, with `when_full`)."""

    running: int | None = None
    running_per_tenant: int | None = None
    rate: Rate | None = None
    rate_per_tenant: Rate | None = None
    backlog: int | None = None
    when_full: Literal["reject", "delay", "accept"] = "reject"

    def __post_init__(self) -> None:
        for name in ("running", "running_per_tenant", "backlog"):
            count("Limits", name, getattr(self, name))
        for name in ("rate", "rate_per_tenant"):
            rate = getattr(self, name)
            if rate is not None and not isinstance(rate, Rate):
                raise ConfigError(f"Limits: {name} must be a Rate, got {rate!r}")
        if self.when_full not in {"reject", "delay", "accept"}:
            raise ConfigError(
                f"Limits: when_full must be 'reject', 'delay' or 'accept', got {self.when_full!r}"
            )
        if self.when_full != "reject" and self.backlog is None:
            raise ConfigError(f"Limits: when_full={self.when_full!r} means nothing without backlog=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long ended jobs are kept, by how they ended; `payload` purges the payload alone, earlier."""

    succeeded: timedelta = timedelta(days=7)
    failed: timedelta = timedelta(days=90)
    cancelled: timedelta = timedelta(days=30)
    payload: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("succeeded", "failed", "cancelled", "payload"):
            duration("Retention", name, getattr(self, name), least=timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Run each attempt in a child process, bounded in memory."""

    memory_mib: int | None = None

    def __post_init__(self) -> None:
        count("Process", "memory_mib", self.memory_mib, least=16)
