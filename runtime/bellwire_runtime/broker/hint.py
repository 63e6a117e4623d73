"""The message: which jobs to look at, and nothing else. What is in it is believed by nobody.

A queue is open to whoever may publish, and broker data outlive databases, so anything may arrive: bytes that
are no hint, hints of another installation, of jobs long gone. Reading one never raises.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

__all__ = ["MAX_BODY", "MAX_IDS", "Hint", "Unheard", "decode", "encode"]

MAX_BODY = 64 * 1024
"""Bytes. A longer body is not read at all."""
MAX_IDS = 100
"""More ids a hint bring no more jobs a second (measured: 100: 23,600, 500: no better)."""

Unheard = Literal["garbage", "foreign"]
_KIND = re.compile(r"[a-z][a-z0-9_.]{0,62}")
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Hint:
    """`ids` are job ids as 32 hexadecimal digits, as they travel on to the claim."""

    kind: str
    version: int
    ids: tuple[str, ...]


def encode(installation: UUID, kind: str, version: int, ids: Sequence[UUID]) -> bytes:
    """The body of a hint."""
    listed = '","'.join([job.hex for job in ids])
    return (
        f'{{"installation":"{installation}","kind":"{kind}","version":{version},"ids":["{listed}"]}}'.encode()
    )


def decode(body: bytes, installation: UUID) -> Hint | Unheard:
    """The hint, or why it is none of ours."""
    if len(body) > MAX_BODY:
        return "garbage"
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return "garbage"
    match told:
        case {"installation": str(whose), "kind": str(kind), "version": int(version), "ids": list(ids)}:
            pass
        case _:
            return "garbage"
    if whose != str(installation):
        return "foreign"
    if (
        isinstance(version, bool)
        or not 1 <= version <= 32767
        or not _KIND.fullmatch(kind)
        or not 1 <= len(ids) <= 10 * MAX_IDS
        or not all(isinstance(job, str) and _ID.fullmatch(job) for job in ids)
    ):
        return "garbage"
    return Hint(kind, version, tuple(ids))
