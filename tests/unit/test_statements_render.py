"""A statement's file is a pure function of its ledger, its sums are right, and any text can be drawn."""

import hashlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfReader

from examples.statements.fonts import Face, best, built_in, packaged
from examples.statements.ledger import Ledger, Line
from examples.statements.render import RENDERER, render

SAMPLE = Ledger(
    customer="harbour",
    account_id=5_000_000_001,
    holder="Þórunn 渡邊",
    currency="KWD",
    period="2026-05",
    opening=Decimal("100.125"),
    lines=(
        Line(booked_on=date(2026, 5, 2), text="Café São Jorge", amount=Decimal("-20.500")),
        Line(booked_on=date(2026, 5, 9), text="مخبز السلام", amount=Decimal(1500)),
        Line(booked_on=date(2026, 5, 31), text="パン工房", amount=Decimal("-0.001")),
    ),
)

_PRINT_CHECKSUM = """
from tests.unit.test_statements_render import SAMPLE
from examples.statements.render import render
print(render(SAMPLE, version=3).sha256)
"""


def words(pdf: bytes) -> str:
    return "\n".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf)).pages)


def test_the_sums_are_on_the_paper() -> None:
    made = render(SAMPLE, version=3)
    text = words(made.pdf)
    for expected in (
        "Account statement",
        "5000000001",
        "KWD (3 decimals)",
        "100.125",  # opening
        "1,500.000",  # in
        "-20.501",  # out
        "1,579.624",  # closing
        "79.625",  # the balance after the first line
        "3 bookings",
        "Page 1 of 1",
        "format v3",
    ):
        assert expected in text
    assert made.pages == 1
    assert made.sha256 == hashlib.sha256(made.pdf).hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_another_process_draws_the_same_bytes(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_CHECKSUM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": "Asia/Kathmandu", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == render(SAMPLE, version=3).sha256


def test_threads_do_not_disturb_each_other() -> None:
    ledgers = [replace(SAMPLE, account_id=number, opening=Decimal(number)) for number in range(1, 9)]
    alone = [render(ledger, version=3).sha256 for ledger in ledgers]
    with ThreadPoolExecutor(max_workers=8) as pool:
        together = list(pool.map(lambda ledger: render(ledger, version=3).sha256, ledgers))
    assert together == alone
    assert len(set(alone)) == len(alone)


@pytest.mark.parametrize(
    "change",
    [
        lambda: render(SAMPLE, version=4),
        lambda: render(SAMPLE, version=3, paper="Letter"),
        lambda: render(replace(SAMPLE, period="2026-05", opening=Decimal("100.126")), version=3),
        lambda: render(replace(SAMPLE, holder="Þórunn"), version=3),
    ],
)
def test_each_input_shows_in_the_checksum(change: Callable[[], object]) -> None:
    assert change() != render(SAMPLE, version=3)


def test_a_long_statement_runs_over_pages_that_all_have_a_head_and_a_number() -> None:
    line = Line(booked_on=date(2026, 5, 9), text="Fee " + "for a very long reason " * 8, amount=Decimal(-1))
    made = render(replace(SAMPLE, lines=(line,) * 120), version=3)
    assert made.pages > 5
    pages = [page.extract_text() for page in PdfReader(io.BytesIO(made.pdf)).pages]
    assert len(pages) == made.pages
    for number, page in enumerate(pages, start=1):
        assert f"Page {number} of {made.pages}" in page
        assert "Balance" in page
    assert sum(len(re.findall(r"2026-05-09", page)) for page in pages) == 120
    assert "-19.875" in pages[-1]


def test_an_account_without_bookings_gets_a_statement() -> None:
    text = words(render(replace(SAMPLE, lines=()), version=3).pdf)
    assert "No bookings in this period" in text
    assert "0 bookings" in text


def test_the_packaged_font_draws_many_scripts_and_spells_the_rest() -> None:
    face = packaged()
    assert face is not None, "the fonts are a locked requirement"
    for name in ("Łukasz Đặng", "Ελένη Ωνάσης", "Ђорђе Щерба", "נועה", "محمد", "क्षितिज", "สมชาย", "ნინო"):
        assert face.spell(name) == name
    assert face.spell("静怡 鄭") == "[JingYi] [Zheng]"
    assert face.spell("さくら") == "[sakura]"
    assert "Words in [brackets]" in words(render(SAMPLE, version=3).pdf)


def test_without_the_package_the_built_in_font_serves() -> None:
    face = built_in()
    assert face.spell("Zoë Müller") == "Zoë Müller"
    assert face.spell("Łukasz Ωμέγα") == "[L]ukasz [Omega]"
    text = words(render(SAMPLE, version=3, face=face).pdf)
    assert "1,579.624" in text
    assert "Þórunn [DuBian]" in text


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("Cafe\u0301", "Café"),  # composed first
        ("pay\u202eload", "pay[U+202E]load"),  # would turn the rest of the line round
        ("a\nb\x00c", "a[U+000A]b[U+0000]c"),
        ("\ud800", "[U+D800]"),  # half a character
        ("\U0010ffff", "[U+10FFFF]"),
        ("☕🍰", "[:coffee::cake:]"),
    ],
)
def test_what_no_font_has_is_spelled_and_nothing_is_dropped(text: str, spelled: str) -> None:
    assert best().spell(text) == spelled


@pytest.mark.parametrize("face", [best(), built_in()], ids=["packaged", "built in"])
@given(holder=st.text(max_size=60), text=st.text(max_size=120))
@settings(max_examples=60, deadline=None)
def test_any_text_can_be_drawn(face: Face, holder: str, text: str) -> None:
    line = replace(SAMPLE.lines[0], text=text)
    made = render(replace(SAMPLE, holder=holder, lines=(line,)), version=3, face=face)
    assert made.pdf.startswith(b"%PDF-")
    assert "79.625" in words(made.pdf)


def test_the_renderer_is_named_with_its_versions() -> None:
    assert re.fullmatch(r"fpdf2 [\d.]+, fonttools .+, uharfbuzz .+, manimgx-fonts .+, anyascii .+", RENDERER)
