"""One call of a function in schema `bellwire`, the same for every driver.

Every argument travels as text and is cast by the server, and every row comes back as one JSON text, so that
no driver's adapters, codecs or row factories (the caller's own included) stand between us and the function.
Arguments are named; those left at the function's default are not sent, which keeps the statement's texts few
and short.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Style = Literal["format", "numeric_dollar"]
Cast = Literal["text", "int", "boolean", "uuid", "uuid[]", "jsonb", "timestamptz", "interval", "hex"]
Argument = tuple[str, Cast, str | None]


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Argument, ...]
    writes: bool = False
    """A write is refused where it would commit by itself."""
    columns: str = "*"
    one: bool = False
    """The function answers with one composite value, so it need not stand in FROM."""

    def sql(self, style: Style) -> str:
        signature = tuple((name, cast) for name, cast, _ in self.arguments)
        return _sql(self.function, self.columns, self.one, signature, style)

    def parameters(self) -> tuple[str | None, ...]:
        return tuple(value for _, _, value in self.arguments)


def rows(texts: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """What `Call.sql` answered, decoded."""
    return [json.loads(text) for (text,) in texts]


@lru_cache(maxsize=256)
def _sql(
    function: str, columns: str, one: bool, signature: tuple[tuple[str, Cast], ...], style: Style
) -> str:
    arguments = ", ".join(
        f"{name} => {_cast(cast, place)}"
        for (name, cast), place in zip(signature, _places(style, len(signature)), strict=True)
    )
    # Text of ours only; values travel as parameters.
    if one:
        return f"SELECT row_to_json(bellwire.{function}({arguments}))::text"
    answer = f"SELECT {columns} FROM bellwire.{function}({arguments}) AS f"  # noqa: S608
    return f"SELECT row_to_json(r)::text FROM ({answer}) AS r"  # noqa: S608


def _places(style: Style, count: int) -> Iterator[str]:
    return (f"${number}" if style == "numeric_dollar" else "%s" for number in range(1, count + 1))


def _cast(cast: Cast, place: str) -> str:
    match cast:
        case "text":
            return f"{place}::text"
        case "hex":
            return f"decode({place}::text, 'hex')"
        case _:
            return f"{place}::text::{cast}"
