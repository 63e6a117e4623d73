"""No wait for the broker is without a deadline, and none depends on the client library noticing anything.

The library rejects what waits on a broken connection with `CancelledError`, which looks like our own
cancellation, and may wait for ever on one that froze. So each call runs in a task of its own: when its time
is over it is left behind, and when it was cancelled by anybody but us the connection is called lost. A
connection given up is aborted below the library, by its socket.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.abc import AbstractChannel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from aiormq.exceptions import AMQPConnectionError, AMQPError
from yarl import URL

from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.left_behind import forget
from bellwire_runtime.redact import redact

__all__ = ["BrokerLost", "Wire", "ask", "bare_channel", "bounded", "reason_of"]

T = TypeVar("T")
# What the library says of common mistakes, and what a person needs to hear.
_SIGNS = {
    "got <Connection.Close": "the broker ended the connection before it was open: is there such a virtual "
    "host, and may this user use it?",
    "WRONG_VERSION_NUMBER": "the port does not speak TLS: is it amqp://, or port 5671?",
    "ACCESS_REFUSED - Login": "the broker refuses the login: user or password is wrong",
    "Name or service not known": "the broker's host name is not known",
}
_LONGEST_FRAME = 16 * 1024 * 1024


class BrokerLost(ConnectionError):
    """The broker is away, frozen, or refuses us: weather, for a caller that tries again."""


async def bounded(call: Awaitable[T], *, within: float, what: str) -> T:
    """The call's answer. Raises `BrokerLost` after that many seconds, or when its connection broke under it;
    else what the call raises.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=within)
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(forget)
        raise
    if not done:
        task.cancel()
        task.add_done_callback(forget)
        raise BrokerLost(f"{what}: no answer within {within:g} s")
    if task.cancelled():
        raise BrokerLost(f"{what}: the connection broke")
    return task.result()


async def bare_channel(connection: AbstractConnection, *, within: float) -> AbstractChannel:
    """A channel of the library below, for one that does not live as long as its connection.

    aio-pika's own channels are kept by their connection until it closes (it takes its callback off another
    future than the one it put it on): 8 KB each, for ever, where channels come and go.
    """
    transport = connection.transport
    if transport is None:
        raise BrokerLost("open a channel: the connection is closed")
    return await bounded(
        transport.connection.channel(publisher_confirms=False), within=within, what="open a channel"
    )


async def ask(connection: AbstractConnection, *, within: float) -> None:
    """The cheapest question: a channel, opened and closed. Raises `BrokerLost` where nobody answers."""
    channel = await bare_channel(connection, within=within)
    await bounded(channel.close(), within=within, what="close a channel")


def reason_of(error: BaseException) -> str:
    """One line for a person, without a password in it."""
    text = str(error).strip()
    if isinstance(error, AMQPError) and error.args:
        text = " ".join(str(arg) for arg in error.args if arg)
    line = text.splitlines()[0] if text else ""
    for sign, meaning in _SIGNS.items():
        if sign in text:
            return meaning
    if isinstance(error, AMQPConnectionError) and line[:1].isdigit():
        return redact(line.lstrip("0123456789 "))[:300]
    name = type(error).__name__
    if isinstance(error, BrokerLost):
        return redact(line)
    return redact(f"{name}: {line}" if line else name)[:300]


class Wire:
    """One connection of the library, with a grip on the socket below it."""

    def __init__(self, connection: aio_pika.Connection, transport: "_Transport") -> None:
        self.connection = connection
        self._transport = transport

    @classmethod
    async def connect(cls, address: BrokerAddress, *, name: str) -> "Wire":
        """Raises `BrokerLost`, or what the library raises (a refused login, a bad certificate)."""
        url = URL(address.url).update_query(
            heartbeat=str(max(1, round(address.heartbeat))), name=name, timeout=str(round(address.timeout))
        )
        transport = _Transport(TLSTransportFactory() if address.secure else TCPTransportFactory())
        connection = _Connection(url, ssl_context=address.tls())
        connection.kwargs["transport_factory"] = transport
        wire = cls(connection, transport)
        try:
            # Shorter than other waits: a node that boots accepts before it answers; the next try finds it up.
            await bounded(connection.connect(), within=0.6 * address.timeout, what="connect")
        except BaseException:
            transport.abort()
            raise
        return wire

    async def discard(self, *, within: float = 1.0) -> None:
        """Close politely for a moment, then by force. Never raises, and never waits longer."""
        with contextlib.suppress(Exception):
            await bounded(self.connection.close(), within=within, what="close")
        self._transport.abort()


class _Connection(aio_pika.Connection):
    """The library's, which its owner discards, and nobody else."""

    def __del__(self) -> None:
        # The library's own would begin a close from whatever thread collects garbage.
        pass


class _Transport(TransportFactory):
    """The library's own transport, remembered."""

    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner
        self._writer: asyncio.StreamWriter | None = None
        self._aborted = False

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self._inner.create(url, **kwargs)
        self._writer = writer
        _limit(reader)
        if self._aborted:
            writer.transport.abort()
        raw: socket.socket | None = writer.get_extra_info("socket")
        if raw is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # The kernel's half of noticing a dead peer; the heartbeat is ours.
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000)
        return reader, writer

    def abort(self) -> None:
        self._aborted = True
        if self._writer is not None:
            self._writer.transport.abort()


def _limit(reader: asyncio.StreamReader) -> None:
    """A frame's length is the peer's word: one that speaks something else makes it gigabytes."""
    whole = reader.readexactly

    async def readexactly(n: int) -> bytes:
        if n > _LONGEST_FRAME:
            raise ConnectionError(f"a frame of {n:,} bytes: the peer does not speak AMQP")
        return await whole(n)

    reader.readexactly = readexactly  # type: ignore[method-assign]
