"""The proxy's faults fall exactly where they say: the server's rows are looked at past the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from bellwire_testkit.proxy import Direction, Proxy
from bellwire_testkit.servers import PostgresServer
from bellwire_testkit.waiting import wait_until


@pytest.fixture
def wire(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.host, postgres.port) as running:
        yield running


@pytest.fixture
def table(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection past the proxy, to the server that holds the table `seen`."""
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute("CREATE TABLE seen (n int)")
        yield conn
        conn.execute("DROP TABLE seen")


def rows(table: psycopg.Connection[Any]) -> list[int]:
    return [n for (n,) in table.execute("SELECT n FROM seen ORDER BY n")]


def through(postgres: PostgresServer, wire: Proxy, **options: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(postgres.dsn("postgres", port=wire.port), connect_timeout=5, **options)


def test_forwards_both_ways_whatever_the_size(postgres: PostgresServer, wire: Proxy) -> None:
    text = "x" * 3_000_000
    with through(postgres, wire) as conn:
        assert conn.execute("SELECT %s || '!'", (text,)).fetchone() == (text + "!",)
        assert wire.connections == 1
    wait_until(lambda: wire.connections == 0, describe="the connection's end to pass through")


def test_cut_resets_what_is_open_and_serves_what_comes(postgres: PostgresServer, wire: Proxy) -> None:
    with through(postgres, wire) as conn:
        wire.cut()
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    with through(postgres, wire) as again:
        again.execute("SELECT 1")
    assert wire.cuts == 1


def test_refuse_until_serve(postgres: PostgresServer, wire: Proxy) -> None:
    wire.refuse()
    with pytest.raises(psycopg.OperationalError):
        through(postgres, wire)
    wire.serve()
    through(postgres, wire).close()


def test_target_down_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with Proxy("127.0.0.1", port) as wire, pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{wire.port}/postgres", connect_timeout=5)


def test_cut_before_commit_leaves_nothing(
    postgres: PostgresServer, wire: Proxy, table: psycopg.Connection[Any]
) -> None:
    with through(postgres, wire) as conn:
        conn.execute("INSERT INTO seen VALUES (1)")
        wire.cut_before("commit")
        with pytest.raises(psycopg.OperationalError):
            conn.commit()
    wire.wait_cut()
    wait_until(
        lambda: (
            table.execute("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'").fetchone()
            == (0,)
        ),
        describe="the server to notice",
    )
    assert rows(table) == []


def test_lost_answer_of_commit_is_committed(
    postgres: PostgresServer, wire: Proxy, table: psycopg.Connection[Any]
) -> None:
    with through(postgres, wire) as conn:
        conn.execute("INSERT INTO seen VALUES (1)")
        wire.lose_answer("commit")
        with pytest.raises(psycopg.OperationalError):
            conn.commit()
    assert rows(table) == [1]


@pytest.mark.parametrize("prepare", [False, True])
def test_statement_in_autocommit(
    postgres: PostgresServer, wire: Proxy, table: psycopg.Connection[Any], prepare: bool
) -> None:
    statement = "INSERT INTO seen VALUES (%s)"
    with through(postgres, wire, autocommit=True) as conn:
        conn.execute(statement, (1,), prepare=prepare)
        wire.lose_answer("insert into SEEN")
        with pytest.raises(psycopg.OperationalError):
            conn.execute(statement, (2,), prepare=prepare)
    with through(postgres, wire, autocommit=True) as conn:
        conn.execute(statement, (3,), prepare=prepare)
        wire.cut_before("insert into SEEN")
        with pytest.raises(psycopg.OperationalError):
            conn.execute(statement, (4,), prepare=prepare)
    wire.wait_cut(2)
    with through(postgres, wire, autocommit=True) as conn:
        conn.execute(statement, (5,), prepare=prepare)
    assert rows(table) == [1, 2, 3, 5]


def test_answers_before_the_lost_one_arrive(
    postgres: PostgresServer, wire: Proxy, table: psycopg.Connection[Any]
) -> None:
    """In a pipeline the server owes several answers when the statement is sent; only ours is lost."""
    with through(postgres, wire, autocommit=True) as conn:
        wire.lose_answer("VALUES (2)")
        heard = []
        with pytest.raises(psycopg.OperationalError), conn.pipeline() as pipeline:  # noqa: PT012
            first = conn.execute("INSERT INTO seen VALUES (1) RETURNING n")
            pipeline.sync()
            conn.execute("INSERT INTO seen VALUES (2)")
            heard.append(first.fetchone())
        assert heard == [(1,)]
    assert rows(table) == [1, 2]


async def test_asyncpg_is_read_as_well(
    postgres: PostgresServer, wire: Proxy, table: psycopg.Connection[Any]
) -> None:
    conn = await asyncpg.connect(postgres.dsn("postgres", port=wire.port), ssl=False, timeout=5)
    wire.lose_answer("insert into seen")
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
        await conn.execute("INSERT INTO seen VALUES ($1)", 7)
    assert rows(table) == [7]
    conn.terminate()
    await asyncio.sleep(0)


def test_a_fault_strikes_once_and_one_connection(postgres: PostgresServer, wire: Proxy) -> None:
    with through(postgres, wire) as bystander, through(postgres, wire) as victim:
        wire.cut_before("SELECT 'x'")
        bystander.execute("SELECT 'y'")
        with pytest.raises(psycopg.OperationalError):
            victim.execute("SELECT 'x'")
        bystander.execute("SELECT 'x'")
    wire.wait_cut(1)


def test_freeze_holds_and_thaw_delivers(postgres: PostgresServer, wire: Proxy) -> None:
    answers: list[Any] = []
    with through(postgres, wire, autocommit=True) as conn:
        wire.freeze()
        asker = threading.Thread(target=lambda: answers.append(conn.execute("SELECT 1").fetchone()))
        asker.start()
        asker.join(0.2)
        assert asker.is_alive()
        assert wire.connections == 1
        wire.thaw()
        asker.join(10)
        assert answers == [(1,)]


def test_cut_when_and_after_know_no_protocol() -> None:
    """Echo server: what came back is what passed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            for _ in range(3):
                peer, _ = listener.accept()
                with peer:
                    try:
                        while data := peer.recv(100):
                            peer.sendall(data)
                    except ConnectionError:
                        pass

        server = threading.Thread(target=echo)
        server.start()
        with Proxy("127.0.0.1", listener.getsockname()[1], postgres=False) as wire:

            def say(*words: bytes) -> bytes:
                heard = b""
                with socket.create_connection(("127.0.0.1", wire.port), timeout=5) as client:
                    try:
                        for word in words:
                            client.sendall(word)
                            heard += client.recv(100)
                    except ConnectionError:
                        pass
                return heard

            wire.cut_after("to_client", 7)
            assert say(b"hello", b"world").startswith(b"hello")
            wire.cut_when("to_server", lambda data: b"stop" in data)
            assert say(b"go", b"stop", b"more") == b"go"
            wire.cut_when("to_client", lambda data: b"last" in data, forward=True)
            assert say(b"first", b"last", b"more").startswith(b"first")
            wire.wait_cut(3)
        server.join(5)


class Echo:
    """A server that sends back what it hears, and counts who is connected to it."""

    def __init__(self) -> None:
        self.open = 0
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.open += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                while data := peer.recv(65536):
                    self.heard += data
                    peer.sendall(data)
            except OSError:
                pass
        self.open -= 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def plain(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port, postgres=False) as running:
        yield running


def dial(wire: Proxy, timeout: float = 5.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", wire.port), timeout=timeout)


def read(client: socket.socket, count: int) -> bytes:
    heard = b""
    while len(heard) < count and (more := client.recv(count - len(heard))):
        heard += more
    return heard


def test_frozen_one_way_the_server_hears_and_is_not_heard(echo: Echo, plain: Proxy) -> None:
    with dial(plain, 0.3) as client:
        plain.freeze("to_client")
        client.sendall(b"ping")
        wait_until(lambda: echo.heard == b"ping", describe="the server to hear")
        with pytest.raises(TimeoutError):
            client.recv(4)
        plain.thaw("to_client")
        client.settimeout(5)
        assert read(client, 4) == b"ping"


def test_frozen_the_other_way_the_server_hears_nothing(echo: Echo, plain: Proxy) -> None:
    with dial(plain, 0.3) as client:
        plain.freeze("to_server")
        client.sendall(b"ping")
        with pytest.raises(TimeoutError):
            client.recv(4)
        assert echo.heard == b""
        plain.thaw()
        client.settimeout(5)
        assert read(client, 4) == b"ping"


@pytest.mark.parametrize("direction", [None, "to_server"])
def test_a_frozen_wire_hides_that_a_client_has_gone(
    echo: Echo, plain: Proxy, direction: Direction | None
) -> None:
    client = dial(plain)
    client.sendall(b"ping")
    assert read(client, 4) == b"ping"
    plain.freeze(direction)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with pytest.raises(TimeoutError):
        wait_until(lambda: echo.open == 0, deadline=0.3, describe="the server to notice")
    plain.thaw()
    wait_until(lambda: echo.open == 0, describe="the server to notice")


def test_delay_keeps_order_and_ends(plain: Proxy) -> None:
    sent = random.Random(1).randbytes(300_000)
    with dial(plain) as client:
        plain.delay(0.02, up_to=0.04, rng=random.Random(2))
        began = time.monotonic()
        threading.Thread(target=client.sendall, args=(sent,)).start()
        assert read(client, len(sent)) == sent
        assert time.monotonic() - began > 0.08  # at least two chunks, each way late
        plain.delay(0)
        client.sendall(b"ping")
        assert read(client, 4) == b"ping"


def test_refuse_new_ones_only(plain: Proxy) -> None:
    with dial(plain) as early:
        early.sendall(b"ping")
        assert read(early, 4) == b"ping"
        plain.refuse(cut=False)
        with contextlib.suppress(ConnectionResetError), dial(plain) as late:
            assert late.recv(1) == b""
        early.sendall(b"pong")
        assert read(early, 4) == b"pong"
    assert plain.cuts == 0


def test_random_cuts_are_the_same_for_the_same_seed(echo: Echo, plain: Proxy) -> None:
    chosen = []
    for seed in (7, 7, 8):
        echo.heard = b""
        way, count = plain.cut_at_random(random.Random(seed), within=1000)
        chosen.append((way, count))
        heard = b""
        with dial(plain) as client:
            try:
                for _ in range(200):
                    client.sendall(b"x" * 10)
                    heard += read(client, 10)
            except ConnectionError:
                pass
        plain.wait_cut(len(chosen))
        wait_until(lambda: echo.open == 0, describe="the server to notice")
        assert way == "to_client" or len(echo.heard) <= count
        assert way == "to_server" or len(heard) <= count
        assert len(echo.heard) < 2000
    assert chosen[0] == chosen[1] != chosen[2]
