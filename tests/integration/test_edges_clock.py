"""Ids that ascend, and the wait before the next try: pure functions, held to what they promise."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellwire_testkit.databases import Template

SAME_EVERY_TIME = settings(deadline=None, derandomize=True)
SECONDS = st.floats(0, 10**7, allow_nan=False)
BACKOFFS = st.lists(
    st.fixed_dictionaries(
        {
            "base": st.one_of(SECONDS, st.floats(0, 9e12)),
            "factor": st.one_of(st.floats(0, 100), st.floats(0, 1e300)),
            "cap": st.one_of(SECONDS, st.floats(0, 9e12)),
            "floor": SECONDS,
            "n": st.one_of(st.integers(-5, 100), st.integers(-(2**31), 2**31 - 1)),
            "random": st.integers(0, 2**53 - 1).map(lambda n: n / 2**53),  # what random() draws
        }
    ),
    min_size=1,
    max_size=60,
)


@pytest.fixture(scope="module")
def shared(template: Template) -> Iterator[psycopg.Connection[Any]]:
    """Pure functions leave nothing behind, so one database serves them all."""
    database = template.clone()
    with database.connect() as conn:
        yield conn
    database.drop_unused()


def backoffs(conn: psycopg.Connection[Any], cases: list[dict[str, Any]], *, jitter: bool) -> list[float]:
    rows = conn.execute(
        "SELECT extract(epoch FROM bellwire.backoff(make_interval(secs => c.base), c.factor,"
        " make_interval(secs => c.cap), make_interval(secs => c.floor), %s, c.n, c.random))::float8"
        " FROM ROWS FROM (jsonb_to_recordset(%s::jsonb) AS (base float8, factor float8, cap float8,"
        " floor float8, n integer, random float8)) WITH ORDINALITY"
        " AS c(base, factor, cap, floor, n, random, place) ORDER BY c.place",
        (jitter, json.dumps(cases)),
    ).fetchall()
    return [row[0] for row in rows]


@settings(SAME_EVERY_TIME, max_examples=60)
@given(cases=BACKOFFS)
def test_backoff_stays_between_its_floor_and_its_cap(
    shared: psycopg.Connection[Any], cases: list[dict[str, Any]]
) -> None:
    full = backoffs(shared, cases, jitter=False)
    drawn = backoffs(shared, cases, jitter=True)
    for case, most, one in zip(cases, full, drawn, strict=True):
        limit = max(case["floor"], case["cap"])
        assert math.isfinite(most)
        assert case["floor"] - 1e-5 <= one <= most + 1e-5 <= limit + 2e-5
        if 1 <= case["n"] <= 3 and 1 <= case["factor"] < 1000:
            grown = min(case["cap"], 3e9, case["base"] * case["factor"] ** (case["n"] - 1))
            assert most == pytest.approx(max(case["floor"], grown), rel=1e-6, abs=1e-5)
            assert one == pytest.approx(max(case["floor"], grown * case["random"]), rel=1e-6, abs=1e-5)


@settings(SAME_EVERY_TIME, max_examples=30)
@given(
    base=st.floats(0.001, 1000), factor=st.floats(1, 10), ns=st.lists(st.integers(1, 2**31 - 1), min_size=2)
)
def test_backoff_never_shrinks_as_attempts_grow(
    shared: psycopg.Connection[Any], base: float, factor: float, ns: list[int]
) -> None:
    cases = [
        {"base": base, "factor": factor, "cap": 10**6, "floor": 0, "n": n, "random": 0.5} for n in sorted(ns)
    ]
    waits = backoffs(shared, cases, jitter=False)
    assert waits == sorted(waits)


def ids_at(conn: psycopg.Connection[Any], moments: list[datetime], ordinals: list[int]) -> list[UUID]:
    rows = conn.execute(
        "SELECT bellwire.uuid7(m.at, m.n)"
        " FROM unnest(%s::timestamptz[], %s::integer[]) WITH ORDINALITY AS m(at, n, i) ORDER BY m.i",
        (moments, ordinals),
    ).fetchall()
    return [row[0] for row in rows]


MOMENTS = st.datetimes(datetime(1970, 1, 2), datetime(4000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - naive bounds


@settings(SAME_EVERY_TIME, max_examples=60)
@given(moments=st.lists(MOMENTS, min_size=1, max_size=50), ordinals=st.data())
def test_ids_are_uuid7_and_carry_their_moment(
    shared: psycopg.Connection[Any], moments: list[datetime], ordinals: st.DataObject
) -> None:
    drawn = ordinals.draw(st.lists(st.integers(0, 2**18 - 1), min_size=len(moments), max_size=len(moments)))
    for made, moment in zip(ids_at(shared, moments, drawn), moments, strict=True):
        assert made.version == 7
        assert made.variant == "specified in RFC 4122"
        microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert made.int >> 80 == microseconds // 1000
        assert (made.int >> 64) & 0xFFF == microseconds % 1000 * 4096 // 1000


def test_ids_of_a_set_ascend_in_its_order_and_moments_ascend_too(shared: psycopg.Connection[Any]) -> None:
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    ordinals = [1, 2, 255, 256, 65535, 65536, 131072, 2**18 - 1]
    assert (made := ids_at(shared, [moment] * 8, ordinals)) == sorted(made)
    later = [moment + timedelta(microseconds=n) for n in (0, 1, 999, 1000, 1001, 10**6)]
    assert (made := ids_at(shared, later, [2**18 - 1, 1, 1, 1, 1, 1])) == sorted(made)
    assert len(set(ids_at(shared, [moment] * 1000, [7] * 1000))) == 1000, "what is alike differs by chance"
