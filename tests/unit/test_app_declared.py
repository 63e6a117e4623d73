"""What an app declares is refused where it is written if it cannot work, at apply if it is not built yet."""

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from bellwire_consumer import App, AsyncAttempt, Attempt, Limits, Process, Rate, Retention, Retry
from bellwire_outbox import FailedJob, Job, JobConfig, upgrade
from bellwire_schema.errors import ConfigError, RetryableError
from bellwire_schema.policy import KindPolicy
from bellwire_schema.tables import kind as kind_table

S = timedelta(seconds=1)


class Render(Job):
    job_config = JobConfig(kind="render", version=3, key=None)
    n: int = 0


class RenderFailed(FailedJob):
    job_config = JobConfig(kind="render_failed", version=2, key=None)


class Other(Job):
    job_config = JobConfig(kind="other", version=1, key=None)


async def run(job: Render, attempt: AsyncAttempt) -> None: ...
async def run_other(job: Other, attempt: AsyncAttempt) -> None: ...
def run_plain(job: Render, attempt: Attempt) -> None: ...


def declared(**options: Any) -> KindPolicy:
    app = App("billing")
    app.handler(Render, **options)(run)
    (policy,) = app.declared()
    return policy


def test_every_option_reaches_its_column() -> None:
    policy = declared(
        retry=Retry(
            max_attempts=6, base=2 * S, factor=3, cap=20 * S, floor=S, jitter=False,
            unknown=4, deaths=5, waits=6, releases=7,
        ),
        timeout=600 * S,
        progress_timeout=60 * S,
        limits=Limits(running=20, running_per_tenant=2, backlog=50_000, when_full="accept"),
        on_failed=RenderFailed,
        lease=9 * S,
        interruptible=True,
        aging=30 * S,
        objective=5 * S,
        retention=Retention(succeeded=S, failed=2 * S, cancelled=3 * S, payload=4 * S),
    )  # fmt: skip
    assert policy.columns() == {
        "name": "render",
        "app": "billing",
        "versions": [3],
        "lease": 9 * S,
        "timeout": 600 * S,
        "progress_timeout": 60 * S,
        "max_attempts": 6,
        "retry_base": 2 * S,
        "retry_factor": 3.0,
        "retry_cap": 20 * S,
        "retry_floor": S,
        "retry_jitter": False,
        "max_unknown": 4,
        "max_deaths": 5,
        "max_waits": 6,
        "max_releases": 7,
        "aging": 30 * S,
        "objective": 5 * S,
        "interruptible": True,
        "running": 20,
        "running_per_tenant": 2,
        "backlog": 50_000,
        "when_full": "accept",
        "on_failed_kind": "render_failed",
        "on_failed_version": 2,
        "retain_succeeded": S,
        "retain_failed": 2 * S,
        "retain_cancelled": 3 * S,
        "retain_payload": 4 * S,
    }


def test_a_policy_has_columns_of_the_table_only() -> None:
    assert {field.name for field in fields(KindPolicy)} <= set(kind_table.columns.keys())


@pytest.mark.parametrize(
    ("timeout", "lease"),
    [(None, 30.0), (timedelta(hours=1), 30.0), (10 * S, 10.0), (0.2 * S, 1.0)],
    ids=str,
)
def test_the_lease_is_derived_from_the_timeout(timeout: timedelta | None, lease: float) -> None:
    policy = declared(timeout=timeout, progress_timeout=S if timeout is None else None)
    assert policy.lease.total_seconds() == lease


def test_nothing_said_is_an_hour_not_for_ever() -> None:
    assert declared().timeout == timedelta(hours=1)


def test_versions_follow_an_unbroken_chain_of_upgrades() -> None:
    class Old(Job):
        job_config = JobConfig(kind="old", version=5, key=None)

    app = App("billing")

    async def old(job: Old, attempt: AsyncAttempt) -> None: ...

    app.handler(Old)(old)
    upgrade(Old, from_version=4)(lambda payload: payload)
    upgrade(Old, from_version=3)(lambda payload: payload)
    upgrade(Old, from_version=1)(lambda payload: payload)
    assert app.declared()[0].versions == (3, 4, 5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"timeout": None}, "progress_timeout"),
        ({"lease": 0.5 * S}, "shortest"),
        ({"lease": timedelta(hours=2)}, "within an hour"),
        ({"lease": 30}, "timedelta"),
        ({"timeout": 10}, "timedelta"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"timeout": S, "progress_timeout": 2 * S}, "never counts"),
        ({"retry": 3}, "Retry"),
        ({"limits": {"running": 3}}, "Limits"),
        ({"errors": {ValueError: "retry"}}, "errors"),
        ({"errors": {"ValueError": RetryableError("x")}}, "exception classes"),
        ({"on_failed": Other}, "FailedJob"),
        ({"isolation": Process()}, "plain def"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_work_is_refused_where_it_is_written(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        App("billing").handler(Render, **options)(run)


def test_a_thread_cannot_be_interrupted() -> None:
    with pytest.raises(ConfigError, match="interruptible"):
        App("billing").handler(Render, interruptible=True)(run_plain)


async def async_generator(job: Render, attempt: AsyncAttempt) -> AsyncIterator[int]:
    yield 1


async def sync_attempt(job: Render, attempt: Attempt) -> None: ...
def async_attempt(job: Render, attempt: AsyncAttempt) -> None: ...
async def three(job: Render, attempt: AsyncAttempt, more: int) -> None: ...


@pytest.mark.parametrize("function", [async_generator, sync_attempt, async_attempt, three])
def test_a_function_that_cannot_be_called_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"handler|generator"):
        App("billing").handler(Render)(function)


def test_partials_and_callable_objects_are_told_apart() -> None:
    class Callable:
        async def __call__(self, job: Render, attempt: AsyncAttempt) -> None: ...

    async def more(extra: int, job: Render, attempt: AsyncAttempt) -> None: ...

    for function in (functools.partial(more, 1), Callable()):
        app = App("billing")
        app.handler(Render)(function)
        (handler, _) = app.handlers()["render"]
        assert handler.is_async


@pytest.mark.parametrize("name", ["", "Billing", "a b", "x" * 64, None])
def test_an_app_needs_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        App(name)


def test_a_job_class_is_needed() -> None:
    with pytest.raises(ConfigError, match="Job class"):
        App("billing").handler(dict)  # type: ignore[type-var]


def test_two_handlers_of_one_kind_are_refused() -> None:
    app, part = App("billing"), App("part")
    app.handler(Render)(run)
    with pytest.raises(ConfigError, match="already"):
        app.handler(Render)(run)
    part.handler(Render)(run)
    app.include(part)
    with pytest.raises(ConfigError, match="two handlers"):
        app.declared()


def test_an_app_without_handlers_declares_nothing() -> None:
    with pytest.raises(ConfigError, match="imported"):
        App("billing").declared()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"limits": Limits(rate=Rate(100, S))}, "rate="),
        ({"limits": Limits(rate_per_tenant=Rate(100, S))}, "rate="),
        ({"limits": Limits(backlog=5, when_full="delay")}, "delay"),
    ],
)
def test_what_is_not_built_yet_is_refused_at_apply(options: dict[str, Any], word: str) -> None:
    app = App("billing")
    app.handler(Render, **options)(run)
    with pytest.raises(ConfigError, match=f"not built yet.*{word}"):
        app.declared()


def test_isolation_and_schedules_are_refused_at_apply() -> None:
    app, part = App("billing"), App("part")
    app.handler(Render, isolation=Process(memory_mib=64))(run_plain)
    part.schedule("month-end", Other(), cron="0 3 1 * *", catch_up="latest", overlap="skip")
    app.include(part)
    with pytest.raises(ConfigError, match=r"not built yet.*Process.*month-end"):
        app.declared()


def test_parts_run_under_the_outer_name_and_inside_its_hooks() -> None:
    app, part = App("billing"), App("part")
    outer, inner = (lambda attempt: asynccontextmanager(_nothing)() for _ in range(2))
    app.around(outer)
    part.around(inner)
    part.handler(Other)(run_other)
    app.include(part)
    assert [policy.app for policy in app.declared()] == ["billing"]
    assert app.handlers()["other"][1] == (outer, inner)


async def _nothing() -> AsyncIterator[None]:
    yield


def test_a_process_has_one_lifespan() -> None:
    part = App("part", lifespan=asynccontextmanager(_nothing))
    with pytest.raises(ConfigError, match="lifespan"):
        App("billing").include(part)


def test_an_app_cannot_include_itself() -> None:
    app, part = App("billing"), App("part")
    part.include(app)
    for other in (app, part):
        with pytest.raises(ConfigError, match="itself"):
            app.include(other)


async def _of_a_web_app(app: object) -> AsyncIterator[None]:
    yield


def _bare() -> Iterator[None]:
    yield


async def _coroutine() -> None: ...


@pytest.mark.parametrize(
    ("lifespan", "mend"),
    [
        (asynccontextmanager(_of_a_web_app), "called without arguments.*def lifespan"),
        (_nothing, "@asynccontextmanager"),
        (_bare, "@contextmanager"),
        (_coroutine, "coroutine"),
        (3, "must be a function"),
    ],
)
def test_a_lifespan_of_the_wrong_shape_is_refused_where_it_is_written(lifespan: Any, mend: str) -> None:
    with pytest.raises(ConfigError, match=mend):
        App("billing", lifespan=lifespan)


def test_a_lifespan_may_be_a_sync_context_manager() -> None:
    App("billing", lifespan=contextmanager(_bare))
