"""What each role may do, and that it may do nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql

import bellwire_schema
from bellwire_schema import migrate
from bellwire_testkit.databases import Database
from bellwire_testkit.servers import PostgresServer

ROLES = (
    "bellwire_application",
    "bellwire_relay",
    "bellwire_consumer",
    "bellwire_operator",
    "bellwire_viewer",
)
APPLICATION = {
    "submit",
    "try_submit",
    "try_submit_many",
    "cancel",
    "get_job",
    "find_job",
    "drain_estimate",
    "begin_attempt",
    "complete",
    "checkpoint",
    "hold_token",
}
# Parts of other functions, which run as their owner: nobody calls them.
INTERNAL = {"backoff", "uuid7", "replace", "supersede"}


def may(conn: psycopg.Connection[Any], role: str) -> set[str]:
    rows = conn.execute(
        """SELECT DISTINCT proname FROM pg_proc
            WHERE pronamespace = 'bellwire'::regnamespace AND has_function_privilege(%s, oid, 'EXECUTE')""",
        (role,),
    )
    return {name for (name,) in rows}


@pytest.fixture
def application(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A session that acts as the application's role, as a login that is its member does."""
    with database.connect() as conn:
        conn.execute("SET ROLE bellwire_application")
        yield conn


def test_the_application_executes_its_functions_and_no_other(conn: psycopg.Connection[Any]) -> None:
    assert may(conn, "bellwire_application") == APPLICATION


def test_every_function_is_somebodys(conn: psycopg.Connection[Any]) -> None:
    """A new edge that no role may call works in tests as the superuser and nowhere else."""
    names = {
        name
        for (name,) in conn.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'bellwire'::regnamespace"
        )
        if not name.startswith("_")
    }
    granted = set().union(*(may(conn, role) for role in ROLES))
    assert names - INTERNAL == granted


def test_nothing_is_granted_to_everybody(conn: psycopg.Connection[Any]) -> None:
    conn.execute("DROP ROLE IF EXISTS bellwire_test_nobody")
    conn.execute("CREATE ROLE bellwire_test_nobody")
    try:
        assert may(conn, "bellwire_test_nobody") == set()
        usage = "SELECT has_schema_privilege('bellwire_test_nobody', 'bellwire', 'USAGE')"
        assert conn.execute(usage).fetchone() == (False,)
    finally:
        conn.execute("DROP ROLE bellwire_test_nobody")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id FROM bellwire.job",
        "SELECT payload FROM bellwire.job",
        "SELECT 1 FROM bellwire.outbox",
        "SELECT 1 FROM bellwire.kind",
        "INSERT INTO bellwire.outbox (job_id) VALUES (gen_random_uuid())",
        "UPDATE bellwire.job SET state = 'succeeded'",
        "DELETE FROM bellwire.attempt",
        "TRUNCATE bellwire.job",
        "UPDATE bellwire.kind SET max_attempts = 1",
        "CREATE TABLE bellwire.mine ()",
        "SELECT * FROM bellwire.claim(gen_random_uuid(), '1', 'here', '{k}', '{1}', '{}', '{}')",
        "SELECT * FROM bellwire.promote(1)",
        "SELECT * FROM bellwire.recover(1, '{0.5}')",
        "SELECT bellwire._end(NULL)",
        "SELECT bellwire.now()",
    ],
)
def test_the_application_can_do_nothing_else(
    application: psycopg.Connection[Any], statement: LiteralString
) -> None:
    with pytest.raises(pg.InsufficientPrivilege):
        application.execute(statement)


def test_the_application_submits_and_looks(application: psycopg.Connection[Any]) -> None:
    row = application.execute(
        "SELECT job_id FROM bellwire.submit(kind => 'k', version => 1, payload => '{}')"
    ).fetchone()
    assert row is not None
    assert application.execute("SELECT state FROM bellwire.get_job(%s)", row).fetchone() == ("ready",)


def test_the_viewer_sees_everything_but_what_people_sent(database: Database) -> None:
    private = {"job": {"payload", "result", "checkpoint"}, "effect": {"response"}, "schedule": {"payload"}}
    with database.connect() as conn:
        columns = conn.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'bellwire'"
        ).fetchall()
        for role in ("bellwire_viewer", "bellwire_operator", "bellwire_relay"):
            for table, column in columns:
                allowed = conn.execute(
                    "SELECT has_column_privilege(%s, 'bellwire.' || quote_ident(%s), %s, 'SELECT')",
                    (role, table, column),
                ).fetchone()
                assert allowed == (column not in private.get(table, set()),), (role, table, column)
        conn.execute("SET ROLE bellwire_viewer")
        with pytest.raises(pg.InsufficientPrivilege):
            conn.execute("UPDATE bellwire.kind SET max_attempts = 1")


def test_no_role_but_the_owner_writes_a_hot_table(conn: psycopg.Connection[Any]) -> None:
    for role in ROLES:
        for table in ("job", "outbox", "attempt", "effect", "kind_owner", "bucket", "audit"):
            for privilege in ("INSERT", "UPDATE", "DELETE", "TRUNCATE"):
                allowed = conn.execute(
                    "SELECT has_table_privilege(%s, 'bellwire.' || %s, %s)", (role, table, privilege)
                ).fetchone()
                assert allowed == (False,), (role, table, privilege)


def test_functions_run_as_their_owner_with_a_pinned_path(conn: psycopg.Connection[Any]) -> None:
    """A function that follows its caller's search_path can be made to run the caller's code as its owner."""
    loose = [
        name
        for name, definer, config in conn.execute(
            """SELECT p.oid::regprocedure::text, prosecdef, coalesce(proconfig::text, '') FROM pg_proc p
                WHERE pronamespace = 'bellwire'::regnamespace AND prosecdef"""
        )
        if "search_path" not in config
    ]
    assert loose == []


@pytest.mark.parametrize("role", ["bellwire_relay", "bellwire_consumer"])
def test_daemons_log_in_with_their_settings(postgres: PostgresServer, role: str) -> None:
    """P12: a half-open daemon must not keep its rows. Settings hold for who logs in as the role."""
    database = Database(postgres, "migrate_settings")
    database.drop()
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE migrate_settings")
    try:
        migrate.upgrade(database.url)
        with psycopg.connect(database.url_as(role)) as conn:
            for name, value in {
                "default_transaction_isolation": "read committed",
                "synchronous_commit": "on",
                "idle_in_transaction_session_timeout": "25s",
                "statement_timeout": "30s",
            }.items():
                assert conn.execute("SELECT current_setting(%s)", (name,)).fetchone() == (value,)
            signal = conn.execute(
                "SELECT pg_has_role(current_user, 'pg_signal_backend', 'MEMBER')"
            ).fetchone()
            assert signal == (role == "bellwire_relay",)
    finally:
        database.drop_unused()


def test_a_migrator_without_createrole(postgres: PostgresServer) -> None:
    """It may migrate once a DBA has made the roles; until then it is told what is missing."""
    name = "migrate_plain"
    database = Database(postgres, name)
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        database.drop()
        admin.execute("DROP ROLE IF EXISTS bellwire_test_plain")
        admin.execute("CREATE ROLE bellwire_test_plain LOGIN")
        admin.execute(sql.SQL("CREATE DATABASE {} OWNER bellwire_test_plain").format(sql.Identifier(name)))
        try:
            # The roles are there, since other tests' databases share the server; their settings here are not.
            with pytest.raises(pg.InsufficientPrivilege, match="lacks the setting") as refused:
                migrate.upgrade(database.url_as("bellwire_test_plain"))
            assert "bellwire migrate --sql" in (refused.value.diag.message_hint or "")
            assert migrate.status(database.url).found is None
            for role in ("bellwire_relay", "bellwire_consumer"):
                for setting in re.findall(r"'(\w+=[\w ]+)'", _roles_sql()):
                    key, _, value = setting.partition("=")
                    admin.execute(
                        sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                            sql.Identifier(role),
                            sql.Identifier(name),
                            sql.Identifier(key),
                            sql.Literal(value),
                        )
                    )
            migrate.upgrade(database.url_as("bellwire_test_plain"))
            migrate.check(database.url_as("bellwire_test_plain"))
        finally:
            database.drop_unused()
            admin.execute("DROP ROLE bellwire_test_plain")


def _roles_sql() -> str:
    return (Path(bellwire_schema.__file__).parent / "migrations" / "roles.sql").read_text()
