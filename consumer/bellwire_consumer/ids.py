"""Attempt ids and lease tokens, drawn before the claim is sent, so that a claim whose answer is lost can be
named.

Attempt ids are version 7 UUIDs (RFC 9562): they are a primary key, and random ones would touch a page of
its index each. They are dated by this process's clock, which only spreads them; nothing is decided by it.
Tokens are all random. Both are kept as hexadecimal text, which is what is sent: a batch needs hundreds, and
objects cost.
"""

import os
import time
from collections.abc import Callable

__all__ = ["draw"]


def draw(
    count: int, *, entropy: Callable[[int], bytes] = os.urandom, milliseconds: int | None = None
) -> tuple[list[str], list[str]]:
    """`count` attempt ids and as many tokens, 32 hexadecimal digits each."""
    head = f"{time.time_ns() // 1_000_000 if milliseconds is None else milliseconds:012x}7"
    random = entropy(32 * count).hex()
    starts = range(0, 64 * count, 64)
    # Eighteen digits of chance: three beside the version, then the variant, then fifteen.
    attempts = [f"{head}{random[at : at + 3]}8{random[at + 3 : at + 18]}" for at in starts]
    tokens = [random[at + 32 : at + 64] for at in starts]
    return attempts, tokens
