"""Every name can be put on paper: drawn where a font has its letters, spelled in Latin letters elsewhere.

The fonts come with a package (Noto Sans, SIL Open Font License), so a statement needs no download and looks
the same on every machine. Without that package the PDF's built-in Latin font is used, and more is spelled
out. What cannot be spelled is shown as its code point. Nothing is dropped, and nothing makes the renderer
fail: a customer whose name we cannot draw still gets a statement.
"""

import importlib.util
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from anyascii import anyascii
from fontTools.ttLib import TTFont  # type: ignore[import-untyped]  # ships no annotations
from fpdf import FPDF

_PACKAGE = "manimgx_fonts"
_MAIN = "NotoSans[wght].ttf"
_SCRIPTS = ("Hebrew", "Arabic", "Devanagari", "Thai", "Georgian", "Armenian")
_BUILT_IN = "helvetica"

# Marks that only steer direction or joining. They reorder what a reader sees, so a ledger line may not carry
# them.
_STEERING = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")


@dataclass(frozen=True, kw_only=True)
class Face:
    """The fonts a document may use, the main one first, and the code points that each can draw."""

    name: str
    files: tuple[Path, ...] = ()
    letters: tuple[frozenset[int], ...] = field(default=(), repr=False)

    def can_draw(self, character: str) -> bool:
        return any(ord(character) in letters for letters in self.letters)

    def use_in(self, pdf: FPDF, text: str) -> None:
        """Load into `pdf` the main font and those that `text` needs; others would only cost time."""
        if not self.files:
            pdf.set_font(self.name)
            return
        fallback = []
        for index, (file, letters) in enumerate(zip(self.files, self.letters, strict=True)):
            if index == 0 or any(ord(c) in letters and ord(c) not in self.letters[0] for c in text):
                pdf.add_font(f"face{index}", fname=file)
                fallback += [f"face{index}"] if index else []
        pdf.set_font("face0")
        pdf.set_text_shaping(use_shaping_engine=True)
        if fallback:
            pdf.set_fallback_fonts(fallback)

    def spell(self, text: str) -> str:
        """`text` in characters that this face draws. What it spells out stands in brackets: `[XiaoMing]`."""
        drawn: list[str] = []
        foreign: list[str] = []
        for character in unicodedata.normalize("NFC", text):
            if self._fit_to_print(character):
                drawn += [_spelled(foreign), character]
                foreign = []
            else:
                foreign.append(character)
        return "".join([*drawn, _spelled(foreign)])

    def _fit_to_print(self, character: str) -> bool:
        if character in _STEERING or unicodedata.category(character) in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}:
            return False
        return self.can_draw(character)


def _spelled(characters: list[str]) -> str:
    if not characters:
        return ""
    return "[" + "".join(_latin(character) for character in characters) + "]"


def _latin(character: str) -> str:
    """Printable ASCII for one character: a transliteration where there is one, else the code point."""
    if character not in _STEERING and unicodedata.category(character) not in {"Cc", "Cs"}:
        spelled = anyascii(character)
        if spelled and spelled.isascii() and spelled.isprintable():
            return spelled
    return f"U+{ord(character):04X}"


@cache
def packaged() -> Face | None:
    """The face of the font package, or None where it is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    files = (folder / _MAIN, *(folder / f"NotoSans{script}[wght].ttf" for script in _SCRIPTS))
    letters = tuple(_letters(file) for file in files)
    return Face(name=_PACKAGE, files=files, letters=letters)


def _letters(file: Path) -> frozenset[int]:
    with TTFont(file, lazy=True) as font:
        return frozenset(font.getBestCmap())


@cache
def built_in() -> Face:
    """The face that every PDF reader has: the letters of Latin-1, which is what fpdf2 encodes it in."""
    return Face(name=_BUILT_IN, letters=(frozenset([*range(0x20, 0x7F), *range(0xA0, 0x100)]),))


def best() -> Face:
    return packaged() or built_in()
