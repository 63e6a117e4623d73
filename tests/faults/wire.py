"""AMQP on the wire, as a proxy sees it: what was delivered and when it was acknowledged, and a forged ack.

Only what these tests need of the protocol is read: frames (AMQP 0-9-1, 2.3.5), basic.deliver and basic.ack.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from bellwire_testkit.faults import Direction, Piece, Rule

_METHOD, _END = 1, b"\xce"
_PUBLISH, _DELIVER, _ACK = (60, 40), (60, 60), (60, 80)
_HEADER = struct.Struct(">BHI")


class _Frames:
    """Cuts one direction of one connection into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Type, channel and payload of each frame that is complete now."""
        self._rest = (self._rest + data).removeprefix(b"AMQP\x00\x00\x09\x01")
        while len(self._rest) >= _HEADER.size:
            kind, channel, size = _HEADER.unpack_from(self._rest)
            if len(self._rest) < _HEADER.size + size + 1:
                return
            yield kind, channel, self._rest[_HEADER.size : _HEADER.size + size]
            self._rest = self._rest[_HEADER.size + size + 1 :]

    @property
    def whole(self) -> bool:
        """Whether what was read ended with a frame's end."""
        return not self._rest


@dataclass
class Delivery:
    """One hint on the wire; times are monotonic."""

    at: float
    acked: float | None = None


class AckWatch(Rule):
    """Changes nothing; notes for each delivery how long its acknowledgement took."""

    def __init__(self) -> None:
        self._frames: dict[tuple[Hashable, Direction], _Frames] = {}
        self._open: dict[tuple[Hashable, int], dict[int, Delivery]] = {}
        self._lock = threading.Lock()
        self.deliveries: list[Delivery] = []

    def see(self, piece: Piece) -> bytes:
        frames = self._frames.setdefault((piece.link, piece.direction), _Frames())
        now = time.monotonic()
        with self._lock:
            for kind, channel, payload in frames.read(piece.data):
                if kind == _METHOD:
                    self._method(piece, channel, payload, now)
        return piece.data

    def delays(self) -> list[float]:
        """Seconds from delivery to acknowledgement, of all that were acknowledged."""
        with self._lock:
            return [one.acked - one.at for one in self.deliveries if one.acked is not None]

    @property
    def unacked(self) -> int:
        with self._lock:
            return sum(one.acked is None for one in self.deliveries)

    def _method(self, piece: Piece, channel: int, payload: bytes, now: float) -> None:
        method = struct.unpack_from(">HH", payload)
        known = self._open.setdefault((piece.link, channel), {})
        if piece.direction == "to_client" and method == _DELIVER:
            (tag,) = struct.unpack_from(">Q", payload, 5 + payload[4])
            known[tag] = Delivery(now)
            self.deliveries.append(known[tag])
        elif piece.direction == "to_server" and method == _ACK:
            tag, multiple = struct.unpack_from(">QB", payload, 4)
            for one in [t for t in known if t == tag or (multiple & 1 and t <= tag)]:
                known.pop(one).acked = now


class BogusAck(Rule):
    """Puts an acknowledgement of a delivery that never was behind the client's next acknowledgement or
    message, on its channel. The broker answers 406 and closes that channel, and nothing but that channel.
    """

    def __init__(self) -> None:
        self._frames: dict[Hashable, _Frames] = {}
        self.sent = threading.Event()

    def see(self, piece: Piece) -> bytes:
        if piece.direction == "to_client" or self.sent.is_set():
            return piece.data
        frames = self._frames.setdefault(piece.link, _Frames())
        # In a connection that is older than this rule the first chunk may begin anywhere, but does not.
        channels = [
            channel
            for kind, channel, payload in frames.read(piece.data)
            if kind == _METHOD and struct.unpack_from(">HH", payload) in {_ACK, _PUBLISH}
        ]
        if not channels or not frames.whole:
            return piece.data
        self.sent.set()
        payload = struct.pack(">HHQB", *_ACK, 999_999_999, 0)
        return piece.data + _HEADER.pack(_METHOD, channels[-1], len(payload)) + payload + _END
