"""How errors become endings, and what is kept of their texts."""

import json
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellwire_consumer.error_text import MAX_BYTES, code_of, message_of, storable
from bellwire_consumer.ids import draw
from bellwire_consumer.outcome import Ending, Fail, Retried, Snoozed, Stop, Throttled, judge
from bellwire_consumer.strict_json import encode
from bellwire_outbox import JobConfig
from bellwire_schema.errors import (
    HandlerOutcome,
    JobCancelled,
    ResultInvalid,
    RetryableError,
    Snooze,
    TerminalError,
    ThrottledError,
)

S = timedelta(seconds=1)


class Down(Exception):
    pass


class Busy(Down):
    pass


class Ours(HandlerOutcome):
    pass


@pytest.mark.parametrize(
    ("error", "errors", "ending"),
    [
        (RetryableError("down"), {}, Retried("retryable", "down", "down")),
        (RetryableError("down", "no route"), {}, Retried("retryable", "down", "no route")),
        (ThrottledError("busy", retry_after=S, scope="kind"), {}, Throttled("busy", "busy", S, "kind")),
        (Snooze(S, code="open"), {}, Snoozed("open", S)),
        (TerminalError("bad"), {}, Fail("terminal", "bad", "bad")),
        (Ours("odd"), {}, Retried("unknown", "odd", "odd")),
        (ValueError("x"), {}, Retried("unknown", "value_error", "ValueError: x")),
        (Busy("x"), {Down: TerminalError("down"), Busy: Snooze(S)}, Snoozed("snoozed", S)),
        (Busy("x"), {Exception: RetryableError("any")}, Retried("retryable", "any", "Busy: x")),
        (Busy("x"), {Down: lambda e: TerminalError(str(e))}, Fail("terminal", "x", "Busy: x")),
        (ResultInvalid("result: NaN"), {}, Fail("result_invalid", "result_invalid", "result: NaN")),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else None,
)
def test_each_error_has_its_ending(error: BaseException, errors: Any, ending: Ending) -> None:
    assert judge(error, errors, cancel_requested=False) == ending


def test_a_cancelled_job_stops_only_if_that_was_asked_for() -> None:
    error = JobCancelled(actor="ana", reason="closed")
    assert judge(error, {}, cancel_requested=True) == Stop("cancelled by ana: closed")
    assert isinstance(judge(error, {}, cancel_requested=False), Retried)


@given(st.floats(0, 1, exclude_max=True))
def test_a_throttle_without_a_time_is_spread(chance: float) -> None:
    ending = judge(ThrottledError("busy"), {}, cancel_requested=False, rng=lambda: chance)
    assert isinstance(ending, Throttled)
    assert 15 * S <= ending.delay <= 45 * S


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=5000), st.integers(8, 3000))
def test_any_text_is_made_storable(text: str, limit: int) -> None:
    kept = storable(text, limit=limit)
    assert "\x00" not in kept
    assert len(kept.encode()) <= limit


def test_causes_are_told_once_each() -> None:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    assert message_of(one) == "ValueError: one; caused by KeyError: 'two'"
    assert len(message_of(ValueError("x" * 10**6)).encode()) <= MAX_BYTES


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ValueError", "value_error"),
        ("HTTPStatusError", "http_status_error"),
        ("Störung", "st_rung"),
        ("_Hidden", "hidden"),
        ("X" * 200, "x" * 63),
        ("日本", "error"),
    ],
)
def test_a_class_names_its_code(name: str, code: str) -> None:
    found = code_of(type(name, (Exception,), {})())
    assert found == code
    RetryableError(found)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_is_encoded_can_be_stored_and_read_back(value: Any) -> None:
    if _clean(value):
        assert json.loads(encode("result", value)) == value
    else:
        with pytest.raises(ResultInvalid, match=r"^result"):
            encode("result", value)


def _clean(value: Any) -> bool:
    match value:
        case str():
            return "\x00" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        case float():
            return math.isfinite(value)
        case list():
            return all(map(_clean, value))
        case dict():
            return all(_clean(key) and _clean(item) for key, item in value.items())
    return True


@pytest.mark.parametrize(
    "value", [{1: 2}, {1, 2}, object(), b"x", 10**5000, "x" * 70_000, [[]]], ids=lambda v: str(type(v))
)
def test_what_is_no_json_is_refused_with_its_place(value: Any) -> None:
    if value == [[]]:
        for _ in range(100):
            value = [value]
    with pytest.raises(ResultInvalid, match=r"^result"):
        encode("result", {"inner": value})


def test_drawn_ids_are_apart_and_dated() -> None:
    attempts, tokens = draw(1000, milliseconds=0x0123456789AB)
    assert len({*attempts, *tokens}) == 2000
    assert all(len(text) == 32 for text in (*attempts, *tokens))
    assert {(text[:13], text[16]) for text in attempts} == {("0123456789ab7", "8")}


def _raised(text: str) -> BaseException:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def _raised_in_a_library() -> BaseException:
    try:
        json.loads("{")
    except ValueError as error:
        return error
    raise AssertionError


def test_an_error_tells_its_place_in_the_users_code() -> None:
    line = _raised.__code__.co_firstlineno + 2
    assert message_of(_raised("text")) == f"ValueError: text (test_consumer_outcome.py:{line} in _raised)"
    assert message_of(_raised_in_a_library()).endswith("in _raised_in_a_library)")
    assert message_of(ValueError("never raised")) == "ValueError: never raised"


def test_the_place_survives_a_text_that_is_cut_and_redacted() -> None:
    message = message_of(_raised("postgresql://me:hidden@there/shop " + "ä" * 10_000))
    assert message.endswith("in _raised)")
    assert "hidden" not in message
    assert len(message.encode()) <= MAX_BYTES


def test_our_own_frames_are_no_place() -> None:
    with pytest.raises(Exception, match="must match") as caught:
        JobConfig(kind="Not A Kind", version=1, key=None)
    assert "config.py" not in message_of(caught.value)
    assert "test_consumer_outcome.py" in message_of(caught.value)
