"""What PostgreSQL or the handler would choke on is refused with the field named, and never quoted."""

import dataclasses
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr, ValidationError, field_serializer

from bellwire import ArgumentInvalid, Job, JobConfig, PayloadInvalid, PayloadTooLarge
from bellwire_outbox.key_text import key_text, tenant_text
from bellwire_outbox.payload import MAX_BYTES, decode, encode

NAIVE = datetime(2026, 5, 1)  # noqa: DTZ001 - the very thing to be refused


class Line(BaseModel):
    amount: Decimal
    note: str = ""


@dataclasses.dataclass
class Point:
    at: datetime


class Order(Job):
    job_config = JobConfig(
        kind="order", version=1, key=("account_id", "period"), unique_until="pruned", tenant="account_id"
    )
    account_id: int
    period: str
    lines: tuple[Line, ...] = ()
    data: Any = None


class Tenanted(Job):
    job_config = JobConfig(kind="tenanted", version=1, key=None, tenant="owner")
    owner: str | None


@pytest.mark.parametrize(
    ("values", "field", "reason"),
    [
        ({"lines": (Line(amount=Decimal(1)), Line(amount=Decimal(2), note="\x00"))}, "lines[1].note", "NUL"),
        ({"period": "a\x00"}, "period", "NUL"),
        ({"data": "\ud800"}, "data", "surrogate"),
        ({"data": {"a": {"b": [0, "\udfff"]}}}, "data.a.b[1]", "surrogate"),
        ({"data": {"\x00": 1}}, "data (its key number 1)", "NUL"),
        ({"data": {"x": 1, "\ud800": 1}}, "data (its key number 2)", "surrogate"),
        ({"data": float("nan")}, "data", "NaN"),
        ({"data": [float("inf")]}, "data[0]", "infinity"),
        ({"data": Decimal("NaN")}, "data", "NaN"),
        ({"data": Decimal("-Infinity")}, "data", "infinity"),
        ({"data": NAIVE}, "data", "naive"),
        ({"data": {"when": (NAIVE,)}}, "data.when[0]", "naive"),
        ({"data": Point(at=NAIVE)}, "data.at", "naive"),
        ({"data": SecretStr("hunter2")}, "data", "secret"),
        ({"data": object()}, "payload", "cannot be written as JSON"),
        ({"data": 10**5_000}, "payload", "JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_named(values: dict[str, Any], field: str, reason: str) -> None:
    job = Order(**{"account_id": 1, "period": "p", **values})
    with pytest.raises(PayloadInvalid) as refused:
        encode(job)
    assert refused.value.field == field
    assert reason in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_depth_is_bounded_and_a_circle_is_no_endless_walk() -> None:
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for data in (deep, circle):
        with pytest.raises(PayloadInvalid, match="nested deeper"):
            encode(Order.model_construct(account_id=1, period="p", data=data))


def test_the_size_is_counted_in_bytes_and_the_limit_itself_fits() -> None:
    def order(text: str) -> Order:
        return Order(account_id=1, period="p", data=text)

    fixed = len(encode(order(""))[0])
    assert len(encode(order("x" * (MAX_BYTES - fixed)))[0]) == MAX_BYTES
    for text in ("x" * (MAX_BYTES - fixed + 1), "é" * (MAX_BYTES // 2), "x" * 10_000_000):
        with pytest.raises(PayloadTooLarge) as refused:
            encode(order(text))
        assert refused.value.field == "data"
        assert refused.value.size > refused.value.limit == MAX_BYTES
        assert len(str(refused.value)) < 300


def test_construction_is_refused_with_our_error_and_the_way_out() -> None:
    with pytest.raises(PayloadInvalid, match="flush first") as refused:
        Order(account_id=None, period="secret text")  # type: ignore[arg-type]
    assert refused.value.field == "account_id"
    with pytest.raises(PayloadInvalid) as refused:
        Order(account_id="not a number", period="p")  # type: ignore[arg-type]
    assert "not a number" not in str(refused.value)
    assert refused.value.__cause__ is None
    with pytest.raises(PayloadInvalid, match="perid"):
        Order(account_id=1, perid="p")  # type: ignore[call-arg]
    with pytest.raises(PayloadInvalid, match=r"lines\[0\]\.amount"):
        Order(account_id=1, period="p", lines=({"amount": None},))  # type: ignore[arg-type]


def test_pydantics_own_entrances_keep_pydantics_error() -> None:
    """Web frameworks answer it with 422."""
    with pytest.raises(ValidationError):
        Order.model_validate({"account_id": None, "period": "p"})


def test_a_job_cannot_be_changed_and_what_goes_around_that_is_caught_at_submit() -> None:
    order = Order(account_id=1, period="p")
    with pytest.raises(ValidationError):
        order.account_id = 2
    for bad in (order.model_copy(update={"account_id": None}), Order.model_construct(account_id=1)):
        with pytest.raises(PayloadInvalid):
            encode(bad)


def test_what_a_serialiser_brings_in_is_caught_too() -> None:
    class Sly(Job):
        job_config = JobConfig(kind="sly", version=1, key=None)
        text: str

        @field_serializer("text")
        def _write(self, value: str) -> Any:
            return {"nul": "\x00", "nan": float("nan"), "text": 7}[value]

    for text in ("nul", "nan", "text"):
        with pytest.raises(PayloadInvalid) as refused:
            encode(Sly(text=text))
        assert refused.value.field == "text"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@given(JSON)
def test_what_is_accepted_comes_back_as_it_was(data: Any) -> None:
    order = Order(account_id=sys.maxsize * 4, period="p", lines=(Line(amount=Decimal("1.10")),), data=data)
    _, tree = encode(order)
    assert decode(Order, tree) == order


TEXT = st.text(st.sampled_from(":\\ab"), max_size=6)


@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
def test_two_keys_are_one_text_only_where_they_are_equal(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    config = JobConfig(kind="k", version=1, key=("a", "b"), unique_until="pruned")
    texts = [key_text(config, {"a": a, "b": b}) for a, b in (one, other)]
    assert (texts[0] == texts[1]) == (one == other)


class Colour(Enum):
    RED = "red"


def test_a_key_is_spelt_as_json_spells_its_values() -> None:
    class Spelt(Job):
        job_config = JobConfig(
            kind="spelt", version=1, key=("a", "b", "c", "d", "e", "f"), unique_until="started"
        )
        a: int
        b: str
        c: UUID
        d: date
        e: bool
        f: Colour

    job = Spelt(a=-7, b="a:b\\", c=UUID(int=7), d=date(2026, 5, 1), e=True, f=Colour.RED)
    assert (
        key_text(Spelt.job_config, encode(job)[1])
        == "-7:a\\:b\\\\:00000000-0000-0000-0000-000000000007:2026-05-01:true:red"
    )


@pytest.mark.parametrize("value", [None, 1.5, [1], {"a": 1}], ids=str)
def test_a_key_value_without_one_spelling_is_refused(value: object) -> None:
    config = JobConfig(kind="k", version=1, key=("a",), unique_until="pruned")
    with pytest.raises(PayloadInvalid, match="flush first" if value is None else "names the job"):
        key_text(config, {"a": value})


def test_a_tenant_is_somebody() -> None:
    assert tenant_text(JobConfig(kind="k", version=1, key=None), {}) == ""
    for owner in (None, ""):
        with pytest.raises(PayloadInvalid) as refused:
            tenant_text(Tenanted.job_config, encode(Tenanted(owner=owner))[1])
        assert refused.value.field == "owner"
    with pytest.raises(ArgumentInvalid, match="200 bytes"):
        tenant_text(Tenanted.job_config, encode(Tenanted(owner="é" * 101))[1])


def test_aware_times_are_kept_to_the_microsecond() -> None:
    at = datetime(2026, 5, 1, 12, 0, 0, 1, tzinfo=UTC)
    assert encode(Order(account_id=1, period="p", data=at))[1]["data"] == "2026-05-01T12:00:00.000001Z"
