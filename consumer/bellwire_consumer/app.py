"""`App`: which kinds this code runs, and how. It is a declaration; nothing happens until a daemon takes it.

The app's name owns the policy of its kinds: `bellwire apply` writes what `declared()` answers and touches no
other app's rows. An option that this version cannot honour is accepted here, so that code can be written and
type-checked ahead, and refused by `declared()`, through which apply, the consumer and the test kit all go.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from typing_extensions import TypeVar as DefaultTypeVar

from bellwire_consumer import lifespan as lifespans
from bellwire_consumer.attempt import AnyAttempt, AsyncAttempt, Attempt
from bellwire_consumer.handler import LEASE, SHORTEST_LEASE, TIMEOUT, ErrorMapping, Handler, is_async
from bellwire_consumer.lifespan import Lifespan
from bellwire_consumer.options import Limits, Process, Retention, Retry
from bellwire_outbox import FailedJob, Job, JobConfig
from bellwire_schema.errors import ConfigError
from bellwire_schema.policy import KindPolicy

__all__ = ["App", "Hook", "Result"]

JobT = TypeVar("JobT", bound=Job)
D = DefaultTypeVar("D", default=None)
HookT = TypeVar("HookT", bound="Hook")

Result: TypeAlias = bool | int | float | str | Sequence[Any] | Mapping[str, Any] | None
"""What a handler may return: JSON. It is checked as such when the attempt settles."""

Hook: TypeAlias = Callable[[AnyAttempt], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")


class Registration(Generic[JobT, D]):
    """What `@app.handler(...)` decorates with: it takes the function and gives it back unchanged."""

    def __init__(self, register: Callable[[Callable[..., Any]], None]) -> None:
        self._register = register

    @overload
    def __call__(
        self, function: Callable[[JobT, AsyncAttempt[D]], Awaitable[Result]], /
    ) -> Callable[[JobT, AsyncAttempt[D]], Awaitable[Result]]: ...

    @overload
    def __call__(
        self, function: Callable[[JobT, Attempt[D]], Result], /
    ) -> Callable[[JobT, Attempt[D]], Result]: ...

    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        self._register(function)
        return function


class App(Generic[D]):
    """A named set of handlers. `lifespan` opens what they share, once a process; it is `attempt.deps`."""

    def __init__(
        self,
        name: str,
        *,
        lifespan: Callable[[], AbstractAsyncContextManager[D] | AbstractContextManager[D]] | None = None,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"App: the name {name!r} must match {_NAME.pattern}")
        if lifespan is not None:
            lifespans.check(name, lifespan)
        self.name = name
        self._lifespan: Lifespan | None = lifespan
        self._handlers: dict[str, Handler] = {}
        self._hooks: list[Hook] = []
        self._parts: list[App[Any]] = []
        self._schedules: dict[str, tuple[Job, object]] = {}

    def __repr__(self) -> str:
        return f"App({self.name!r}, kinds={sorted(self._handlers)})"

    def handler(
        self,
        job_class: type[JobT],
        *,
        retry: Retry | None = None,
        timeout: timedelta | None = TIMEOUT,
        progress_timeout: timedelta | None = None,
        limits: Limits | None = None,
        errors: ErrorMapping | None = None,
        on_failed: type[FailedJob] | None = None,
        isolation: Process | None = None,
        lease: timedelta | None = None,
        interruptible: bool = False,
        aging: timedelta = timedelta(seconds=60),
        objective: timedelta | None = None,
        retention: Retention | None = None,
    ) -> Registration[JobT, D]:
        """Run jobs of this class with the function below. Raises `ConfigError` for what cannot work.

        timeout: of one attempt (an hour if nothing is said); its end cancels a coroutine, and abandons a
        thread.
            None only beside progress_timeout, the longest time without `attempt.progress`.
        lease: how long a crashed process keeps its job from others. Renewed at a third of it.
        errors: which outcome an exception class means; the most specific class wins, what is not named is
        unknown.
        interruptible: a cancel request cancels the coroutine.
        aging: how much waiting time a point of priority is worth.
        objective: the wait that is still in order.
        """
        config = getattr(job_class, "job_config", None)
        if not (isinstance(job_class, type) and issubclass(job_class, Job)) or not isinstance(
            config, JobConfig
        ):
            raise ConfigError(
                f"App {self.name}: handler takes a Job class with a job_config, got {job_class!r}"
            )
        for name, value, wanted in (
            ("retry", retry, Retry),
            ("limits", limits, Limits),
            ("isolation", isolation, Process),
            ("retention", retention, Retention),
        ):
            if value is not None and not isinstance(value, wanted):
                raise ConfigError(
                    f"handler of {config.kind}: {name} takes {wanted.__name__}(...), got {value!r}"
                )

        def register(function: Callable[..., Any]) -> None:
            derived = LEASE
            if isinstance(timeout, timedelta):
                derived = max(SHORTEST_LEASE, min(LEASE, timeout))
            self._register(
                Handler(
                    job_class=job_class,
                    function=function,
                    is_async=is_async(function),
                    kind=config.kind,
                    version=config.version,
                    retry=retry or Retry(),
                    timeout=timeout,
                    progress_timeout=progress_timeout,
                    limits=limits or Limits(),
                    errors=dict(errors or {}),
                    on_failed=on_failed,
                    isolation=isolation,
                    lease=derived if lease is None else lease,
                    interruptible=interruptible,
                    aging=aging,
                    objective=objective,
                    retention=retention or Retention(),
                )
            )

        return Registration(register)

    def _register(self, handler: Handler) -> None:
        handler.check()
        _check_signature(handler)
        if handler.kind in self._handlers:
            raise ConfigError(
                f"App {self.name}: {handler.kind} has a handler already: "
                f"{self._handlers[handler.kind].function!r}"
            )
        self._handlers[handler.kind] = handler

    def include(self, other: "App[D] | App[None]") -> None:
        """Run another app's handlers too, inside its own hooks and then in ours, under our name and
        lifespan."""
        if other is self or self in list(other.parts()):
            raise ConfigError(f"App {self.name}: it cannot include itself")
        if other._lifespan is not None and other._lifespan is not self._lifespan:
            raise ConfigError(
                f"App {self.name}: {other.name} brings a lifespan of its own, and a process has one: "
                "the outer app's"
            )
        self._parts.append(other)

    def around(self, hook: HookT) -> HookT:
        """Enter `hook(attempt)`, a sync or async context manager, around each attempt; the first one is
        outermost.

        It sees the exception that the handler raised, and cannot swallow it. An error of its own is the
        attempt's.
        """
        if not callable(hook):
            raise ConfigError(f"App {self.name}: around takes a function, got {hook!r}")
        self._hooks.append(hook)
        return hook

    def schedule(
        self,
        name: str,
        job: Job,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        tz: str = "UTC",
        catch_up: Literal["skip", "latest", "all"],
        catch_up_max: int | None = None,
        overlap: Literal["allow", "skip", "queue"],
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: timedelta | None = None,
    ) -> None:
        """Submit a job by the calendar. Not built yet: accepted here, refused by `bellwire apply`."""
        rule = (cron, every, tz, catch_up, catch_up_max, overlap, start, end, jitter)
        self._schedules[name] = (job, rule)

    def parts(self) -> "Iterator[App[Any]]":
        """This app and all it includes, itself first."""
        yield self
        for part in self._parts:
            yield from part.parts()

    def handlers(self) -> dict[str, tuple[Handler, tuple[Hook, ...]]]:
        """Kind to handler and the hooks around it, outermost first. Raises `ConfigError` on two of one
        kind."""
        found: dict[str, tuple[Handler, tuple[Hook, ...]]] = {}
        for kind, handler in self._handlers.items():
            found[kind] = (handler, tuple(self._hooks))
        for part in self._parts:
            for kind, (handler, hooks) in part.handlers().items():
                if kind in found:
                    raise ConfigError(f"App {self.name}: {kind} has two handlers, one of them in {part.name}")
                found[kind] = (handler, (*self._hooks, *hooks))
        return found

    @property
    def lifespan(self) -> Lifespan | None:
        return self._lifespan

    def declared(self) -> list[KindPolicy]:
        """The policy of every kind, by name. Raises `ConfigError` for what cannot work or is not built
        yet."""
        handlers = {kind: handler for kind, (handler, _) in self.handlers().items()}
        unbuilt = [text for handler in handlers.values() for text in handler.unbuilt()]
        unbuilt += [f"schedule {name!r}" for part in self.parts() for name in part._schedules]
        if unbuilt:
            raise ConfigError(
                f"App {self.name}: not built yet, and refused rather than ignored: "
                f"{'; '.join(sorted(unbuilt))}"
            )
        if not handlers:
            raise ConfigError(
                f"App {self.name}: it has no handler; is the module that declares them imported?"
            )
        return [_policy(self.name, handlers[kind]) for kind in sorted(handlers)]


def _check_signature(handler: Handler) -> None:
    try:
        signature = inspect.signature(handler.function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise ConfigError(
            f"handler of {handler.kind}: it is called with (job, attempt), and {handler.function!r} takes "
            f"{signature}"
        ) from None
    # Only what is surely wrong is refused here; the rest is the type checker's.
    wanted, other = (AsyncAttempt, Attempt) if handler.is_async else (Attempt, AsyncAttempt)
    given = list(signature.parameters.values())[1].annotation
    if getattr(given, "__origin__", given) is other:
        raise ConfigError(
            f"handler of {handler.kind}: {'an async def' if handler.is_async else 'a plain def'} is given an "
            f"{wanted.__name__}, not an {other.__name__}"
        )


def _policy(app: str, handler: Handler) -> KindPolicy:
    retry, limits, retention = handler.retry, handler.limits, handler.retention
    follow_up = handler.on_failed.job_config if handler.on_failed is not None else None
    return KindPolicy(
        name=handler.kind,
        app=app,
        versions=handler.versions,
        lease=handler.lease,
        timeout=handler.timeout,
        progress_timeout=handler.progress_timeout,
        max_attempts=retry.max_attempts,
        retry_base=retry.base,
        retry_factor=float(retry.factor),
        retry_cap=retry.cap,
        retry_floor=retry.floor,
        retry_jitter=retry.jitter,
        max_unknown=retry.unknown,
        max_deaths=retry.deaths,
        max_waits=retry.waits,
        max_releases=retry.releases,
        aging=handler.aging,
        objective=handler.objective,
        interruptible=handler.interruptible,
        running=limits.running,
        running_per_tenant=limits.running_per_tenant,
        backlog=limits.backlog,
        when_full=limits.when_full,
        on_failed_kind=follow_up.kind if follow_up is not None else None,
        on_failed_version=follow_up.version if follow_up is not None else None,
        retain_succeeded=retention.succeeded,
        retain_failed=retention.failed,
        retain_cancelled=retention.cancelled,
        retain_payload=retention.payload,
    )
