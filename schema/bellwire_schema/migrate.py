"""Brings a database to this code's schema, or says how far behind it is.

Invariant: whatever is committed here is whole. Revisions, functions, triggers and grants change in one
transaction, so a daemon never meets new tables with old functions. An advisory lock lets any number of
migrators start at once (every container of a deployment may run it): one works, the others find nothing left
to do. Locks on tables in use are waited for briefly and asked for again, because a queued ACCESS EXCLUSIVE
lock would stop everybody behind it.

A database that is ahead of this code is left alone: during a rolling deploy the old image's migrate must not
put the old functions back.
"""

import hashlib
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import errors as pg
from sqlalchemy import Connection

from bellwire_schema.connection import connect, driver
from bellwire_schema.errors import MigrationBehind

_HERE = Path(__file__).parent
_FUNCTIONS = _HERE / "sql"
_MIGRATIONS = _HERE / "migrations"
_LOCK = 0x62656C6C77697265  # "bellwire" in ASCII: advisory locks share one number space with the user's own
_LOCK_TIMEOUT = "3s"
_CREATED = re.compile(r"CREATE\s+OR\s+REPLACE\s+FUNCTION\s+bellwire\.(\w+)", re.IGNORECASE)

# Functions that no file creates any more are dropped afterwards: they are those whose row nobody rewrote.
_REMEMBER = """DO $remember$ BEGIN PERFORM set_config('bellwire.functions_before', coalesce((
    SELECT jsonb_object_agg(oid::text, xmin::text) FROM pg_proc
     WHERE pronamespace = 'bellwire'::regnamespace), '{}')::text, true);
END $remember$;
"""
_FORGET = """DO $forget$
DECLARE v_old regprocedure;
BEGIN
    FOR v_old IN SELECT oid::regprocedure FROM pg_proc
                  WHERE pronamespace = 'bellwire'::regnamespace
                    AND current_setting('bellwire.functions_before')::jsonb ->> oid::text = xmin::text LOOP
        BEGIN
            EXECUTE format('DROP FUNCTION %s', v_old);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            RAISE WARNING 'function % is no longer used by bellwire, yet something of yours needs it', v_old;
        END;
    END LOOP;
END $forget$;
"""


class Status(NamedTuple):
    """Where a database stands. `found` is None where there is no schema; `ahead`: made by newer code."""

    found: str | None
    needed: str
    functions_current: bool

    @property
    def ahead(self) -> bool:
        return self.found is not None and self.found > self.needed

    @property
    def current(self) -> bool:
        return self.ahead or (self.found == self.needed and self.functions_current)


def function_files() -> list[Path]:
    """Shared functions (`_*.sql`) first: SQL-language functions are checked against them when created."""
    return sorted(_FUNCTIONS.glob("*.sql"), key=lambda p: (not p.name.startswith("_"), p.name))


def digest() -> str:
    """Of everything that is created anew after each upgrade."""
    whole = hashlib.sha256()
    for path in [*function_files(), _MIGRATIONS / "triggers.sql", _MIGRATIONS / "roles.sql"]:
        whole.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


def upgrade(url: str, *, wait: float = 300.0, notice: Callable[[str], None] | None = None) -> Status:
    """Migrates, and returns how it was before. Safe to run twice and at once.

    `wait` is how many seconds to go on trying for another migrator to end, and for locks on tables in use;
    after it, psycopg's LockNotAvailable is raised and nothing has changed. `notice` hears warnings.
    """
    deadline = time.monotonic() + wait
    with connect(url, application_name="bellwire migrate") as connection:
        if notice is not None:
            driver(connection).add_notice_handler(lambda said: notice(said.message_primary or ""))
        while True:
            try:
                with connection.begin():
                    return _upgrade(connection)
            except pg.LockNotAvailable:
                if time.monotonic() >= deadline:
                    raise
            except (pg.DuplicateObject, pg.UniqueViolation, pg.InternalError_, pg.DeadlockDetected) as error:
                # Another database of this server migrates at the same moment, and both wrote a row about one
                # role: "tuple concurrently updated" is an internal error to PostgreSQL.
                if time.monotonic() >= deadline or (
                    isinstance(error, pg.InternalError_) and "concurrently" not in str(error)
                ):
                    raise
            # Paces the retries of separate processes apart; no secret.
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311


def status(url: str) -> Status:
    """Where the database stands, read only."""
    with connect(url, application_name="bellwire migrate") as connection, connection.begin():
        return status_of(connection)


def status_of(connection: Connection) -> Status:
    """Where the database of this connection stands."""
    found = revision(connection)
    if found is None:
        return Status(None, head(), functions_current=False)
    row = driver(connection).execute("SELECT functions_digest FROM bellwire.installation").fetchone()
    return Status(found, head(), functions_current=row == (digest(),))


def check(url: str) -> None:
    """Raises MigrationBehind unless the database has at least this code's schema, and its functions."""
    now = status(url)
    if not now.current:
        found = now.found if now.found != now.needed else f"{now.found} with other functions"
        raise MigrationBehind(found, now.needed)


def head() -> str:
    """The revision this code needs."""
    found = _scripts().get_current_head()
    assert found is not None  # noqa: S101 - for the type checker: the package holds at least one revision
    return found


def revision(connection: Connection) -> str | None:
    """The revision the database is at, None where there is no schema."""
    if not _exists(connection, "SELECT to_regclass('bellwire.alembic_version') IS NOT NULL"):
        return None
    row = driver(connection).execute("SELECT max(version_num) FROM bellwire.alembic_version").fetchone()
    return row[0] if row else None


def sql() -> str:
    """The same as `upgrade`, as text for `psql -f`: whole, in one transaction, and harmless to run twice."""
    parts = [
        "-- For psql (it uses \\if): psql -v ON_ERROR_STOP=1 -f this-file DATABASE",
        "\\set ON_ERROR_STOP on",
        "BEGIN;",
        "SET LOCAL client_min_messages = warning;",
        "SET LOCAL search_path = bellwire, pg_temp;",
        f"DO $lock$ BEGIN PERFORM pg_advisory_xact_lock({_LOCK}); END $lock$;",
        "CREATE SCHEMA IF NOT EXISTS bellwire;",
        "CREATE TABLE IF NOT EXISTS bellwire.alembic_version (",
        "    version_num varchar(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY);",
    ]
    for script in reversed(list(_scripts().walk_revisions())):
        parts += [
            f"SELECT coalesce(max(version_num), '') < '{script.revision}' AS missing",
            "  FROM bellwire.alembic_version \\gset",
            "\\if :missing",
            script.module.SQL,
            "DELETE FROM bellwire.alembic_version;",
            f"INSERT INTO bellwire.alembic_version VALUES ('{script.revision}');",  # noqa: S608 - our own id
            "\\endif",
        ]
    parts += [
        f"SELECT max(version_num) = '{head()}' AS current",
        "  FROM bellwire.alembic_version \\gset",
        "\\if :current",
        *_programs(),
        "\\endif",
        "COMMIT;",
    ]
    return "\n".join(parts) + "\n"


def _upgrade(connection: Connection) -> Status:
    raw = driver(connection)
    raw.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
    raw.execute("SET LOCAL search_path = bellwire, pg_temp")
    raw.execute("SET LOCAL statement_timeout = 0")
    raw.execute("SET LOCAL client_min_messages = warning")
    raw.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
    before = status_of(connection)
    if before.ahead:
        return before
    if not _exists(connection, "SELECT to_regnamespace('bellwire') IS NOT NULL"):
        raw.execute("CREATE SCHEMA bellwire")
    scripts = _scripts()

    def steps(revision: Any, _: MigrationContext) -> Any:
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(Config(), scripts, fn=steps, destination_rev="head") as environment:
        environment.configure(connection=connection, version_table_schema="bellwire")
        environment.run_migrations()
    for text in _programs():
        _replace(raw, text)
    return before


def _programs() -> list[str]:
    """Everything that is created anew, in order."""
    return [
        _REMEMBER,
        *(path.read_text("utf-8") for path in function_files()),
        (_MIGRATIONS / "triggers.sql").read_text("utf-8"),
        _FORGET,
        (_MIGRATIONS / "roles.sql").read_text("utf-8"),
        f"UPDATE bellwire.installation SET functions_digest = '{digest()}';\n",  # noqa: S608 - hexadecimal
    ]


def _replace(raw: psycopg.Connection[Any], text: str) -> None:
    """CREATE OR REPLACE keeps a user's grants, but refuses another result type: then drop, and create."""
    try:
        with raw.transaction():
            raw.execute(text.encode())
    except pg.InvalidFunctionDefinition:
        for name in _CREATED.findall(text):
            found = raw.execute(
                "SELECT oid::regprocedure::text FROM pg_proc "
                "WHERE pronamespace = 'bellwire'::regnamespace AND proname = %s",
                [name.lower()],
            ).fetchall()
            for (signature,) in found:
                raw.execute(f"DROP FUNCTION {signature}".encode())
        raw.execute(text.encode())


def _exists(connection: Connection, query: str) -> bool:
    row = driver(connection).execute(query.encode()).fetchone()
    return bool(row and row[0])


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(_MIGRATIONS))
