"""The sample ledger: the same seed gives the same bytes, on every machine and every Python.

So a statement's checksum can be compared between two runs, and a difference means that something meant to be
fixed was not. Only `Random.random()` is drawn from: of the generator's methods it alone promises one sequence
for ever (https://docs.python.org/3/library/random.html#notes-on-reproducibility).
"""

import argparse
import csv
import io
import os
import random
from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from examples.statements.money import MINOR_DIGITS
from examples.statements.names import FIRMS, SCRIPTS, Script

COLUMNS = ("customer", "account_id", "holder", "currency", "opening", "booked_on", "text", "amount")
DEFAULT_SEED = 20260501
DEFAULT_ACCOUNTS = 2_000
DEFAULT_PERIOD = "2026-05"
FIRST_ACCOUNT = 5_000_000_001  # beyond 32 bits: an id that grows is never an int4

# The bank's own customers are the tenants of the job. The first holds most accounts: its flood must not delay
# the rest.
CUSTOMERS = ("harbour", "alpina", "borealis", "cedar", "delta", "ember", "fjord", "granite")
_FLOOD = 0.6

_KINDS = (
    ("Card payment", -1),
    ("Direct debit", -1),
    ("Cash withdrawal", -1),
    ("Transfer in", 1),
    ("Refund", 1),
)

_T = TypeVar("_T")


class Draw:
    """The few draws we need, each made of `random()` alone."""

    def __init__(self, seed: int) -> None:
        self._next = random.Random(seed).random

    def below(self, end: int) -> int:
        return int(self._next() * end)

    def between(self, first: int, last: int) -> int:
        return first + self.below(last - first + 1)

    def one_of(self, choices: Sequence[_T]) -> _T:
        return choices[self.below(len(choices))]

    def chance(self, probability: float) -> bool:
        return self._next() < probability


def month(period: str) -> tuple[date, date]:
    """First and last day of a period written `2026-05`. Raises `ValueError` for any other text."""
    first = date.fromisoformat(f"{period}-01")
    return first, first.replace(day=monthrange(first.year, first.month)[1])


def rows(*, seed: int, accounts: int, period: str) -> Iterator[tuple[str, ...]]:
    """A row for each transaction; an account without any has one row whose last three fields are empty."""
    draw = Draw(seed)
    first, last = month(period)
    scripts = [script for script in SCRIPTS for _ in range(script.share)]
    currencies = sorted(MINOR_DIGITS)
    for index in range(accounts):
        script = draw.one_of(scripts)
        currency = draw.one_of(currencies)
        customer = CUSTOMERS[0] if draw.chance(_FLOOD) else draw.one_of(CUSTOMERS[1:])
        account = (customer, str(FIRST_ACCOUNT + index), _holder(draw, script), currency)
        opening = _amount(draw.between(-50_000, 5_000_000), currency)
        lines = _line_count(draw, index)
        if lines == 0:
            yield (*account, opening, "", "", "")
        days = sorted(draw.below((last - first).days + 1) for _ in range(lines))
        for day in days:
            what, sign = draw.one_of(_KINDS)
            text = f"{what} {draw.between(100, 999)} {draw.one_of(script.shops)}"
            amount = _amount(sign * draw.between(1, 400_000), currency)
            yield (*account, opening, (first + timedelta(days=day)).isoformat(), text, amount)


def _holder(draw: Draw, script: Script) -> str:
    if draw.chance(0.04):
        return draw.one_of(FIRMS)
    return f"{draw.one_of(script.given)} {draw.one_of(script.family)}"


def _line_count(draw: Draw, index: int) -> int:
    """Most statements fill a page; every 97th has no line at all, every 101st runs over several pages."""
    if index % 97 == 5:
        return 0
    if index % 101 == 7:
        return draw.between(120, 260)
    return draw.between(1, 24)


def _amount(minor: int, currency: str) -> str:
    return f"{Decimal(minor).scaleb(-MINOR_DIGITS[currency]):f}"


def text(*, seed: int, accounts: int, period: str) -> str:
    """The whole CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows(seed=seed, accounts=accounts, period=period))
    return out.getvalue()


def write(
    path: Path,
    *,
    seed: int = DEFAULT_SEED,
    accounts: int = DEFAULT_ACCOUNTS,
    period: str = DEFAULT_PERIOD,
) -> None:
    """Write the CSV. Whoever reads `path` at any moment sees either no file or a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_bytes(text(seed=seed, accounts=accounts, period=period).encode())
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the sample ledger as CSV.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--accounts", type=int, default=DEFAULT_ACCOUNTS)
    parser.add_argument("--period", default=DEFAULT_PERIOD)
    given = parser.parse_args()
    write(given.path, seed=given.seed, accounts=given.accounts, period=given.period)


if __name__ == "__main__":
    main()
