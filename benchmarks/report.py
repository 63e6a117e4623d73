"""What was measured, beside what it has to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

__all__ = ["Report"]


@dataclass
class Report:
    """Rows in the order measured; a floor of None is a figure without a verdict."""

    title: str
    rows: list[tuple[str, str, str | None, bool]] = field(default_factory=list)

    def add(self, name: str, figure: str, floor: str | None = None, *, held: bool = True) -> None:
        self.rows.append((name, figure, floor, held))

    @property
    def held(self) -> bool:
        return all(held for *_, held in self.rows)

    def show(self, console: Console) -> None:
        table = Table("measured", "figure", "floor", "", title=self.title, title_justify="left")
        for name, figure, floor, held in self.rows:
            verdict = "" if floor is None else "[green]held[/]" if held else "[red]missed[/]"
            table.add_row(name, figure, floor or "", verdict)
        console.print(table)
