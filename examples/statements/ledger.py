"""What a statement says, apart from how it looks: an account, a closed period, its lines, and the sums.

`Ledger` is immutable and its digest covers every input that can change a byte of the file. Two statements
that differ can so be told apart: another digest means that the ledger changed, the same digest that the
renderer did.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import accumulate

from examples.statements.data import month
from examples.statements.money import exact, total


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One booking. A negative amount leaves the account."""

    booked_on: date
    text: str
    amount: Decimal


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """An account's closed period.

    Raises `ValueError` if a line lies outside it, and its subclass `BadAmount` if an amount would be rounded.
    """

    customer: str
    account_id: int
    holder: str
    currency: str
    period: str
    opening: Decimal
    lines: tuple[Line, ...]

    def __post_init__(self) -> None:
        first, last = month(self.period)
        exact(self.opening, self.currency)
        for line in self.lines:
            exact(line.amount, self.currency)
            if not first <= line.booked_on <= last:
                raise ValueError(f"a line of {line.booked_on} is not of {self.period}")

    @property
    def money_in(self) -> Decimal:
        return total((line.amount for line in self.lines if line.amount > 0), self.currency)

    @property
    def money_out(self) -> Decimal:
        return total((line.amount for line in self.lines if line.amount < 0), self.currency)

    @property
    def closing(self) -> Decimal:
        return total((self.opening, *(line.amount for line in self.lines)), self.currency)

    def balances(self) -> list[Decimal]:
        """The balance after each line; the last is `closing`."""
        amounts = (exact(line.amount, self.currency) for line in self.lines)
        return list(accumulate(amounts, initial=exact(self.opening, self.currency)))[1:]

    def digest(self) -> str:
        """SHA-256 over a normal form: `1.5` and `1.50` of a currency are one amount."""
        form = [
            self.customer,
            self.account_id,
            self.holder,
            self.currency,
            self.period,
            str(exact(self.opening, self.currency)),
            [
                [line.booked_on.isoformat(), line.text, str(exact(line.amount, self.currency))]
                for line in self.lines
            ],
        ]
        return hashlib.sha256(json.dumps(form, ensure_ascii=True).encode()).hexdigest()
