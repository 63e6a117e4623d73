"""A statement as PDF: the same ledger gives the same bytes, in any process, on any day.

Only so can a second attempt prove that the file a dead one left behind is the right one. Hence the document's
date is the period's last day and not today, its identifier is made from its content (fpdf2 does that), and
nothing here asks a clock, a locale or a random source. A new version of a library may draw other bytes;
`RENDERER` names what drew these.
"""

import hashlib
import importlib.metadata
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from typing import Literal

from fpdf import FPDF
from fpdf.enums import MethodReturnValue, TextMode, XPos, YPos

from examples.statements.data import month
from examples.statements.fonts import Face, best
from examples.statements.ledger import Ledger
from examples.statements.money import MINOR_DIGITS, shown

Paper = Literal["A4", "Letter"]

_MARGIN = 18.0
_LINE = 5.4  # height of a table row, in millimetres
_GREY = (110, 110, 110)
_INK = (25, 30, 45)
_RED = (160, 40, 30)
_SHADE = (244, 246, 250)


def _renderer() -> str:
    names = ("fpdf2", "fonttools", "uharfbuzz", "manimgx-fonts", "anyascii")
    installed = {d.name.lower(): d.version for d in map(_distribution, names) if d is not None}
    return ", ".join(f"{name} {installed[name]}" for name in names if name in installed)


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


RENDERER = _renderer()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """The finished file, in memory."""

    pdf: bytes = field(repr=False)
    pages: int
    sha256: str


class _Page(FPDF):
    """Repeats the table's head on each page, and numbers the pages."""

    def __init__(self, *, paper: Paper, title: str, widths: tuple[float, ...]) -> None:
        super().__init__(format=paper)
        self.title_text = title
        self.widths = widths
        self.in_table = False

    def header(self) -> None:
        if self.in_table:
            table_head(self)

    def footer(self) -> None:
        self.set_y(-14)
        self.set_text_color(*_GREY)
        self.set_font_size(8)
        self.cell(0, 5, self.title_text)
        self.set_x(self.l_margin)
        self.cell(0, 5, f"Page {self.page_no()} of {{nb}}", align="R")


def render(ledger: Ledger, *, version: int, paper: Paper = "A4", face: Face | None = None) -> Rendered:
    """Draw `ledger` in the format `version`. Pure: takes up to a second of CPU, touches no file."""
    face = face or best()
    holder = face.spell(ledger.holder)
    texts = [face.spell(line.text) for line in ledger.lines]
    pdf = _Page(
        paper=paper,
        title=f"Account {ledger.account_id} - {ledger.period} - format v{version}",
        widths=_widths(paper, [ledger.opening, *(line.amount for line in ledger.lines), ledger.closing]),
    )
    pdf.set_creation_date(datetime.combine(month(ledger.period)[1], time(), tzinfo=UTC))
    pdf.set_title(f"Statement {ledger.account_id} {ledger.period}")
    pdf.set_margins(_MARGIN, _MARGIN)
    pdf.set_auto_page_break(auto=True, margin=20)
    pdf.alias_nb_pages("{nb}")
    face.use_in(pdf, "".join([holder, *texts]))
    pdf.add_page()
    _letterhead(pdf, ledger, holder)
    _summary(pdf, ledger)
    _table(pdf, ledger, texts)
    _closing(pdf, ledger, spelled=any(s != t for s, t in _spellings(ledger, holder, texts)))
    content = bytes(pdf.output())
    return Rendered(pdf=content, pages=pdf.pages_count, sha256=hashlib.sha256(content).hexdigest())


def _spellings(ledger: Ledger, holder: str, texts: list[str]) -> list[tuple[str, str]]:
    """Shown and given text of what people wrote."""
    return [(holder, ledger.holder), *zip(texts, (line.text for line in ledger.lines), strict=True)]


def _widths(paper: Paper, amounts: list[object]) -> tuple[float, ...]:
    """Date, text, amount, balance: the text takes what is left of the paper."""
    number = 34.0 if len(max(map(str, amounts), key=len)) < 14 else 46.0
    whole = {"A4": 210.0, "Letter": 215.9}[paper] - 2 * _MARGIN
    return (24.0, whole - 24.0 - 2 * number, number, number)


def _strong(pdf: FPDF, *, on: bool) -> None:
    """A heavier hand: the outline is drawn too. A bold cut of the font would cost seconds a document."""
    pdf.text_mode = TextMode.FILL_STROKE if on else TextMode.FILL
    pdf.set_line_width(0.12 if on else 0.2)
    pdf.set_draw_color(*_INK)


def _letterhead(pdf: FPDF, ledger: Ledger, holder: str) -> None:
    first, last = month(ledger.period)
    pdf.set_text_color(*_GREY)
    pdf.set_font_size(9)
    pdf.cell(0, 5, ledger.customer.upper(), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.set_text_color(*_INK)
    _strong(pdf, on=True)
    pdf.set_font_size(20)
    pdf.cell(0, 11, "Account statement", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    _strong(pdf, on=False)
    pdf.ln(2)
    digits = MINOR_DIGITS[ledger.currency]
    facts = (
        ("Holder", holder),
        ("Account", str(ledger.account_id)),
        ("Period", f"{first.isoformat()} to {last.isoformat()}"),
        ("Currency", f"{ledger.currency} ({digits} decimal{'' if digits == 1 else 's'})"),
    )
    pdf.set_font_size(11)
    for label, value in facts:
        pdf.set_text_color(*_GREY)
        pdf.cell(26, 6.5, label)
        pdf.set_text_color(*_INK)
        pdf.multi_cell(0, 6.5, value, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(4)


def _summary(pdf: FPDF, ledger: Ledger) -> None:
    sums = (
        ("Opening balance", ledger.opening),
        ("Money in", ledger.money_in),
        ("Money out", ledger.money_out),
        ("Closing balance", ledger.closing),
    )
    width = pdf.epw / len(sums)
    pdf.set_fill_color(*_SHADE)
    pdf.set_text_color(*_GREY)
    pdf.set_font_size(8.5)
    for label, _ in sums:
        pdf.cell(width, 7, label, fill=True, align="R")
    pdf.ln(7)
    pdf.set_text_color(*_INK)
    pdf.set_font_size(11)
    for label, amount in sums:
        _strong(pdf, on=label == "Closing balance")
        pdf.cell(width, 8, shown(amount, ledger.currency), fill=True, align="R")
    _strong(pdf, on=False)
    pdf.ln(14)


def table_head(pdf: _Page) -> None:
    pdf.set_text_color(*_GREY)
    pdf.set_font_size(8.5)
    for width, label, align in zip(pdf.widths, ("Date", "Text", "Amount", "Balance"), "LLRR", strict=True):
        pdf.cell(width, 6, label, border="B", align=align)
    pdf.ln(7)


def _table(pdf: _Page, ledger: Ledger, texts: list[str]) -> None:
    if not ledger.lines:
        pdf.set_text_color(*_GREY)
        pdf.set_font_size(10)
        pdf.cell(0, 8, "No bookings in this period.", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        return
    table_head(pdf)
    pdf.in_table = True
    for index, (line, text, balance) in enumerate(zip(ledger.lines, texts, ledger.balances(), strict=True)):
        pdf.set_font_size(9)  # a page break in between may have drawn its head and foot in theirs
        wrapped = _wrapped(pdf, text, pdf.widths[1])
        height = _LINE * len(wrapped)
        if pdf.will_page_break(height):
            pdf.add_page()
            pdf.set_font_size(9)
        pdf.set_fill_color(*_SHADE)
        filled = index % 2 == 1
        top = pdf.get_y()
        if filled:
            pdf.rect(pdf.l_margin, top, pdf.epw, height, style="F")
        pdf.set_text_color(*_INK)
        pdf.cell(pdf.widths[0], _LINE, line.booked_on.isoformat())
        for row, part in enumerate(wrapped):
            pdf.set_xy(pdf.l_margin + pdf.widths[0], top + row * _LINE)
            pdf.cell(pdf.widths[1], _LINE, part)
        pdf.set_xy(pdf.l_margin + pdf.widths[0] + pdf.widths[1], top)
        pdf.set_text_color(*(_RED if line.amount < 0 else _INK))
        pdf.cell(pdf.widths[2], _LINE, shown(line.amount, ledger.currency), align="R")
        pdf.set_text_color(*_INK)
        pdf.cell(pdf.widths[3], _LINE, shown(balance, ledger.currency), align="R")
        pdf.set_xy(pdf.l_margin, top + height)
    pdf.in_table = False


def _wrapped(pdf: FPDF, text: str, width: float) -> list[str]:
    """The lines a cell of that width needs; where the text fits, fpdf2's slower layout is not asked."""
    if pdf.get_string_width(text) <= width - 2 * pdf.c_margin:
        return [text]
    lines = pdf.multi_cell(width, _LINE, text, align="L", dry_run=True, output=MethodReturnValue.LINES)
    return [str(line) for line in lines] if isinstance(lines, list) and lines else [text]


def _closing(pdf: FPDF, ledger: Ledger, *, spelled: bool) -> None:
    pdf.ln(3)
    pdf.set_text_color(*_INK)
    pdf.set_font_size(10)
    _strong(pdf, on=True)
    count = len(ledger.lines)
    pdf.cell(pdf.epw / 2, 7, f"{count} booking{'' if count == 1 else 's'}")
    pdf.cell(pdf.epw / 2, 7, f"Closing {ledger.currency} {shown(ledger.closing, ledger.currency)}", align="R")
    _strong(pdf, on=False)
    if spelled:
        pdf.ln(9)
        pdf.set_text_color(*_GREY)
        pdf.set_font_size(8)
        pdf.cell(0, 5, "Words in [brackets] are spelled in Latin letters: the font has none of their script.")
