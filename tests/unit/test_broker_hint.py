"""A hint that we wrote is read as it was; anything else is put away, whatever it is."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellwire_runtime.broker.hint import MAX_BODY, MAX_IDS, Hint, decode, encode

OURS = UUID("0b5e7f3a-3c59-4f0e-9d55-0d6f6f2f3a11")
KINDS = st.from_regex(r"[a-z][a-z0-9_.]{0,62}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(kind=KINDS, version=st.integers(1, 32767), ids=st.lists(st.uuids(), min_size=1, max_size=100))
def test_what_was_encoded_is_decoded(kind: str, version: int, ids: list[UUID]) -> None:
    body = encode(OURS, kind, version, ids)
    assert json.loads(body)["ids"] == [job.hex for job in ids], "the body is JSON"
    assert decode(body, OURS) == Hint(kind, version, tuple(job.hex for job in ids))
    assert decode(body, UUID(int=1)) == "foreign"


@given(st.binary(max_size=4096))
def test_no_bytes_raise(body: bytes) -> None:
    assert decode(body, OURS) == "garbage"


@given(json_values)
def test_no_json_raises(value: Any) -> None:
    assert decode(json.dumps(value).encode(), OURS) == "garbage"


@given(
    st.fixed_dictionaries(
        {
            "installation": st.just(str(OURS)) | json_values,
            "kind": st.just("quick") | json_values,
            "version": st.just(1) | json_values,
            "ids": st.just(["0" * 32]) | json_values | st.lists(json_values | st.just("0" * 32), max_size=5),
        }
    )
)
def test_no_near_miss_raises_or_passes(told: dict[str, Any]) -> None:
    found = decode(json.dumps(told).encode(), OURS)
    if isinstance(found, Hint):
        assert told["installation"] == str(OURS)
        assert found.kind == told["kind"]
        assert list(found.ids) == told["ids"]
        assert found.version == told["version"]
        assert type(told["version"]) is int


@given(body=st.binary(min_size=1, max_size=300), at=st.integers(0, 200), cut=st.integers(0, 200))
def test_no_damaged_hint_raises(body: bytes, at: int, cut: int) -> None:
    good = encode(OURS, "quick", 1, [UUID(int=1), UUID(int=2)])
    decode(good[:at] + body + good[at:], OURS)
    decode(good[:cut], OURS)


@pytest.mark.parametrize("body", [b"[" * 60_000, b'{"a":' * 10_000, b"1" * 60_000, b'"' + b"\\u0000" * 9_000])
def test_depth_and_length_do_not_matter(body: bytes) -> None:
    assert decode(body, OURS) == "garbage"


def test_a_long_body_is_not_read() -> None:
    body = encode(OURS, "quick", 1, [UUID(int=1)])
    assert isinstance(decode(body.ljust(MAX_BODY), OURS), Hint)
    assert decode(body.ljust(MAX_BODY + 1), OURS) == "garbage"


def test_the_largest_hint_fits() -> None:
    body = encode(OURS, "k" * 63, 32767, [uuid4() for _ in range(MAX_IDS)])
    assert len(body) < MAX_BODY / 8
    assert isinstance(decode(body, OURS), Hint)
