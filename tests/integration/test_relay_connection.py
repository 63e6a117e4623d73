"""A connection that is never trusted: frozen, cut, refused, cancelled, and what becomes of it each time."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import psycopg
import pytest
import structlog
from psycopg import errors as pg

from bellwire_runtime import database as module
from bellwire_runtime.database import Abandoned, Connection, SupervisedConnection
from bellwire_runtime.installation import Installation, inspect, reach_database
from bellwire_schema.errors import ConfigError, MigrationBehind, NotInstalled
from bellwire_testkit.databases import Database
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.servers import PostgresServer
from bellwire_testkit.waiting import wait_until_async
from tests.integration.relay_stage import Conn


def supervised(url: str, **options: Any) -> SupervisedConnection:
    return SupervisedConnection(url=url, application_name="test connection", rng=random.Random(1), **options)


async def backend(conn: Connection) -> int:
    row = await (await conn.execute("SELECT pg_backend_pid()")).fetchone()
    assert row is not None
    return int(row[0])


async def nap(conn: Connection) -> None:
    await conn.execute("SELECT pg_sleep(60)")


async def test_one_connection_serves_call_after_call(database: Database) -> None:
    connection = supervised(database.url)
    pids = {await connection.run(backend) for _ in range(5)}
    assert len(pids) == 1
    assert connection.connects == 1
    await connection.close()


async def test_a_failed_statement_keeps_the_connection(database: Database) -> None:
    connection = supervised(database.url)
    pid = await connection.run(backend)

    async def bad(conn: Connection) -> None:
        await conn.execute("SELECT 1 / 0")

    with pytest.raises(pg.DivisionByZero):
        await connection.run(bad)
    assert await connection.run(backend) == pid
    assert connection.down is None
    await connection.close()


async def test_a_call_past_its_deadline_is_given_up_with_its_connection(database: Database) -> None:
    connection = supervised(database.url)
    pid = await connection.run(backend)
    started = time.monotonic()
    with pytest.raises(Abandoned):
        await connection.run(nap, within=0.2)
    assert time.monotonic() - started < 2
    assert connection.down is not None
    assert await connection.run(backend) != pid
    assert connection.down is None
    await connection.close()


async def test_a_half_open_connection_is_given_up_too(database: Database, proxy: Proxy) -> None:
    """Nothing answers, neither the call nor its cancelling; sockets stay open and acknowledge."""
    connection = supervised(database.url_through(proxy.port), connect_timeout=1.0)
    await connection.run(backend)
    proxy.freeze()
    started = time.monotonic()
    with pytest.raises(Abandoned):
        await connection.run(backend, within=0.3)
    with pytest.raises(psycopg.OperationalError):
        await connection.run(backend, within=0.3)
    assert time.monotonic() - started < 5
    proxy.thaw()
    assert await connection.run(backend)
    await connection.close()


async def test_a_cancelled_caller_is_let_go_even_over_a_half_open_connection(
    database: Database, proxy: Proxy
) -> None:
    connection = supervised(database.url_through(proxy.port), connect_timeout=1.0)
    await connection.run(backend)
    proxy.freeze()
    call = asyncio.ensure_future(connection.run(backend))
    await asyncio.sleep(0.1)
    started = time.monotonic()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert time.monotonic() - started < 2
    proxy.thaw()
    assert await connection.run(backend)
    assert connection.connects == 2, "what was interrupted is never used again"
    await connection.close()


async def test_what_the_server_ended_is_made_anew(database: Database, conn: Conn) -> None:
    connection = supervised(database.url)
    pid = await connection.run(backend)
    assert connection.back_since is None
    conn.execute("SELECT pg_terminate_backend(%s)", (pid,))

    async def call_until_lost() -> bool:
        try:
            await connection.run(backend)
        except psycopg.OperationalError:
            return True
        return False

    await wait_until_async(call_until_lost, describe="the loss to be noticed")
    assert await connection.run(backend) != pid
    assert connection.back_since is not None, "recovery is told that there was an outage"
    await connection.close()


async def test_calls_wait_for_each_other_and_none_is_tried_twice(database: Database) -> None:
    connection = supervised(database.url)
    made = 0

    async def count(conn: Connection) -> None:
        nonlocal made
        made += 1
        await conn.execute("SELECT pg_sleep(0.01)")

    await asyncio.gather(*(connection.run(count) for _ in range(10)))
    assert made == 10
    assert connection.connects == 1
    await connection.close()


async def test_ten_minutes_of_outage_are_a_dozen_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is turned by hand; every try fails."""
    now = 0.0
    tries = 0

    async def refuse(*_: Any, **__: Any) -> Connection:
        nonlocal tries
        tries += 1
        raise psycopg.OperationalError("connection failed: Connection refused")

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(module, "connect", refuse)
    connection = supervised("postgresql://x@127.0.0.1:1/x", clock=lambda: now, sleep=sleep)
    connection.connects = 1
    with structlog.testing.capture_logs() as lines:
        while now < 600:
            with pytest.raises(psycopg.OperationalError):
                await connection.run(backend)
    assert tries > 100
    assert len(lines) <= 11
    assert lines[0]["event"] == "database lost"


async def test_tries_are_spread_so_that_processes_do_not_come_back_together() -> None:
    pauses = []
    for seed in range(50):
        connection = SupervisedConnection(url="x=", application_name="x", rng=random.Random(seed))
        for _ in range(12):
            connection._lost(psycopg.OperationalError("away"))
        pauses.append(connection._not_before - time.monotonic())
    assert max(pauses) <= 5.0, "the cap bounds how long coming back takes"
    assert max(pauses) - min(pauses) > 3.0


async def test_a_refused_login_is_no_outage(database: Database) -> None:
    url = database.url_as("nobody_of_that_name")
    with pytest.raises(ConfigError, match="the server refuses it"):
        await reach_database(supervised(url), within=30, stop=asyncio.Event())


async def _inspect(conn: Connection) -> Installation:
    return await inspect(conn, calls="admit")


async def test_a_role_of_the_other_daemon_is_refused(database: Database) -> None:
    connection = supervised(database.url_as("bellwire_consumer"))
    with pytest.raises(NotInstalled, match=r"may not call bellwire\.admit: log in as bellwire_relay"):
        await connection.run(_inspect)
    await connection.close()


async def test_the_installation_is_looked_at(
    database: Database, conn: Conn, postgres: PostgresServer
) -> None:
    connection = supervised(database.url_as("bellwire_relay"))
    with structlog.testing.capture_logs() as lines:
        found = await connection.run(_inspect)
    assert lines == [], "migrate gave the role its settings"
    assert (found.id,) == conn.execute("SELECT id FROM bellwire.installation").fetchone()
    await connection.close()

    owner = supervised(database.url)
    with structlog.testing.capture_logs() as lines:
        await owner.run(_inspect)
    assert "idle_in_transaction_session_timeout" in lines[0]["settings"]
    assert "ALTER ROLE" in lines[0]["mend"]
    await owner.close()

    conn.execute("UPDATE bellwire.alembic_version SET version_num = '0000'")
    behind = supervised(database.url_as("bellwire_relay"))
    with pytest.raises(MigrationBehind, match="bellwire migrate"):
        await behind.run(_inspect)
    await behind.close()

    nothing = supervised(postgres.url)
    with pytest.raises(NotInstalled, match="bellwire migrate"):
        await nothing.run(_inspect)
    await nothing.close()


async def test_another_isolation_level_is_refused(database: Database, conn: Conn) -> None:
    conn.execute(
        "CREATE ROLE picky LOGIN IN ROLE bellwire_relay;"
        "ALTER ROLE picky SET default_transaction_isolation = 'repeatable read'"
    )
    connection = supervised(database.url_as("picky"))
    try:
        with pytest.raises(ConfigError, match="the daemons need read committed"):
            await connection.run(_inspect)
    finally:
        await connection.close()
        conn.execute("DROP ROLE picky")


async def test_a_session_that_may_only_read_is_given_up(database: Database) -> None:
    connection = supervised(database.url)

    async def write(conn: Connection) -> None:
        await conn.execute("CREATE TABLE written ()")

    async def turn_read_only(conn: Connection) -> int:
        await conn.execute("SET default_transaction_read_only = on")
        return await backend(conn)

    pid = await connection.run(turn_read_only)
    with pytest.raises(pg.ReadOnlySqlTransaction):
        await connection.run(write)
    await connection.run(write)
    assert await connection.run(backend) != pid
    await connection.close()


async def test_a_read_only_database_is_waited_for_and_written_to_again(database: Database) -> None:
    """A connection made meanwhile would stay read-only for ever, and look well."""
    with database.connect() as admin:
        admin.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    connection = supervised(database.url)
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError, match="read-only"):
            await connection.run(backend)
    assert connection.connects == 0
    assert connection.down is not None
    with psycopg.connect(database.server.url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {database.name} RESET default_transaction_read_only")
    await connection.run(backend)
    assert connection.down is None
    await connection.close()
