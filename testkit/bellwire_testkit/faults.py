"""What may go wrong with a connection, as rules: each sees all that is forwarded and acts once.

A rule decides over pieces in the order in which they pass, in one thread, so that "before" and "after" mean
what they say. It answers what may pass, or raises `Cut`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from bellwire_testkit.wire import Message

Direction = Literal["to_server", "to_client"]
Matches = Callable[[Message], bool]


class Cut(Exception):
    """What `passing` holds may still be forwarded, then the connection ends by a reset."""

    def __init__(self, passing: bytes = b"") -> None:
        self.passing = passing


@dataclass(frozen=True, slots=True)
class Piece:
    """What is about to be forwarded: bytes, and in PostgreSQL's case the whole messages they make up."""

    link: Hashable
    direction: Direction
    data: bytes
    messages: list[Message]


class Rule:
    """One fault, waiting for its moment."""

    link: Hashable = None
    """The connection in which it has begun to act; it sees no other from then on."""

    def see(self, piece: Piece) -> bytes:
        raise NotImplementedError


class AfterBytes(Rule):
    def __init__(self, direction: Direction, count: int) -> None:
        self._direction, self._left = direction, count

    def see(self, piece: Piece) -> bytes:
        if piece.direction == self._direction:
            if len(piece.data) >= self._left:
                raise Cut(piece.data[: self._left])
            self._left -= len(piece.data)
        return piece.data


class OnChunk(Rule):
    def __init__(self, direction: Direction, predicate: Callable[[bytes], bool], *, forward: bool) -> None:
        self._direction, self._predicate, self._forward = direction, predicate, forward

    def see(self, piece: Piece) -> bytes:
        if piece.direction == self._direction and self._predicate(piece.data):
            raise Cut(piece.data if self._forward else b"")
        return piece.data


class BeforeStatement(Rule):
    def __init__(self, matches: Matches) -> None:
        self._matches = matches

    def see(self, piece: Piece) -> bytes:
        passing = b""
        for message in piece.messages:
            if message.sql and self._matches(message):
                raise Cut(passing)
            passing += message.raw
        return piece.data


class LoseAnswer(Rule):
    """Answers to what was sent earlier still pass; from ours on nothing does, and its end is the cut."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._earlier = 0

    def see(self, piece: Piece) -> bytes:
        if piece.direction == "to_server":
            for message in piece.messages:
                if self.link is None and message.sql and self._matches(message):
                    self.link, self._earlier = piece.link, message.unanswered
            return piece.data
        if self.link is None:
            return piece.data
        passing = b""
        for message in piece.messages:
            if self._earlier:
                passing += message.raw
                self._earlier -= message.ready
            elif message.ready:
                raise Cut(passing)
        return passing


def matcher(statement: str | Matches) -> Matches:
    """A text becomes "contains it, without regard to case"."""
    if callable(statement):
        return statement
    wanted = statement.lower()
    return lambda message: wanted in message.sql.lower()
