"""One handler with everything the decorator said about it, checked where it is written.

A handler that cannot work is refused when its module is imported, with the name of the option and what to
write instead; only what needs the whole app (two handlers of one kind, options not built yet) waits for
`App.declared`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from bellwire_consumer.options import Limits, Process, Retention, Retry, duration
from bellwire_outbox import FailedJob, Job
from bellwire_schema.errors import ConfigError, HandlerOutcome

__all__ = ["LEASE", "SHORTEST_LEASE", "TIMEOUT", "ErrorMapping", "Handler"]

LEASE = timedelta(seconds=30)
TIMEOUT = timedelta(hours=1)
"""Of one attempt, where nothing is said: heartbeats must not keep a stuck handler alive for ever."""

# The shortest lease that a heartbeat at a third of it can hold on a busy machine.
SHORTEST_LEASE = timedelta(seconds=1)

ErrorMapping: TypeAlias = Mapping[type[BaseException], HandlerOutcome | Callable[[Any], HandlerOutcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A registered handler."""

    job_class: type[Job]
    function: Callable[[Any, Any], Any]
    is_async: bool
    kind: str
    version: int
    retry: Retry
    timeout: timedelta | None
    progress_timeout: timedelta | None
    limits: Limits
    errors: ErrorMapping
    on_failed: type[FailedJob] | None
    isolation: Process | None
    lease: timedelta
    interruptible: bool
    aging: timedelta
    objective: timedelta | None
    retention: Retention

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions it can run: its own, and those from which an unbroken chain of upgrades leads to
        it."""
        steps = self.job_class.__bellwire_upgrades__
        oldest = self.version
        while oldest - 1 in steps:
            oldest -= 1
        return tuple(range(oldest, self.version + 1))

    def check(self) -> None:
        """Refuse what cannot work. Raises `ConfigError` naming the handler, the option and the mend."""
        owner = f"handler of {self.kind}"
        duration(owner, "timeout", self.timeout)
        duration(owner, "progress_timeout", self.progress_timeout)
        duration(owner, "lease", self.lease, least=timedelta(0))
        duration(owner, "objective", self.objective)
        duration(owner, "aging", self.aging)
        if self.timeout is None and self.progress_timeout is None:
            raise ConfigError(
                f"{owner}: without timeout= and progress_timeout= a stuck attempt would keep its job for "
                "ever; give one of them"
            )
        if self.lease < SHORTEST_LEASE:
            raise ConfigError(
                f"{owner}: a lease of {self.lease} cannot be renewed in time; the shortest is "
                f"{SHORTEST_LEASE}"
            )
        if self.lease > timedelta(hours=1):
            raise ConfigError(
                f"{owner}: after a crash nobody takes the job up before its lease of {self.lease} is over; "
                "keep it within an hour: it is renewed while the handler runs"
            )
        longest = self.timeout or self.progress_timeout
        if longest is not None and self.progress_timeout is not None and self.progress_timeout > longest:
            raise ConfigError(f"{owner}: progress_timeout is longer than timeout, so it never counts")
        if self.interruptible and not self.is_async:
            raise ConfigError(f"{owner}: interruptible=True needs an async handler: no thread can be stopped")
        if self.isolation is not None and self.is_async:
            raise ConfigError(f"{owner}: isolation=Process(...) needs a plain def")
        self._check_errors(owner)
        self._check_on_failed(owner)

    def _check_errors(self, owner: str) -> None:
        for raised, answer in self.errors.items():
            if not (isinstance(raised, type) and issubclass(raised, BaseException)):
                raise ConfigError(f"{owner}: errors= maps exception classes, and {raised!r} is none")
            if not isinstance(answer, HandlerOutcome) and not callable(answer):
                raise ConfigError(
                    f"{owner}: errors[{raised.__name__}] must be RetryableError, ThrottledError, "
                    f"TerminalError or Snooze, or a function that returns one, and {answer!r} is none"
                )

    def _check_on_failed(self, owner: str) -> None:
        follow_up = self.on_failed
        if follow_up is None:
            return
        if not (isinstance(follow_up, type) and issubclass(follow_up, FailedJob)):
            raise ConfigError(
                f"{owner}: on_failed must be a subclass of FailedJob, and {follow_up!r} is none"
            )
        if follow_up is self.job_class:
            raise ConfigError(f"{owner}: on_failed would submit the kind itself, without end")

    def unbuilt(self) -> list[str]:
        """The options that this version cannot honour yet, each named; they are refused, never ignored."""
        found = []
        if self.limits.rate is not None or self.limits.rate_per_tenant is not None:
            found.append(f"{self.kind}: Limits(rate=, rate_per_tenant=)")
        if self.limits.when_full == "delay":
            found.append(f"{self.kind}: Limits(when_full='delay')")
        if self.isolation is not None:
            found.append(f"{self.kind}: isolation=Process(...)")
        return found


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, also through `functools.partial` and objects with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"{function!r} is a generator; a handler returns once, when the job is done")
    call = type(function).__call__ if not inspect.isroutine(function) else function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
