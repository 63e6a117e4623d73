"""Migrating: from nothing, twice, at once, by text, against newer code, and past somebody's lock."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql

from bellwire_schema import migrate
from bellwire_schema.errors import MigrationBehind
from bellwire_testkit.databases import Database
from bellwire_testkit.servers import PostgresServer

# Everything that a migration makes, without ids of the server's own.
_SHAPE = """
    SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text,
           pg_get_expr(d.adbin, d.adrelid)
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'bellwire'::regnamespace
    UNION ALL SELECT 'index', tablename, indexname, indexdef, '', ''
      FROM pg_indexes WHERE schemaname = 'bellwire'
    UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
      FROM pg_constraint WHERE connamespace = 'bellwire'::regnamespace
    UNION ALL SELECT 'function', proname, pg_get_functiondef(oid), proacl::text, '', ''
      FROM pg_proc WHERE pronamespace = 'bellwire'::regnamespace
    UNION ALL SELECT 'acl', relname, relacl::text, reloptions::text, '', ''
      FROM pg_class WHERE relnamespace = 'bellwire'::regnamespace
    UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(oid), '', ''
      FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'bellwire.%'
    UNION ALL SELECT 'version', version_num, '', '', '', '' FROM bellwire.alembic_version
    UNION ALL SELECT 'digest', functions_digest, '', '', '', '' FROM bellwire.installation
"""


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[Callable[[str], Database]]:
    """Makes databases with nothing in them."""
    made: list[Database] = []

    def make(name: str) -> Database:
        database = Database(postgres, f"migrate_{name}")
        database.drop()
        with psycopg.connect(postgres.url, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database.name)))
        made.append(database)
        return database

    yield make
    for database in made:
        database.drop_unused()


def shape(database: Database) -> set[tuple[Any, ...]]:
    with database.connect() as conn:
        return set(conn.execute(_SHAPE).fetchall())


def test_from_nothing_and_again(empty: Callable[[str], Database]) -> None:
    database = empty("again")
    assert migrate.status(database.url).found is None
    with pytest.raises(MigrationBehind, match="bellwire migrate"):
        migrate.check(database.url)
    before = migrate.upgrade(database.url)
    assert before.found is None
    first = shape(database)
    assert migrate.upgrade(database.url).current
    assert shape(database) == first
    migrate.check(database.url)


def test_sqlalchemys_spelling_of_the_address(empty: Callable[[str], Database]) -> None:
    database = empty("spelling")
    migrate.upgrade(database.url.replace("postgresql://", "postgresql+psycopg://"))
    migrate.check(database.url)


def test_several_at_once_all_succeed(empty: Callable[[str], Database]) -> None:
    """Each container of a deployment may run it; the advisory lock lets one at a time through."""
    database = empty("at_once")
    program = f"from bellwire_schema.migrate import upgrade; upgrade({database.url!r})"
    running = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in running:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
    migrate.check(database.url)


def test_several_databases_of_one_server_at_once(empty: Callable[[str], Database]) -> None:
    """Roles belong to the whole server, and the advisory lock to a database: they race for role rows."""
    databases = [empty(f"side_{n}") for n in range(4)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", f"from bellwire_schema.migrate import upgrade; upgrade({database.url!r})"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for database in databases
    ]
    for process in running:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr


def test_fresh_install_is_the_text_for_a_dba(empty: Callable[[str], Database], tmp_path: Path) -> None:
    """`bellwire migrate --sql` through psql gives the same schema, and is harmless to run twice."""
    psql = which("psql") or pytest.skip("psql is not installed")
    by_us, by_text = empty("by_us"), empty("by_text")
    migrate.upgrade(by_us.url)
    text = tmp_path / "bellwire.sql"
    text.write_text(migrate.sql())
    for _ in range(2):
        done = subprocess.run(
            [psql, "-q", "-f", str(text), by_text.url], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert not done.stdout + done.stderr
    assert shape(by_text) == shape(by_us)
    migrate.check(by_text.url)


def test_functions_are_made_anew_and_old_ones_dropped(empty: Callable[[str], Database]) -> None:
    database = empty("functions")
    migrate.upgrade(database.url)
    whole = shape(database)
    with database.connect() as conn:
        conn.execute("CREATE FUNCTION bellwire.of_an_older_release() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        # Another result type, as a release may bring it: CREATE OR REPLACE alone would refuse.
        conn.execute("DROP FUNCTION bellwire.promote(integer)")
        conn.execute("CREATE FUNCTION bellwire.promote(p_limit int) RETURNS text LANGUAGE sql AS 'SELECT 1'")
        conn.execute("UPDATE bellwire.installation SET functions_digest = 'of an older release'")
    with pytest.raises(MigrationBehind, match="other functions"):
        migrate.check(database.url)
    migrate.upgrade(database.url)
    assert shape(database) == whole


def test_a_users_view_on_a_function_that_went_stays(empty: Callable[[str], Database]) -> None:
    database = empty("dependents")
    migrate.upgrade(database.url)
    with database.connect() as conn:
        conn.execute("CREATE FUNCTION bellwire.of_an_older_release() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        conn.execute("CREATE VIEW theirs AS SELECT bellwire.of_an_older_release() AS one")
    migrate.upgrade(database.url)
    with database.connect() as conn:
        assert conn.execute("SELECT one FROM theirs").fetchone() == (1,)


def test_a_newer_database_is_left_alone(empty: Callable[[str], Database]) -> None:
    """During a rolling deploy the old image's migrate must not put the old functions back."""
    database = empty("newer")
    migrate.upgrade(database.url)
    with database.connect() as conn:
        conn.execute("UPDATE bellwire.alembic_version SET version_num = '9999'")
        conn.execute("UPDATE bellwire.installation SET functions_digest = 'newer'")
    assert migrate.upgrade(database.url).ahead
    migrate.check(database.url)
    with database.connect() as conn:
        assert conn.execute("SELECT functions_digest FROM bellwire.installation").fetchone() == ("newer",)


def test_a_lock_in_the_way(empty: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits briefly and asks again, so nobody queues behind it; after `wait` it gives up, unchanged."""
    database = empty("lock")
    migrate.upgrade(database.url)
    whole = shape(database)
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT", "50ms")
    with database.connect() as conn:
        with conn.transaction():
            conn.execute("LOCK TABLE bellwire.kind IN ROW EXCLUSIVE MODE")
            with pytest.raises(pg.LockNotAvailable):
                migrate.upgrade(database.url, wait=0.2)
        migrate.upgrade(database.url, wait=0.2)
    assert shape(database) == whole
