"""The private server: starts, crashes and comes back with its data, and leaves nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bellwire_testkit import server_container
from bellwire_testkit.processes import Processes
from bellwire_testkit.servers import PostgresServer, ServerFailed, ServerMissing
from bellwire_testkit.waiting import wait_until

OWNER = """
import sys, time
from bellwire_testkit.servers import PostgresServer
server = PostgresServer(source="binaries").start()
print("server", server.pid, server._server.folder, flush=True)
if sys.argv[1] == "stay":
    time.sleep(60)
"""

ORDINARY_USER = """
import os, psycopg
from pathlib import Path
from bellwire_testkit.servers import PostgresServer
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with PostgresServer(source="binaries") as server, psycopg.connect(server.url) as conn:
    uid = Path(f"/proc/{server.pid}").stat().st_uid
    print(conn.execute("SELECT %s, 1", (uid,)).fetchall())
"""
FORK = """
import os, psycopg
from bellwire_testkit.servers import PostgresServer
with PostgresServer(source="binaries") as server:
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    os.waitpid(child, 0)
    with psycopg.connect(server.url) as conn:
        print(conn.execute("SELECT 1").fetchone())
"""


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    with PostgresServer(source="binaries") as server:
        yield server


def one(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as conn:
        row = conn.execute(query).fetchone()
        return row and row[0]


def gone(conn: psycopg.Connection[Any]) -> bool:
    try:
        conn.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def test_settings_of_a_test_server(own: PostgresServer) -> None:
    assert own.port != 5432
    assert one(own.url, "SHOW fsync") == "off"
    assert one(own.url, "SHOW synchronous_commit") == "on"
    assert one(own.url, "SHOW max_connections") == "200"
    assert one(own.url, "SHOW listen_addresses") == "127.0.0.1"
    assert one(own.url, "SHOW shared_preload_libraries") == "pg_stat_statements"


def test_survives_kill_crash_and_restart(own: PostgresServer) -> None:
    with psycopg.connect(own.url, autocommit=True) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 7 AS n")
        before = own.pid
        own.kill()
        # A backend leaves when it notices that its postmaster has gone, which may be after an answer or two.
        wait_until(lambda: gone(conn), describe="the backend to notice")
    own.start()
    assert own.pid != before
    own.restart("immediate")
    own.restart()
    assert one(own.url, "SELECT n FROM kept") == 7


def test_start_twice_is_refused(own: PostgresServer) -> None:
    with pytest.raises(ServerFailed, match="running already"):
        own.start()


def test_durable_turns_fsync_on_and_settings_win() -> None:
    with PostgresServer(
        source="binaries", durable=True, settings={"max_connections": "20", "shared_buffers": "16MB"}
    ) as server:
        assert one(server.url, "SHOW fsync") == "on"
        assert one(server.url, "SHOW full_page_writes") == "on"
        assert one(server.url, "SHOW max_connections") == "20"


def test_bad_settings_are_told_with_the_servers_words() -> None:
    server = PostgresServer(source="binaries", settings={"max_connections": "many"})
    with pytest.raises(ServerFailed, match=r"invalid value for parameter .max_connections."):
        server.start()
    server.close()


def test_exit_of_the_owner_takes_the_server_along(processes: Processes) -> None:
    owner = processes.start("python", "-c", OWNER, "leave")
    said = owner.wait_for_output(r"server (\d+) (\S+)")
    assert owner.wait_exit(within=30) == 0
    assert not Path(f"/proc/{said.group(1)}").exists()
    assert not Path(said.group(2)).exists()


def test_next_server_ends_those_of_the_killed(processes: Processes) -> None:
    owner = processes.start("python", "-c", OWNER, "stay")
    said = owner.wait_for_output(r"server (\d+) (\S+)")
    owner.kill()
    assert Path(f"/proc/{said.group(1)}").exists()
    with PostgresServer(source="binaries"):
        wait_until(lambda: not Path(f"/proc/{said.group(1)}").exists(), describe="the orphan's end")
        assert not Path(said.group(2)).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_as_an_ordinary_user(processes: Processes) -> None:
    """Becomes one after its imports, because the interpreter may lie where another user may not look."""
    user = processes.start("python", "-c", ORDINARY_USER)
    assert user.wait_exit(within=60) == 0, user.output
    assert user.output == "[(65534, 1)]\n"


def test_a_fork_leaves_its_parents_server_alone(processes: Processes) -> None:
    parent = processes.start("python", "-c", FORK)
    assert parent.wait_exit(within=60) == 0, parent.output
    assert parent.output == "(1,)\n"


def test_address_in_the_environment_wins(own: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLWIRE_TEST_DATABASE_URL", own.url.replace("postgresql:", "postgresql+psycopg:"))
    with PostgresServer() as server:
        assert server.source == "address"
        assert not server.controllable
        assert one(server.dsn("template1"), "SELECT current_database()") == "template1"
        for refused in (server.stop, server.kill, server.restart):
            with pytest.raises(ServerFailed, match="not ours"):
                refused()
    assert one(own.url, "SELECT 1") == 1


def test_dsn_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLWIRE_TEST_DATABASE_URL", "postgresql://ana:pw@db.example:6000/x?sslmode=disable")
    with PostgresServer() as server:
        assert server.dsn("a b") == "postgresql://ana:pw@db.example:6000/a%20b?sslmode=disable"
        assert server.dsn("y", user="bell") == "postgresql://bell@db.example:6000/y?sslmode=disable"
        assert server.dsn("y", port=7) == "postgresql://ana:pw@127.0.0.1:7/y?sslmode=disable"


def test_missing_binaries_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match=r"^No PostgreSQL .* apt-get install postgresql$"):
        PostgresServer(source="binaries").start()


def test_a_silent_docker_socket_costs_less_than_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import socket

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    assert not server_container.docker_answers()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(f"{tmp_path}/docker.sock")
        engine.listen()
        began = time.monotonic()
        assert not server_container.docker_answers()
        assert time.monotonic() - began < 1
