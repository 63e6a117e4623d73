"""Tables for people, JSON for programs, from the same rows.

On a terminal a table fits the screen; into a pipe it is as wide as its content, so that grep sees whole ids.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from bellwire_schema.words import span

__all__ = ["ago", "print_json", "print_lines", "print_table"]


def print_json(value: Any) -> None:
    """One JSON document. Times are ISO 8601, durations seconds, ids text."""
    json.dump(_plain(value), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_lines(*lines: str) -> None:
    """Plain text: never read as markup, since it may hold what people sent."""
    for line in lines:
        sys.stdout.write(f"{line}\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Rows under headings, or the sentence `empty`."""
    if not rows:
        print_lines(empty)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if value is None else _cell(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else 10_000, highlight=False).print(table)


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
