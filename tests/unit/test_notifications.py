"""A queue of notifications that fills is said in time: at half of it submits stop notifying."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from bellwire_schema.notifications import judged


class Row(NamedTuple):
    pid: int
    usename: str
    datname: str
    application_name: str
    xact_start: datetime


NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
SITTING = Row(4711, "ana", "shop", "", NOW - timedelta(minutes=3))


@pytest.mark.parametrize(
    ("usage", "level"),
    [(0.0, "ok"), (0.049, "ok"), (0.05, "note"), (0.49, "note"), (0.5, "wrong"), (1.0, "wrong")],
)
def test_it_is_wrong_from_half_on(usage: float, level: str) -> None:
    found = judged(usage, [SITTING], NOW)
    assert found.level == level
    assert "4711 (ana, nameless, in shop, since " in found.text
    assert "3 min" in found.text
    assert (found.mend is None) == (level == "ok")
    assert ("submits notify no more" in found.text) == (usage >= 0.5)


def test_nobody_need_be_named() -> None:
    assert judged(0.0, [], NOW).text == "the server's queue is 0% full"
