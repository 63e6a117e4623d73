"""PostgreSQL's wire protocol, cut into messages, as far as a fault needs it.

A fault "at the COMMIT" must fall between two messages, and TCP knows no messages: a chunk may hold half of
one or ten. Source: PostgreSQL manual, "Frontend/Backend Protocol", message formats. Without TLS; a server
that accepts TLS makes the stream opaque, and the proxy says so.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SSL_REQUEST = 80877103
_GSS_REQUEST = 80877104
_QUERY, _PARSE, _BIND, _READY = b"Q", b"P", b"B", b"Z"
_ANSWERED = (_QUERY, b"S", b"F")  # Query, Sync, FunctionCall: each is answered by one ReadyForQuery


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `kind` is its type byte, b"" for those of the start-up, `raw` all its bytes.

    `sql` is what a message makes the server run: of a Query its text, of a Bind the text that was parsed
    under the statement's name. Else ''. (A Parse runs nothing.) `unanswered` is how many ReadyForQuery the
    server still owed when the client sent it; that many answers are not this message's.
    """

    kind: bytes
    raw: bytes
    sql: str = ""
    unanswered: int = 0

    @property
    def ready(self) -> bool:
        """The server's ReadyForQuery: whatever the statement did is committed or rolled back by now."""
        return self.kind == _READY


class EncryptedStream(RuntimeError):
    """Client and server agreed on TLS or GSS encryption; connect with sslmode=disable."""


class Session:
    """Both directions of one connection; feed it chunks, take whole messages."""

    def __init__(self) -> None:
        self._from_client = bytearray()
        self._from_server = bytearray()
        self._starting = True
        self._negotiations = 0
        self._owed = 1  # the start-up is answered by one as well
        self._statements: dict[bytes, str] = {}

    def client(self, chunk: bytes) -> list[Message]:
        """The messages of the client that `chunk` completes."""
        self._from_client += chunk
        found: list[Message] = []
        while raw := _cut_off(self._from_client, head=0 if self._starting else 1):
            found.append(self._startup(raw) if self._starting else self._frontend(raw))
        return found

    def server(self, chunk: bytes) -> list[Message]:
        """The messages of the server that `chunk` completes."""
        self._from_server += chunk
        found: list[Message] = []
        while self._from_server and self._negotiations:
            self._negotiations -= 1
            if self._from_server[:1] != b"N":
                raise EncryptedStream("the server agreed to encrypt; connect with sslmode=disable")
            found.append(Message(b"", b"N"))
            del self._from_server[:1]
        while raw := _cut_off(self._from_server, head=1):
            message = Message(raw[:1], raw)
            self._owed -= message.ready
            found.append(message)
        return found

    def _startup(self, raw: bytes) -> Message:
        code = struct.unpack_from("!I", raw, 4)[0]
        if code in {_SSL_REQUEST, _GSS_REQUEST}:
            self._negotiations += 1
        else:
            self._starting = False
        return Message(b"", raw)

    def _frontend(self, raw: bytes) -> Message:
        kind, body = raw[:1], raw[5:]
        owed, text = self._owed, ""
        self._owed += kind in _ANSWERED
        if kind == _QUERY:
            text = _text(body)
        elif kind == _PARSE:
            name, _, rest = body.partition(b"\0")
            self._statements[name] = _text(rest)
        elif kind == _BIND:
            _portal, _, rest = body.partition(b"\0")
            text = self._statements.get(rest.partition(b"\0")[0], "")
        return Message(kind, raw, text, owed)


def _cut_off(buffer: bytearray, *, head: int) -> bytes:
    """Take the first whole message off the buffer, b"" where it is not whole yet."""
    if len(buffer) < head + 4:
        return b""
    size: int = head + struct.unpack_from("!I", buffer, head)[0]
    if len(buffer) < size:
        return b""
    raw = bytes(buffer[:size])
    del buffer[:size]
    return raw


def _text(body: bytes) -> str:
    return body.partition(b"\0")[0].decode(errors="replace")
