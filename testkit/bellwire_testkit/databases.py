"""A database of its own for every test, cloned from one that was migrated once.

Tests share a server but never a row: what one leaves behind cannot pass or fail another, and nothing has
to be truncated in the right order. Migrating takes a second, cloning some ten milliseconds. Roles belong to
the whole server and are shared. Each clone gets an installation id of its own, because two databases that
think they are one installation would hear each other's hints.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from bellwire_testkit.servers import PostgresServer
from bellwire_testkit.waiting import wait_until


class SessionsLeftOpen(AssertionError):
    """A test ended and sessions on its database did not; the text names them."""


class Database:
    """One database on a server; `url` is a superuser's, `url_as` a role's."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def url(self) -> str:
        return self.server.dsn(self.name)

    def url_as(self, role: str) -> str:
        """The address as another role, without a password: servers brought up here trust."""
        return self.server.dsn(self.name, user=role)

    def url_through(self, port: int) -> str:
        """The address through a proxy on this machine's `port`."""
        return self.server.dsn(self.name, port=port)

    def connect(self, *, application_name: str = "test", **options: Any) -> psycopg.Connection[Any]:
        """A connection in autocommit; the caller closes it."""
        options.setdefault("autocommit", True)
        return psycopg.connect(self.url, application_name=application_name, **options)

    def sessions(self) -> list[str]:
        """What is connected to this database now, one line each."""
        with psycopg.connect(self.server.url, autocommit=True) as conn:
            rows = conn.execute(
                "SELECT pid, usename, application_name, state, left(query, 80) FROM pg_stat_activity"
                " WHERE datname = %s AND backend_type = 'client backend'",
                (self.name,),
            ).fetchall()
        return [" ".join(str(field) for field in row) for row in rows]

    def drop(self) -> None:
        """Drop the database, ending whatever is still connected to it."""
        with psycopg.connect(self.server.url, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name)))

    def drop_unused(self, *, deadline: float = 3.0) -> None:
        """Drop the database; raise `SessionsLeftOpen` where sessions on it had to be ended for that."""
        try:
            wait_until(lambda: not self.sessions(), deadline=deadline, describe="the sessions to be closed")
        except TimeoutError:
            left = self.sessions()
        else:
            left = []
        self.drop()
        if left:
            raise SessionsLeftOpen("sessions left open by the test:\n" + "\n".join(left))


class Template:
    """A database that `prepare` filled once, sealed against connections, and cloned for each test."""

    def __init__(self, server: PostgresServer, prepare: Callable[[str], object]) -> None:
        self._server = server
        # Several runs may share one server (an address in the environment): names are drawn, not fixed.
        self._prefix = f"bellwire_test_{secrets.token_hex(4)}"
        self._clones = 0
        self._original = Database(server, f"{self._prefix}_template")
        self._admin = psycopg.connect(server.url, autocommit=True)
        try:
            self._create(self._original.name)
            prepare(self._original.url)
            self._run("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false", self._original.name)
        except BaseException:
            self.drop()
            raise

    def clone(self) -> Database:
        self._clones += 1
        database = Database(self._server, f"{self._prefix}_{self._clones}")
        self._create(database.name, template=self._original.name)
        self._copy_role_settings(database)
        with database.connect() as conn:
            if conn.execute("SELECT to_regclass('bellwire.installation')").fetchone() != (None,):
                conn.execute("UPDATE bellwire.installation SET id = gen_random_uuid()")
        return database

    def _copy_role_settings(self, database: Database) -> None:
        """CREATE DATABASE leaves behind what ALTER ROLE … IN DATABASE set, and daemons depend on it."""
        rows = self._admin.execute(
            "SELECT r.rolname, split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)"
            " FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) AS c"
            " WHERE s.setdatabase = (SELECT oid FROM pg_database WHERE datname = %s)",
            (self._original.name,),
        ).fetchall()
        for role, setting, value in rows:
            self._admin.execute(
                sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                    sql.Identifier(role),
                    sql.Identifier(database.name),
                    sql.Identifier(setting),
                    sql.Literal(value),
                )
            )

    def drop(self) -> None:
        self._admin.close()
        self._original.drop()

    def _create(self, name: str, *, template: str = "template0") -> None:
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template)

    def _run(self, statement: str, *names: str) -> None:
        command = sql.SQL(statement).format(*map(sql.Identifier, names))
        try:
            self._admin.execute(command)
        except psycopg.OperationalError:
            # A test restarted the server under this connection.
            self._admin.close()
            self._admin = psycopg.connect(self._server.url, autocommit=True)
            self._admin.execute(command)
