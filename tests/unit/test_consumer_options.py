"""Options are refused when they are written, with their name and range."""

from datetime import timedelta
from typing import Any

import pytest

from bellwire_consumer import Limits, Process, Rate, Retention, Retry
from bellwire_consumer.settings import ConsumerSettings
from bellwire_runtime.settings import load
from bellwire_schema.errors import ConfigError

S = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Retry, {"max_attempts": 0}),
        (Retry, {"max_attempts": True}),
        (Retry, {"max_attempts": 2.5}),
        (Retry, {"max_attempts": 40_000}),
        (Retry, {"base": 30}),
        (Retry, {"base": timedelta(0)}),
        (Retry, {"base": 2 * S, "cap": S}),
        (Retry, {"floor": timedelta(hours=1)}),
        (Retry, {"floor": -S}),
        (Retry, {"factor": 0.5}),
        (Retry, {"factor": "2"}),
        (Retry, {"factor": float("nan")}),
        (Retry, {"cap": timedelta(days=10_000)}),
        (Limits, {"running": 0}),
        (Limits, {"rate": 5}),
        (Limits, {"when_full": "drop"}),
        (Limits, {"when_full": "accept"}),
        (Retention, {"succeeded": -S}),
        (Retention, {"payload": 5}),
        (Process, {"memory_mib": 1}),
    ],
)
def test_refused(make: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=make.__name__):
        make(**options)


@pytest.mark.parametrize("arguments", [(0, S), (1, timedelta(0)), (1, S, 0), (1, 5)])
def test_rates_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="Rate"):
        Rate(*arguments)


def test_zero_is_a_retention_and_a_floor() -> None:
    assert Retention(succeeded=timedelta(0)).succeeded == timedelta(0)
    assert Retry(floor=timedelta(0)).floor == timedelta(0)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"slots": 0}, "BELLWIRE_SLOTS"),
        ({"consumer_poll_floor": "1ms"}, "BELLWIRE_CONSUMER_POLL_FLOOR"),
        ({"consumer_drain": "1h"}, "BELLWIRE_CONSUMER_DRAIN"),
    ],
)
def test_settings_refused(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load(ConsumerSettings, database_url="postgresql://localhost/x", **given)


@pytest.mark.parametrize(("grace", "drain"), [("25s", 20.0), ("6s", 3.0), ("60s", 55.0)])
def test_the_drain_leaves_time_to_hand_back(grace: str, drain: float) -> None:
    settings = load(ConsumerSettings, database_url="postgresql://localhost/x", shutdown_grace=grace)
    assert settings.drain_seconds == drain
