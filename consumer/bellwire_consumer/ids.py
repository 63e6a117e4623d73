"""Attempt ids and lease tokens, drawn before the claim is sent, so that a claim whose answer is lost can be
named.

Attempt ids are version 7 UUIDs: they are a primary key, and random ones would touch a page of its index
each. They are dated by this process's clock, which only spreads them; nothing is decided by it. Tokens are
all random.
"""

import os
import time
from collections.abc import Callable
from uuid import UUID

__all__ = ["draw"]

_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_RANDOM = (1 << 76) - 1 & ~(0b11 << 62)


def draw(
    count: int, *, entropy: Callable[[int], bytes] = os.urandom, milliseconds: int | None = None
) -> tuple[list[UUID], list[UUID]]:
    """`count` attempt ids and as many tokens."""
    head = (
        (time.time_ns() // 1_000_000 if milliseconds is None else milliseconds) << 80 | _VERSION_7 | _VARIANT
    )
    random = entropy(32 * count)
    attempts = []
    tokens = []
    for at in range(0, 32 * count, 32):
        attempts.append(UUID(int=head | int.from_bytes(random[at : at + 16], "big") & _RANDOM))
        tokens.append(UUID(bytes=random[at + 16 : at + 32]))
    return attempts, tokens
