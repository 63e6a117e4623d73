"""Amounts are `Decimal`, with exactly the digits their currency has: never a float, never a rounded total.

The number of minor digits is ISO 4217's: 0 for the yen, 3 for the Kuwaiti dinar, 2 for most. A ledger line
with more digits than that is refused instead of rounded, since a sum of rounded lines is not the rounded sum.
"""

from collections.abc import Iterable
from decimal import Context, Decimal, Inexact, InvalidOperation

MINOR_DIGITS = {
    "BHD": 3,
    "CHF": 2,
    "CLP": 0,
    "EUR": 2,
    "GBP": 2,
    "INR": 2,
    "JPY": 0,
    "KRW": 0,
    "KWD": 3,
    "PLN": 2,
    "TND": 3,
    "USD": 2,
}

# Wide enough for any ledger of ours; a result that would not fit raises instead of losing digits.
_EXACT = Context(prec=60, traps=[Inexact, InvalidOperation])


class BadAmount(ValueError):
    """An amount that its currency cannot express, or a currency we do not know."""


def exact(amount: Decimal, currency: str) -> Decimal:
    """`amount` with exactly the currency's minor digits. Raises `BadAmount` if that would round."""
    if currency not in MINOR_DIGITS:
        raise BadAmount(f"unknown currency {currency!r}")
    if not amount.is_finite():
        raise BadAmount(f"{amount} is no amount of {currency}")
    step = Decimal(1).scaleb(-MINOR_DIGITS[currency])
    try:
        return amount.quantize(step, context=_EXACT)
    except ArithmeticError as error:
        raise BadAmount(f"{amount} has more digits than {currency} has ({MINOR_DIGITS[currency]})") from error


def total(amounts: Iterable[Decimal], currency: str) -> Decimal:
    """The exact sum, zero included, in the currency's own digits."""
    result = Decimal(0)
    for amount in amounts:
        result = _EXACT.add(result, amount)
    return exact(result, currency)


def shown(amount: Decimal, currency: str) -> str:
    """For people, with the digits the currency has: `-1,234.500`. The minus sign is ASCII: searchable."""
    value = exact(amount, currency)
    return f"{value or abs(value):,f}"  # a negative zero is shown as zero
