"""Sums are exact in every currency; what would be rounded is refused."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.statements.ledger import Ledger, Line
from examples.statements.money import MINOR_DIGITS, BadAmount, exact, shown, total

currencies = st.sampled_from(sorted(MINOR_DIGITS))
minors = st.integers(min_value=-(10**18), max_value=10**18)


def amount(minor: int, currency: str) -> Decimal:
    return Decimal(minor).scaleb(-MINOR_DIGITS[currency])


def ledger(currency: str, opening: int, lines: list[int]) -> Ledger:
    return Ledger(
        customer="c",
        account_id=1,
        holder="h",
        currency=currency,
        period="2026-05",
        opening=amount(opening, currency),
        lines=tuple(
            Line(booked_on=date(2026, 5, 2), text="t", amount=amount(minor, currency)) for minor in lines
        ),
    )


@given(currency=currencies, parts=st.lists(minors, max_size=50))
def test_a_total_is_the_sum_of_its_minor_units(currency: str, parts: list[int]) -> None:
    assert total((amount(part, currency) for part in parts), currency) == amount(sum(parts), currency)


@given(currency=currencies, opening=minors, parts=st.lists(minors, max_size=30))
def test_a_ledger_adds_up(currency: str, opening: int, parts: list[int]) -> None:
    made = ledger(currency, opening, parts)
    assert made.closing == made.opening + made.money_in + made.money_out
    assert made.closing == amount(opening + sum(parts), currency)
    assert made.balances()[-1:] == ([made.closing] if parts else [])


@given(currency=currencies, minor=minors)
def test_what_is_shown_can_be_read_back(currency: str, minor: int) -> None:
    text = shown(amount(minor, currency), currency)
    assert Decimal(text.replace(",", "")) == amount(minor, currency)
    assert len(text.partition(".")[2]) == MINOR_DIGITS[currency]


@pytest.mark.parametrize(
    ("value", "currency", "text"),
    [
        ("-1234.5", "KWD", "-1,234.500"),
        ("1234567", "JPY", "1,234,567"),
        ("-0.00", "EUR", "0.00"),
        ("1.5000", "USD", "1.50"),
        ("1E+3", "CHF", "1,000.00"),
    ],
)
def test_amounts_as_people_read_them(value: str, currency: str, text: str) -> None:
    assert shown(Decimal(value), currency) == text


@pytest.mark.parametrize(
    ("value", "currency"),
    [("0.5", "JPY"), ("0.005", "EUR"), ("NaN", "EUR"), ("Infinity", "EUR"), ("1", "XYZ"), ("1e70", "EUR")],
)
def test_what_a_currency_cannot_say_is_refused(value: str, currency: str) -> None:
    with pytest.raises(BadAmount):
        exact(Decimal(value), currency)


@given(currency=currencies, opening=minors, parts=st.lists(minors, min_size=1, max_size=5))
def test_the_digest_changes_with_the_ledger_and_not_with_how_an_amount_is_written(
    currency: str, opening: int, parts: list[int]
) -> None:
    made = ledger(currency, opening, parts)
    assert made.digest() == ledger(currency, opening, list(parts)).digest()
    assert made.digest() != ledger(currency, opening + 1, parts).digest()
    assert made.digest() != ledger(currency, opening, [*parts, 1]).digest()


def test_a_line_of_another_month_is_refused() -> None:
    with pytest.raises(ValueError, match="not of 2026-05"):
        Ledger(
            customer="c",
            account_id=1,
            holder="h",
            currency="EUR",
            period="2026-05",
            opening=Decimal(0),
            lines=(Line(booked_on=date(2026, 6, 1), text="t", amount=Decimal(1)),),
        )
