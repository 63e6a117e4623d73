"""Messages are found whatever chunks they come in; what a prepared statement runs is seen at its Bind."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellwire_testkit.wire import EncryptedStream, Session


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


STARTUP = message(b"", struct.pack("!I", 196608) + b"user\0ana\0\0")
SSL_REQUEST = message(b"", struct.pack("!I", 80877103))
READY = message(b"Z", b"I")
CLIENT = (
    STARTUP
    + message(b"Q", b"BEGIN\0")
    + message(b"P", b"s1\0SELECT 1\0\0\0")
    + message(b"B", b"\0s1\0" + bytes(8))
    + message(b"S", b"")
)
EXPECTED = [(b"", "", 0), (b"Q", "BEGIN", 1), (b"P", "", 2), (b"B", "SELECT 1", 2), (b"S", "", 2)]


@given(st.lists(st.integers(0, len(CLIENT)), max_size=12))
def test_chunks_may_be_cut_anywhere(cuts: list[int]) -> None:
    session = Session()
    borders = sorted({0, len(CLIENT), *cuts})
    found = [found for a, b in pairwise(borders) for found in session.client(CLIENT[a:b])]
    assert [(m.kind, m.sql, m.unanswered) for m in found[1:]] == EXPECTED[1:]
    assert b"".join(m.raw for m in found) == CLIENT


def test_answers_are_counted_off() -> None:
    session = Session()
    session.client(STARTUP)
    assert [m.ready for m in session.server(message(b"R", bytes(4)) + READY)] == [False, True]
    (query,) = session.client(message(b"Q", b"SELECT 1\0"))
    assert query.unanswered == 0


def test_refused_encryption_is_a_byte_of_its_own() -> None:
    session = Session()
    session.client(SSL_REQUEST)
    assert [m.raw for m in session.server(b"N")] == [b"N"]
    session.client(STARTUP)
    assert [m.ready for m in session.server(READY)] == [True]


def test_encryption_is_refused_loudly() -> None:
    session = Session()
    session.client(SSL_REQUEST)
    with pytest.raises(EncryptedStream):
        session.server(b"S")


def test_unnamed_statement_is_the_last_one_parsed() -> None:
    session = Session()
    session.client(STARTUP)
    for text in (b"SELECT 1", b"SELECT 2"):
        found = session.client(message(b"P", b"\0" + text + b"\0\0\0") + message(b"B", b"\0\0" + bytes(8)))
        assert found[-1].sql == text.decode()
