"""The sample ledger is reproducible to the byte, and as awkward as real input."""

import csv
import hashlib
import os
import subprocess
import sys
import unicodedata
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.statements import data
from examples.statements.load import BadLedger, read
from examples.statements.money import MINOR_DIGITS

# Of the default ledger. It changes only when somebody means to change the ledger.
PINNED = "ac886ed8e34c1ddc1384327c42523969a619659197401dfac02f540f76ac7c58"


@pytest.fixture(scope="module")
def ledger_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger.csv"
    data.write(path)
    return path


def test_the_default_ledger_is_the_same_bytes_everywhere(ledger_csv: Path) -> None:
    assert hashlib.sha256(ledger_csv.read_bytes()).hexdigest() == PINNED


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_writes_the_same_bytes(ledger_csv: Path, tmp_path: Path, hash_seed: str) -> None:
    other = tmp_path / "made" / "other.csv"
    subprocess.run(
        [sys.executable, "-m", "examples.statements.data", str(other)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "LC_ALL": "C"},
        check=True,
        timeout=60,
    )
    assert other.read_bytes() == ledger_csv.read_bytes()
    assert [path.name for path in other.parent.iterdir()] == ["other.csv"]


def test_another_seed_gives_another_ledger() -> None:
    first, second = (data.text(seed=seed, accounts=50, period="2026-05") for seed in (1, 2))
    assert first != second


def test_the_ledger_has_what_real_input_has(ledger_csv: Path) -> None:
    ledgers = list(read(ledger_csv, period=data.DEFAULT_PERIOD))
    assert len(ledgers) >= 2_000
    assert len({ledger.account_id for ledger in ledgers}) == len(ledgers)
    assert min(ledger.account_id for ledger in ledgers) > 2**32
    assert {ledger.currency for ledger in ledgers} == set(MINOR_DIGITS)
    assert {0, 2, 3} <= {MINOR_DIGITS[ledger.currency] for ledger in ledgers}
    scripts = {unicodedata.name(ledger.holder[0]).split()[0] for ledger in ledgers}
    assert {"LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC", "DEVANAGARI", "THAI", "GEORGIAN"} <= scripts
    assert {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"} <= scripts
    assert any(not ledger.lines for ledger in ledgers)
    assert any(len(ledger.lines) > 100 for ledger in ledgers)
    assert any('"' in ledger.holder and "," in ledger.holder for ledger in ledgers)
    assert any(not unicodedata.is_normalized("NFC", ledger.holder) for ledger in ledgers)
    assert any(ledger.opening < 0 for ledger in ledgers)
    assert any(ledger.closing < 0 for ledger in ledgers)
    customers = [ledger.customer for ledger in ledgers]
    assert customers.count("harbour") > len(ledgers) // 2  # the flood
    assert set(customers) == set(data.CUSTOMERS)


@given(
    seed=st.integers(min_value=-(2**70), max_value=2**70),
    accounts=st.integers(min_value=0, max_value=12),
    period=st.dates().map(lambda day: f"{day:%Y-%m}").filter(lambda text: len(text) == 7),
)
@settings(max_examples=60, deadline=None)
def test_any_seed_gives_a_ledger_that_loads(
    tmp_path_factory: pytest.TempPathFactory, seed: int, accounts: int, period: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "ledger.csv"
    data.write(path, seed=seed, accounts=accounts, period=period)
    ledgers = list(read(path, period=period))
    assert len(ledgers) == accounts
    for ledger in ledgers:
        assert ledger.closing == sum((line.amount for line in ledger.lines), ledger.opening)
        assert all(line.amount == line.amount.quantize(Decimal(1).scaleb(-3)) for line in ledger.lines)


@pytest.mark.parametrize("period", ["2026-13", "2026-00", "26-05", "2026-5", "", "2026-05-01"])
def test_a_period_that_is_no_month_is_refused(period: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|month"):
        data.month(period)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("amount", "1.005", "more digits"),
        ("amount", "NaN", "no amount"),
        ("amount", "ten", "ConversionSyntax"),
        ("currency", "XXX", "unknown currency"),
        ("booked_on", "2026-06-01", "is not of 2026-05"),
        ("account_id", "abc", "invalid literal"),
    ],
)
def test_a_ledger_that_no_statement_can_be_drawn_from_is_refused(
    tmp_path: Path, field: str, value: str, why: str
) -> None:
    row = dict(zip(data.COLUMNS, ("c", "7", "Zoë", "EUR", "1.00", "2026-05-02", "x", "2.00"), strict=True))
    path = tmp_path / "bad.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, data.COLUMNS)
        writer.writeheader()
        writer.writerow({**row, field: value})
    with pytest.raises(BadLedger, match=why):
        list(read(path, period="2026-05"))


def test_a_csv_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadLedger, match="columns"):
        list(read(path, period="2026-05"))
