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
from typing import Any, cast


def args_digest(text: str) -> bytes:
    """SHA-256 of the normal form of a JSON text."""
    return hashlib.sha256(normal_form(text).encode()).digest()


def normal_form(text: str) -> str:
    fractions = []

    def keep(number: str) -> Decimal:
        fractions.append(number)
        return Decimal(number)

    tree = json.loads(text, parse_float=keep)
    if not fractions:
        # Most payloads hold text and whole numbers, for which the C encoder writes the normal form.
        return json.dumps(tree, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return _write(tree)


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
    if not value:
        return "0"
    sign, digits, exponent = value.as_tuple()
    shift = cast("int", exponent)  # JSON has neither NaN nor infinities, whose exponents are letters
    written = "".join(map(str, digits))
    significant = written.rstrip("0")
    shift += len(written) - len(significant)
    minus = "-" if sign else ""
    if shift >= 0:
        return minus + significant + "0" * shift
    return f"{minus}{significant}e{shift}"
