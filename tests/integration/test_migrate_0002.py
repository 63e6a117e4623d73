"""From revision 0001 with rows in its tables and daemons of its release at work: nothing is lost or stops.

The functions of that release are played by ones of the same signature, which say so.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from bellwire_schema import migrate
from bellwire_testkit.databases import Database
from bellwire_testkit.servers import PostgresServer

Conn = psycopg.Connection[Any]
RELAY, TOKEN, CONSUMER, JOB = UUID(int=1), UUID(int=2), UUID(int=3), UUID(int=4)
_TABLES = Path(migrate.__file__).parent / "migrations" / "0001_tables.sql"
_FUNCTIONS: LiteralString = """
CREATE FUNCTION bellwire.admit(
    p_relay uuid, p_token uuid, p_kinds text[], p_versions smallint[], p_recent integer[],
    p_notify boolean DEFAULT true)
RETURNS TABLE (kind text, version smallint, job_ids uuid[], outstanding integer, win integer, waiting boolean,
               held text) LANGUAGE sql AS $$ SELECT 'old', 1::smallint, '{}'::uuid[], 0, 0, false, NULL $$;
CREATE FUNCTION bellwire._unadmit(p_kind text, p_version smallint, p_tenants text[]) RETURNS integer
LANGUAGE sql AS 'SELECT 0';
CREATE FUNCTION bellwire.own(
    p_relay uuid, p_token uuid, p_host text, p_pid integer, p_version text, p_lease interval)
RETURNS TABLE (kind text) LANGUAGE sql AS $$ SELECT 'old' $$;
CREATE FUNCTION bellwire.claim(
    p_consumer uuid, p_consumer_version text, p_host text, p_kinds text[], p_versions smallint[],
    p_attempts uuid[], p_tokens uuid[], p_ids uuid[] DEFAULT NULL)
RETURNS TABLE (job_id uuid, attempt_id uuid, token uuid, kind text, version smallint, attempt bigint,
               generation integer, payload jsonb, codec text, tenant text, key text, priority smallint,
               run_at timestamptz, deadline_at timestamptz, remaining interval, started_at timestamptz,
               lease interval, timeout interval, progress_timeout interval, checkpoint jsonb,
               attempts_used smallint, trace_context jsonb) LANGUAGE plpgsql AS 'BEGIN END';
CREATE FUNCTION bellwire.beat_consumer(
    p_id uuid, p_app text, p_app_version text, p_host text, p_pid integer, p_slots integer, p_kinds text[],
    p_versions smallint[], p_stopping boolean) RETURNS void LANGUAGE sql AS 'SELECT';
"""
_ROWS: LiteralString = """
INSERT INTO bellwire.kind (name, app) VALUES ('work', 'shop');
INSERT INTO bellwire.job (id, kind, version, payload, state, run_at, eligible_at, created_at)
     VALUES ('00000000-0000-0000-0000-000000000004', 'work', 1, '{}', 'ready', now(), now(), now());
INSERT INTO bellwire.outbox (job_id, kind, version, tenant, rank, eligible_at, admitted_at, publishes)
     VALUES ('00000000-0000-0000-0000-000000000004', 'work', 1, '', now(), now(), now(), 2);
INSERT INTO bellwire.relay (id, version, host, pid, started_at, beat_at)
     VALUES ('00000000-0000-0000-0000-000000000001', '1', 'r1', 1, now(), now());
INSERT INTO bellwire.kind_owner (kind, relay, token, expires_at)
     SELECT k, '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002',
            now() + interval '1 hour' FROM unnest('{work,*}'::text[]) AS k;
INSERT INTO bellwire.consumer (id, app, host, pid, slots, kinds, versions, started_at, beat_at)
     VALUES ('00000000-0000-0000-0000-000000000003', 'shop', 'c1', 1, 5, '{work}', '{1}', now(), now());
"""
# As the daemons of that release send them.
_OWN: LiteralString = (
    "SELECT kind FROM bellwire.own(%s::uuid, %s::uuid, %s::text, %s::integer, %s::text, %s::interval)"
)
_ADMIT: LiteralString = (
    "SELECT kind, version, job_ids, outstanding, win, waiting, held"
    " FROM bellwire.admit(%s::uuid, %s::uuid, %s::text[], %s::smallint[], %s::integer[])"
)
_CLAIM: LiteralString = (
    "SELECT job_id, attempt_id, token, kind, version, attempt"
    " FROM bellwire.claim(%s::uuid, %s::text, %s::text, %s::text[], %s::smallint[], %s::uuid[], %s::uuid[],"
    " %s::uuid[])"
)
_BEAT: LiteralString = (
    "SELECT bellwire.beat_consumer(%s::uuid, %s::text, %s::text, %s::text, %s::integer, %s::integer,"
    " %s::text[], %s::smallint[], %s::boolean)"
)


class OldDaemon:
    """Keeps its session and its prepared statements over the migration."""

    def __init__(self, conn: Conn) -> None:
        self._conn = conn

    def own(self) -> list[str]:
        rows = self._conn.execute(_OWN, (RELAY, TOKEN, "r1", 1, "1", "1 hour"), prepare=True)
        return [kind for (kind,) in rows]

    def admit(self) -> list[tuple[Any, ...]]:
        return self._conn.execute(_ADMIT, (RELAY, TOKEN, [], [], []), prepare=True).fetchall()

    def claim(self, ids: list[UUID] | None = None) -> list[UUID]:
        drawn = ([uuid4()], [uuid4()])
        rows = self._conn.execute(
            _CLAIM, (CONSUMER, "1", "c1", ["work"], [1], *drawn, ids), prepare=True
        ).fetchall()
        return [row[0] for row in rows]

    def beat(self) -> None:
        self._conn.execute(_BEAT, (CONSUMER, "shop", "1", "c1", 1, 5, ["work"], [1], False), prepare=True)


@pytest.fixture
def old(postgres: PostgresServer) -> Iterator[Database]:
    """A database as that release left it."""
    made = Database(postgres, "migrate_from_0001")
    made.drop()
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(made.name)))
    with made.connect() as conn:
        conn.execute("CREATE SCHEMA bellwire")
        conn.execute("SET search_path = bellwire, pg_temp")
        conn.execute(_TABLES.read_bytes())
        conn.execute(_FUNCTIONS)
        conn.execute("CREATE TABLE bellwire.alembic_version (version_num varchar(32) NOT NULL PRIMARY KEY)")
        conn.execute("INSERT INTO bellwire.alembic_version VALUES ('0001')")
        conn.execute(_ROWS)
    yield made
    made.drop_unused()


def signatures(conn: Conn) -> dict[str, list[int]]:
    """How many parameters each form of a function has."""
    rows = conn.execute(
        "SELECT proname, array_agg(pronargs::integer ORDER BY pronargs) FROM pg_proc"
        " WHERE pronamespace = 'bellwire'::regnamespace"
        "   AND proname IN ('admit', '_unadmit', 'own', 'claim', 'beat_consumer') GROUP BY 1"
    ).fetchall()
    return dict(rows)


def test_daemons_of_the_old_release_go_on(old: Database) -> None:
    with old.connect() as session, old.connect() as conn:
        daemon = OldDaemon(session)
        for _ in range(7):  # past the point where the server keeps a plan
            assert daemon.own() == ["old"]
            assert daemon.admit()[0][0] == "old"
            assert daemon.claim() == []
            daemon.beat()
        assert migrate.upgrade(old.url).found == "0001"
        assert daemon.own() == ["*", "work"]
        daemon.beat()
        assert daemon.admit() == [("work", 1, [], 1, 5, False, None)]
        assert daemon.claim([JOB]) == [JOB]
        assert daemon.claim() == []
        assert signatures(conn) == {
            "admit": [6],
            "_unadmit": [4],
            "own": [9],
            "claim": [9],
            "beat_consumer": [11],
        }


def test_rows_stay_and_know_nothing_of_a_broker(old: Database) -> None:
    migrate.upgrade(old.url)
    with old.connect() as conn:
        assert conn.execute(
            "SELECT job_id, publishes, publish_error, published_at FROM bellwire.outbox"
        ).fetchall() == [(JOB, 2, None, None)]
        assert conn.execute(
            "SELECT id, broker_well, broker_error, broker_since FROM bellwire.relay"
        ).fetchall() == [(RELAY, None, None, None)]
        assert conn.execute("SELECT id, hears, hears_error FROM bellwire.consumer").fetchall() == [
            (CONSUMER, None, None)
        ]
        rows = conn.execute(
            "SELECT job_ids, least, hearers FROM bellwire.republish(%s, %s, true)", (RELAY, TOKEN)
        ).fetchall()
        assert rows == [([JOB], 5, 1)]
    migrate.check(old.url)
    assert migrate.upgrade(old.url).current


def test_the_text_for_a_dba_does_the_same(old: Database, tmp_path: Path) -> None:
    psql = which("psql") or pytest.skip("psql is not installed")
    text = tmp_path / "bellwire.sql"
    text.write_text(migrate.sql())
    with old.connect() as session:
        daemon = OldDaemon(session)
        for _ in range(7):
            assert daemon.admit()[0][0] == "old"
        for _ in range(2):
            done = subprocess.run(
                [psql, "-q", "-f", str(text), old.url], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert not done.stdout + done.stderr
        assert [row[0] for row in daemon.admit()] == ["work"]
        assert signatures(session)["own"] == [9]
    migrate.check(old.url)
