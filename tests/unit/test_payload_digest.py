"""Equal arguments have one digest, in every language: the normal form is held to its published vectors."""

import hashlib
import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellwire_outbox.digest import args_digest, normal_form

VECTORS = json.loads((Path(__file__).parent / "args_digest_vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["json"])
def test_the_normal_form_is_as_published(vector: dict[str, str]) -> None:
    assert normal_form(vector["json"]) == vector["form"]
    assert args_digest(vector["json"]) == hashlib.sha256(vector["form"].encode()).digest()


def exactly(text: str) -> object:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_the_normal_form_is_json_of_the_same_value_and_its_own_normal_form(value: object) -> None:
    text = json.dumps(value)
    form = normal_form(text)
    # By decimal value, as PostgreSQL keeps numbers: a float read back may be another whole number.
    assert exactly(form) == exactly(text)
    assert normal_form(form) == form


@given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    turned = dict(reversed(value.items()))
    assert normal_form(json.dumps(value)) == normal_form(json.dumps(turned))


@given(st.integers(min_value=-(10**15), max_value=10**15), st.integers(min_value=-20, max_value=20))
def test_numbers_count_by_value_however_they_are_written(digits: int, exponent: int) -> None:
    shifted = f"{digits * 1000}e{exponent - 3}"
    assert normal_form(f"{digits}e{exponent}") == normal_form(shifted)
