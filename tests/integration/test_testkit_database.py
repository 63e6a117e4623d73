"""Each test's database is its own; its clock moves for every session, and back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from bellwire_testkit import clock as clocks
from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database, SessionsLeftOpen, Template
from bellwire_testkit.waiting import wait_for_lock, wait_until

DAY = timedelta(days=1)


def test_clones_share_no_row_and_no_installation(template: Template) -> None:
    found = []
    for n in range(2):
        database = template.clone()
        with database.connect() as conn:
            conn.execute("CREATE TABLE mine (n int)")
            conn.execute("INSERT INTO mine VALUES (%s)", (n,))
            found.append(conn.execute("SELECT id FROM bellwire.installation").fetchone())
            assert conn.execute("SELECT array_agg(n) FROM mine").fetchone() == ([n],)
        database.drop_unused()
    assert found[0] != found[1]


def test_a_session_left_open_fails_the_test_that_left_it(template: Template) -> None:
    database = template.clone()
    with psycopg.connect(database.url, application_name="forgotten") as conn:
        conn.execute("SELECT 1")
        with pytest.raises(SessionsLeftOpen, match="forgotten"):
            database.drop_unused(deadline=0.1)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")


def test_a_clone_has_the_roles_settings(database: Database) -> None:
    with psycopg.connect(database.url_as("bellwire_relay")) as relay:
        assert relay.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("25s",)
        assert relay.execute("SHOW statement_timeout").fetchone() == ("30s",)


def test_url_as_a_role(database: Database, conn: psycopg.Connection[Any]) -> None:
    conn.execute(f"CREATE ROLE {database.name}_ana LOGIN")
    with psycopg.connect(database.url_as(f"{database.name}_ana")) as other:
        assert other.execute("SELECT current_user").fetchone() == (f"{database.name}_ana",)
    conn.execute(f"DROP ROLE {database.name}_ana")


def test_clock_moves_for_all_and_back(database: Database, conn: psycopg.Connection[Any]) -> None:
    production = conn.execute("SELECT pg_get_functiondef('bellwire.now()'::regprocedure)").fetchone()
    with Clock(database.url) as clock, database.connect() as other:
        assert clock.advance(DAY) == DAY
        assert clock.advance(timedelta(hours=-1)) == timedelta(hours=23)
        for session in (conn, other):
            ahead = session.execute("SELECT bellwire.now() - statement_timestamp()").fetchone()
            assert ahead == (timedelta(hours=23),)
    assert conn.execute("SELECT bellwire.now() = statement_timestamp()").fetchone() == (True,)
    after = conn.execute("SELECT pg_get_functiondef('bellwire.now()'::regprocedure)").fetchone()
    assert after == production
    assert not clocks.installed(conn)


def test_clock_is_stable_and_everybodys(
    clock: Clock, database: Database, conn: psycopg.Connection[Any]
) -> None:
    kind = conn.execute(
        "SELECT provolatile FROM pg_proc WHERE oid = 'bellwire.now()'::regprocedure"
    ).fetchone()
    assert kind == ("s",)
    clock.advance(DAY)
    conn.execute(f"CREATE ROLE {database.name}_app LOGIN")
    conn.execute(f"GRANT USAGE ON SCHEMA bellwire TO {database.name}_app")
    conn.execute(f"GRANT EXECUTE ON FUNCTION bellwire.now() TO {database.name}_app")
    with psycopg.connect(database.url_as(f"{database.name}_app")) as app:
        assert app.execute("SELECT bellwire.now() > statement_timestamp()").fetchone() == (True,)
    conn.execute(f"DROP OWNED BY {database.name}_app")
    conn.execute(f"DROP ROLE {database.name}_app")


def test_installing_twice_keeps_the_shift(clock: Clock, conn: psycopg.Connection[Any]) -> None:
    clock.advance(DAY)
    clocks.install(conn)
    assert clocks.advance(conn, timedelta(0)) == DAY
    assert clock.now().utcoffset() is not None


def test_wait_for_lock_sees_the_overlap(database: Database, conn: psycopg.Connection[Any]) -> None:
    import threading

    conn.execute("CREATE TABLE t (n int)")
    conn.execute("INSERT INTO t VALUES (1)")
    with database.connect(autocommit=False) as first, database.connect() as second:
        first.execute("UPDATE t SET n = 2")
        waiter = threading.Thread(target=second.execute, args=("UPDATE t SET n = n + 10",))
        waiter.start()
        assert wait_for_lock(conn, second.info.backend_pid) == [first.info.backend_pid]
        first.commit()
        waiter.join(10)
    assert conn.execute("SELECT n FROM t").fetchone() == (12,)


def test_wait_for_lock_says_what_the_session_does(database: Database, conn: psycopg.Connection[Any]) -> None:
    with database.connect() as idle:
        idle.execute("SELECT 'at rest'")
        with pytest.raises(TimeoutError, match=r"idle.*at rest"):
            wait_for_lock(conn, idle.info.backend_pid, deadline=0.05)
    wait_until(lambda: len(database.sessions()) == 1, describe="the idle session to go")
