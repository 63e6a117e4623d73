"""Tables for people, JSON for programs, from the same rows.

Invariant: an id is never cut or wrapped, since it is there to be copied. On a terminal a table drops its
least columns until the others fit, and folds only columns of prose; into a pipe it is as wide as its content.
"""

import io
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import typer

from bellwire_schema.words import span

__all__ = ["ago", "print_json", "print_lines", "print_table"]

# A column of prose is folded to no less than this.
_FOLDED = 16


def print_json(value: Any) -> None:
    """One JSON document. Times are ISO 8601, durations seconds, ids text."""
    _write(json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n")


def print_lines(*lines: str) -> None:
    """Plain text: never read as markup, since it may hold what people sent."""
    _write("".join(f"{line}\n" for line in lines))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    empty: str,
    prose: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Rows under headings, or the sentence `empty`.

    Only columns of `prose` are folded. Where the screen is too narrow those of `drop` go, in that order.
    """
    if not rows:
        print_lines(empty)
        return
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    texts = {
        name: ["" if row[n] is None else _cell(row[n]) for row in rows] for n, name in enumerate(columns)
    }
    wide = {
        name: max(cell_len(line) for text in (name, *cells) for line in text.splitlines() or [""])
        for name, cells in texts.items()
    }
    screen = _screen()
    left_out: list[str] = []
    if screen is not None:
        least = {
            name: min(width, max(_FOLDED, cell_len(name))) if name in prose else width
            for name, width in wide.items()
        }
        for name in drop:
            if _across(least) <= screen:
                break
            left_out.append(name)
            del texts[name], least[name]
        _widen(least, wide, screen)
        wide = least
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in texts:
        table.add_column(name, overflow="fold", no_wrap=name not in prose, width=wide[name])
    for row in zip(*texts.values(), strict=True):
        table.add_row(*map(Text, row))
    into = io.StringIO()
    # What still does not fit goes past the edge, whole: the terminal breaks the line, and copying joins it.
    width = 10_000 if screen is None else max(screen, _across(wide))
    Console(file=into, width=width, highlight=False, force_terminal=screen is not None).print(table)
    _write(into.getvalue())
    if left_out:
        print_lines(f"not shown here: {', '.join(left_out)}; a wider terminal or --json has them")


def _across(widths: Mapping[str, int]) -> int:
    """With two spaces between columns."""
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _widen(widths: dict[str, int], natural: Mapping[str, int], screen: int) -> None:
    """Gives what is left of the screen to folded columns, in order."""
    for name, width in widths.items():
        widths[name] += min(natural[name] - width, max(screen - _across(widths), 0))


def _screen() -> int | None:
    """How wide the terminal is; None where nobody sits at one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has seen enough (`| head`). What is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def ago(moment: datetime | None, now: datetime) -> str | None:
    """`3 min 5 s ago`, or `in 2 h 0 min`."""
    if moment is None:
        return None
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def _cell(value: object) -> str:
    match value:
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case timedelta():
            return span(value)
        case list() | tuple():
            return ", ".join(_cell(part) for part in value)
        case _:
            return str(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case Mapping():
            return {str(key): _plain(part) for key, part in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(part) for part in value]
        case _:
            return value
