"""Results and checkpoints are proved storable before any SQL, so none of them can harm the batch it settles
in.

jsonb refuses what Python writes gladly: NaN and infinities, NUL characters, half of a surrogate pair. The
value is walked, rather than its text searched, because an escaped NUL looks the same as the six characters
that spell it.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from bellwire_schema.errors import ResultInvalid

__all__ = ["MAX_BYTES", "encode"]

MAX_BYTES = 65_536
MAX_DEPTH = 64
# jsonb keeps numbers as numeric, and a number of thousands of digits is a mistake long before that ends.
_MAX_INT = 10**1000


def encode(what: str, value: object) -> str:
    """`value` as compact JSON text. Raises `ResultInvalid`, naming where and why. `what` is for the
    message."""
    if isinstance(value, BaseModel):
        try:
            value = value.model_dump(mode="json")
        except Exception as error:  # noqa: BLE001 (a serializer of the user's own)
            raise ResultInvalid(f"{what}: cannot be written as JSON ({type(error).__name__})") from None
    _walk(what, value, 0)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_mapping)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultInvalid(f"{what}: is no JSON ({type(error).__name__})") from None
    if size > MAX_BYTES:
        raise ResultInvalid(
            f"{what}: takes {size} bytes, the limit is {MAX_BYTES}; keep it in a store instead"
        )
    return text


def _mapping(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)


def _walk(path: str, value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ResultInvalid(f"{path}: is nested deeper than {MAX_DEPTH} levels")
    match value:
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ResultInvalid(f"{path}: has a key that is no text ({type(key).__name__})")
                _text(f"{path} (a key)", key)
                _walk(f"{path}.{key}", item, depth + 1)
        case list() | tuple():
            for index, item in enumerate(value):
                _walk(f"{path}[{index}]", item, depth + 1)
        case _:
            _leaf(path, value)


def _leaf(path: str, value: object) -> None:
    match value:
        case None | bool():
            return
        case str():
            _text(path, value)
        case int() if not -_MAX_INT < value < _MAX_INT:
            raise ResultInvalid(f"{path}: is a number of more than a thousand digits")
        case float() if not math.isfinite(value):
            raise ResultInvalid(f"{path}: is NaN or an infinity, which JSON does not have")
        case int() | float():
            return
        case _:
            raise ResultInvalid(f"{path}: is no JSON value but {type(value).__name__}")


def _text(path: str, text: str) -> None:
    if "\x00" in text:
        raise ResultInvalid(f"{path}: contains a NUL character, which PostgreSQL cannot store")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ResultInvalid(f"{path}: contains half of a surrogate pair")
