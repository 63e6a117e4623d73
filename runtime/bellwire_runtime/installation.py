"""A daemon looks at the installation before it works: what cannot work is refused, a danger is said.

The role's session settings are the fence against a half-open owner that keeps its rows locked for ever. They
belong to the role (nothing here depends on SET, so poolers are safe), and members of a role do not inherit
them: the daemon has to log in as `bellwire_relay` or `bellwire_consumer`, or as a role that has the same.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from uuid import UUID

import psycopg
import structlog
from psycopg import errors as pg

from bellwire_runtime.database import Connection, SupervisedConnection, is_refusal, is_transient
from bellwire_runtime.exits import DatabaseUnavailable
from bellwire_runtime.redact import redact
from bellwire_schema.errors import ConfigError, MigrationBehind, NotInstalled
from bellwire_schema.migrate import head

__all__ = ["Installation", "inspect", "reach_database"]

log = structlog.get_logger("bellwire.installation")

_LEASE = 30_000
# Longest value in milliseconds that still protects; 0 means "never" to PostgreSQL.
_LIMITS = {
    "idle_in_transaction_session_timeout": _LEASE,
    "statement_timeout": 300_000,
    "tcp_user_timeout": _LEASE,
}
_MENDS = {
    "idle_in_transaction_session_timeout": "25s",
    "statement_timeout": "30s",
    "tcp_user_timeout": "25s",
    "synchronous_commit": "on",
}
_SETTINGS = """
    SELECT name, setting FROM pg_settings
     WHERE name IN ('default_transaction_isolation', 'idle_in_transaction_session_timeout',
                    'statement_timeout', 'synchronous_commit', 'tcp_user_timeout')
"""
_IDENTITY = """
    SELECT i.id, (SELECT max(version_num) FROM bellwire.alembic_version),
           current_user::text, current_database()::text,
           extract(epoch FROM statement_timestamp() - pg_postmaster_start_time())::float8,
           inet_server_addr() IS NULL
      FROM bellwire.installation i
"""
# Without this a daemon that was given a reader's role would start, and fail at every pass.
_MAY = """
    SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p
     WHERE p.pronamespace = 'bellwire'::regnamespace AND p.proname = %s
"""
_ROLES = {"admit": "bellwire_relay", "claim": "bellwire_consumer"}


@dataclass(frozen=True)
class Installation:
    """Where a daemon works. `server_age` is seconds since the server started."""

    id: UUID
    revision: str
    server_age: float


async def reach_database(connection: SupervisedConnection, *, within: float, stop: asyncio.Event) -> None:
    """Wait for the database. Raises `ConfigError` for a refused login at once, `DatabaseUnavailable` after
    `within` seconds; returns early when asked to stop.
    """
    started, said = time.monotonic(), False
    while not stop.is_set():
        try:
            await connection.run(_ping)
        except psycopg.Error as error:
            if is_refusal(error):
                raise ConfigError(f"BELLWIRE_DATABASE_URL: the server refuses it: {_first(error)}") from None
            if not is_transient(error):
                raise
            if time.monotonic() - started >= within:
                raise DatabaseUnavailable(
                    f"no database within {within:.0f} s: {_first(error)}; is BELLWIRE_DATABASE_URL right, "
                    "and does the server run?"
                ) from None
            if not said:
                said = True
                log.warning("waiting for the database", seconds=round(within), error=_first(error))
        else:
            return


async def inspect(conn: Connection, *, calls: str) -> Installation:
    """Look, warn, or raise `NotInstalled`, `MigrationBehind` or `ConfigError`, in one line with its mend.

    `calls`: the function in schema bellwire that this daemon cannot do without.
    """
    needed = head()
    try:
        row = await (await conn.execute(_IDENTITY)).fetchone()
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        raise NotInstalled("no schema 'bellwire' in this database: run 'bellwire migrate'") from None
    except pg.InsufficientPrivilege as error:
        raise NotInstalled(
            f"BELLWIRE_DATABASE_URL: its role may not use schema 'bellwire' ({_first(error)}): log in as "
            "bellwire_relay or bellwire_consumer, or as a member of it"
        ) from None
    if row is None or row[1] is None:
        raise MigrationBehind(None, needed)
    identity, revision, user, database, age, over_socket = row
    if revision < needed:
        raise MigrationBehind(revision, needed)
    if (await (await conn.execute(_MAY, (calls,))).fetchone()) != (True,):
        raise NotInstalled(
            f"BELLWIRE_DATABASE_URL: role {user} may not call bellwire.{calls}: log in as "
            f"{_ROLES[calls]}, or as a member of it"
        )
    rows = await (await conn.execute(_SETTINGS)).fetchall()
    _look_at_settings(dict(rows), user, database, over_socket=over_socket)
    return Installation(id=identity, revision=revision, server_age=age)


def _look_at_settings(settings: dict[str, str], user: str, database: str, *, over_socket: bool) -> None:
    where = f'ALTER ROLE "{user}" IN DATABASE "{database}" SET'
    isolation = settings.get("default_transaction_isolation", "read committed")
    if isolation != "read committed":
        raise ConfigError(
            f"role {user} works at {isolation}, the daemons need read committed: "
            f"{where} default_transaction_isolation = 'read committed'"
        )
    wrong = []
    for name, limit in _LIMITS.items():
        # Over a Unix socket there is no TCP, and the setting reads as 0 whatever was set.
        if name == "tcp_user_timeout" and over_socket:
            continue
        value = int(settings.get(name, "0"))
        if not 0 < value <= limit:
            wrong.append(name)
    if settings.get("synchronous_commit") == "off":
        wrong.append("synchronous_commit")
    if wrong:
        mend = "; ".join(f"{where} {name} = '{_MENDS[name]}'" for name in wrong)
        log.warning(
            "session settings of the role leave a half-open owner its locks",
            role=user,
            settings=", ".join(f"{name}={settings.get(name)}" for name in wrong),
            mend=f"log in as bellwire_relay or bellwire_consumer, or {mend}",
        )


async def _ping(conn: Connection) -> None:
    await conn.execute("SELECT 1")


def _first(error: BaseException) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return redact(re.sub(r"^connection failed: ", "", line.strip()))
