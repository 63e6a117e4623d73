"""One normal form per JSON value, so that equal arguments have one digest in every language.

The database compares payloads itself; the digest answers where it cannot: after a purge, and for encrypted
payloads. The form is the compact JSON text with keys sorted by code point, characters written as themselves
(only `"`, `\\` and controls escaped), and numbers by value: a whole number as its digits, any other as its
shortest digits, "e" and the power of ten (1, 1.0 and 1e0 are "1"; 0.5 is "5e-1"). Vectors:
tests/unit/args_digest_vectors.json.
"""

import hashlib
import json
from decimal import Decimal
from typing import Any


def args_digest(text: str) -> bytes:
    """SHA-256 of the normal form of a JSON text."""
    return hashlib.sha256(normal_form(text).encode()).digest()


def normal_form(text: str) -> str:
    return _write(json.loads(text, parse_float=Decimal))


def _write(value: Any) -> str:
    match value:
        case dict():
            members = (
                f"{json.dumps(name, ensure_ascii=False)}:{_write(value[name])}" for name in sorted(value)
            )
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_write, value)) + "]"
        case Decimal():
            return _number(value)
        case _:
            return json.dumps(value, ensure_ascii=False)


def _number(value: Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - JSON has no NaN
    significant = "".join(map(str, digits)).lstrip("0").rstrip("0")
    if not significant:
        return "0"
    exponent += len("".join(map(str, digits))) - len("".join(map(str, digits)).rstrip("0"))
    minus = "-" if sign else ""
    if exponent >= 0:
        return minus + significant + "0" * exponent
    return f"{minus}{significant}e{exponent}"
