"""A TCP proxy that fails on purpose: cuts, freezes, and loses exactly one statement's request or answer.

The hard half of a network fault is not that the connection breaks but that nobody knows how far the other
side got. `cut_before` breaks it when the server has not seen the statement, `lose_answer` when the server
has done it and the client will never hear. A cut is a reset (RST) on both sides, as from a dead machine.

It runs in a thread with a loop of its own, so that a test's loop may block or be blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, get_args

from bellwire_testkit.faults import (
    AfterBytes,
    BeforeStatement,
    Cut,
    Direction,
    LoseAnswer,
    OnChunk,
    Piece,
    Rule,
    matcher,
)
from bellwire_testkit.waiting import wait_until
from bellwire_testkit.wire import EncryptedStream, Message, Session

__all__ = ["Direction", "Message", "Proxy"]

T = TypeVar("T")
_CALL_DEADLINE_S = 10.0
_CHUNK = 65536


class _Link:
    """One connection: its two sockets, and the PostgreSQL session read from them."""

    def __init__(self, client: socket.socket, server: socket.socket, *, postgres: bool) -> None:
        self.client, self.server = client, server
        self._session = Session() if postgres else None

    def piece(self, direction: Direction, chunk: bytes) -> Piece:
        """Of PostgreSQL only whole messages go on, else a cut before one could fall into its middle."""
        if self._session is None:
            return Piece(self, direction, chunk, [])
        read = self._session.client if direction == "to_server" else self._session.server
        messages = read(chunk)
        return Piece(self, direction, b"".join(message.raw for message in messages), messages)

    def close(self, *, reset: bool) -> None:
        for end in (self.client, self.server):
            if reset and end.fileno() >= 0:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class _Way:
    """One direction of all connections: whether it flows, and how late."""

    def __init__(self) -> None:
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.lateness: Callable[[], float] | None = None

    async def pass_one(self) -> None:
        """Wait as long as what is next to pass this way has to."""
        if self.lateness is not None:
            await asyncio.sleep(self.lateness())
        await self.flowing.wait()


class Proxy:
    """Forwards `port` on 127.0.0.1 to the target, until `close`; its methods may be called from any thread.

    `postgres=False` forwards bytes as they come, to any server, and knows no statements. PostgreSQL's must
    be without TLS. Each fault that is armed happens once, on whichever connection meets it first.
    """

    def __init__(self, target_host: str, target_port: int, *, postgres: bool = True) -> None:
        self._target = (target_host, target_port)
        self._postgres = postgres
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._rules: list[Rule] = []
        self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        """How many connections were cut so far."""
        self.accepted = 0
        """How many connections were ever asked for."""
        self.trouble: EncryptedStream | None = None
        self._loop = asyncio.new_event_loop()
        self._ways: dict[Direction, _Way] = {way: _Way() for way in get_args(Direction)}
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._accepting = self._call(self._start_accepting())

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every open connection now; new ones are served."""
        self._call(self._cut_all())

    def refuse(self, *, cut: bool = True) -> None:
        """Reset each new connection at once, until `serve`; and with `cut` those that are open."""
        self._refusing = True
        if cut:
            self.cut()

    def serve(self) -> None:
        self._refusing = False

    def freeze(self, direction: Direction | None = None) -> None:
        """Keep all sockets open and forward nothing, not even their end: a network that swallows packets.

        With a direction only that one: a half-open connection, in which one side hears and is not heard.
        """
        self._call(self._set_flowing(direction, False))

    def thaw(self, direction: Direction | None = None) -> None:
        """Forward again (both ways unless a direction is given), and first what was held back."""
        self._call(self._set_flowing(direction, True))

    def delay(
        self,
        seconds: float,
        *,
        up_to: float | None = None,
        direction: Direction | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Let each chunk wait that long, or a random time from `seconds` to `up_to`; 0 ends it.

        What is sent meanwhile waits behind it, so the bytes keep their order and nothing is lost.
        """
        dice = rng or random.Random()
        longest = seconds if up_to is None else up_to
        self._call(
            self._set_lateness(direction, (lambda: dice.uniform(seconds, longest)) if longest else None)
        )

    def cut_at_random(
        self, rng: random.Random, *, within: int, direction: Direction | None = None
    ) -> tuple[Direction, int]:
        """`cut_after` up to `within` more bytes, one way or the other; answers which way and how many.

        The same `rng` state makes the same choice; where in the stream that falls, the traffic decides.
        """
        ways: tuple[Direction, ...] = get_args(Direction)
        way = rng.choice(ways) if direction is None else direction
        count = rng.randint(1, within)
        self.cut_after(way, count)
        return way, count

    def cut_after(self, direction: Direction, count: int) -> None:
        """Let `count` more bytes (of all connections together) pass that way, then cut in mid-stream."""
        self._add(AfterBytes(direction, count))

    def cut_when(
        self, direction: Direction, predicate: Callable[[bytes], bool], *, forward: bool = False
    ) -> None:
        """Cut the connection whose next chunk satisfies `predicate`; with `forward`, pass the chunk on first.

        Of PostgreSQL a chunk is whole messages; of others it begins and ends where TCP likes.
        """
        self._add(OnChunk(direction, predicate, forward=forward))

    def cut_before(self, statement: str | Callable[[Message], bool]) -> None:
        """Cut the connection that next sends a statement containing the text, before the server sees it.

        Text is compared without case; of a prepared statement, what counts is running it, not preparing it.
        """
        self._add(BeforeStatement(matcher(statement)))

    def lose_answer(self, statement: str | Callable[[Message], bool]) -> None:
        """Let the server run the next statement containing the text, commit, and answer; then cut instead.

        The cut comes when the server is ready for the next query: what the statement did outside an open
        transaction, or what a COMMIT made lasting, is there.
        """
        self._add(LoseAnswer(matcher(statement)))

    def arm(self, rule: Rule) -> None:
        """A rule of the test's own: what it answers goes on, and its `Cut` cuts."""
        self._add(rule)

    def wait_cut(self, count: int = 1, *, deadline: float = 10.0) -> None:
        """Wait until `count` connections in all have been cut: the fault was real, not merely armed."""
        wait_until(
            lambda: self.cuts >= count,
            deadline=deadline,
            describe=lambda: f"{count} connections to be cut; {self.cuts} were. {self.trouble or ''}",
        )

    def close(self) -> None:
        """End all connections and the thread; safe to call twice."""
        if self._loop.is_closed():
            return
        self._call(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_DEADLINE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_DEADLINE_S)

    def _add(self, rule: Rule) -> None:
        # Appended in the loop's thread: when this returns, nothing that is sent later can slip past the rule.
        async def add() -> None:
            self._rules.append(rule)

        self._call(add())

    def _of(self, direction: Direction | None) -> list[_Way]:
        return list(self._ways.values()) if direction is None else [self._ways[direction]]

    async def _set_flowing(self, direction: Direction | None, flowing: bool) -> None:
        for way in self._of(direction):
            if flowing:
                way.flowing.set()
            else:
                way.flowing.clear()

    async def _set_lateness(self, direction: Direction | None, lateness: Callable[[], float] | None) -> None:
        for way in self._of(direction):
            way.lateness = lateness

    async def _start_accepting(self) -> asyncio.Task[None]:
        return self._loop.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            self.accepted += 1
            server = socket.socket()
            server.setblocking(False)
            link = _Link(client, server, postgres=self._postgres)
            if self._refusing:
                link.close(reset=True)
            else:
                self._links[link] = self._loop.create_task(self._serve(link))

    async def _serve(self, link: _Link) -> None:
        """Pump both ways until one side ends or a fault cuts; closes both sockets whatever happens."""
        reset = True
        pumps: list[asyncio.Task[None]] = []
        try:
            await self._loop.sock_connect(link.server, self._target)
            for end in (link.client, link.server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pumps = [
                self._loop.create_task(self._pump(link, "to_server", link.client, link.server)),
                self._loop.create_task(self._pump(link, "to_client", link.server, link.client)),
            ]
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            reset = any(task.exception() is not None for task in done)
        except OSError:
            pass  # the target is down: the client sees a reset
        finally:
            for pump in pumps:
                pump.cancel()
            ends = await asyncio.gather(*pumps, return_exceptions=True)
            self._links.pop(link, None)
            link.close(reset=reset)
            # Counted when the sockets are gone: who has waited for the cut finds the connection broken.
            self.cuts += any(isinstance(end, Cut) for end in ends)
            self.trouble = next((end for end in ends if isinstance(end, EncryptedStream)), self.trouble)

    async def _pump(
        self, link: _Link, direction: Direction, source: socket.socket, sink: socket.socket
    ) -> None:
        way = self._ways[direction]
        try:
            while chunk := await self._loop.sock_recv(source, _CHUNK):
                await way.pass_one()
                try:
                    passing = self._look(link.piece(direction, chunk))
                except Cut as cut:
                    with contextlib.suppress(OSError):
                        await self._loop.sock_sendall(sink, cut.passing)
                    raise
                await self._deliver(direction, sink, passing)
        except OSError:
            await way.pass_one()  # a reset is swallowed like everything else
            raise
        await way.pass_one()

    async def _deliver(self, direction: Direction, sink: socket.socket, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(sink, data)
        except OSError:
            # That the receiver has gone is news of its own, and travels the other way.
            await self._ways["to_client" if direction == "to_server" else "to_server"].pass_one()
            raise

    def _look(self, piece: Piece) -> bytes:
        for rule in self._rules:
            if rule.link not in {None, piece.link}:
                continue
            try:
                passing = rule.see(piece)
            except Cut:
                self._rules.remove(rule)
                raise
            if passing != piece.data:
                return passing
        return piece.data

    async def _cut_all(self) -> None:
        links = dict(self._links)
        for task in links.values():
            task.cancel()
        await asyncio.gather(*links.values(), return_exceptions=True)
        for link in links:  # a task that was cancelled before its first step closed nothing
            self._links.pop(link, None)
            link.close(reset=True)
        self.cuts += len(links)

    async def _shut_down(self) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listener.close()
        await self._cut_all()
