"""How a command speaks to the database: one short connection; errors name the address, never the password."""

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bellwire_console.cli.exits import Exit, Failure

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["actor_or_me", "address", "reached", "reading", "writing"]


def address(database_url: str | None) -> str:
    """The address given, checked for its form. Raises Failure where there is none."""
    if not database_url:
        raise Failure(
            Exit.USAGE,
            "no database address: set BELLWIRE_DATABASE_URL, or give --database-url "
            "postgresql://user:password@host:5432/name",
        )
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from bellwire_console.cli.failures import unreachable
    from bellwire_schema.connection import libpq_url

    try:
        parts = conninfo_to_dict(libpq_url(database_url))
    except psycopg.Error as error:
        raise unreachable(error, database_url) from None
    # libpq would look the port's name up, and report a host that cannot be resolved.
    if not all(port.isdigit() for port in str(parts.get("port", 5432)).split(",") if port):
        raise Failure(Exit.USAGE, f"the database address has the port {parts['port']!r}: a port is a number")
    return database_url


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Around whatever opens its own connection: an error of connecting names the address."""
    import psycopg
    from sqlalchemy.exc import DBAPIError

    from bellwire_console.cli.failures import unreachable

    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.OperationalError) and error.orig.sqlstate is None:
            raise unreachable(error.orig, url) from None
        raise
    except psycopg.OperationalError as error:
        if error.sqlstate is None:
            raise unreachable(error, url) from None
        raise


@contextmanager
def reading(database_url: str | None) -> Iterator["Connection"]:
    """A read-only transaction on one snapshot, so that a page does not contradict itself."""
    with _connected(database_url) as connection, connection.begin():
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield connection


@contextmanager
def writing(database_url: str | None) -> Iterator["Connection"]:
    """A transaction, committed at the end."""
    with _connected(database_url) as connection, connection.begin():
        yield connection


def actor_or_me(actor: str | None) -> str:
    """Who is on record for a change."""
    return actor or f"cli:{getpass.getuser()}"


@contextmanager
def _connected(database_url: str | None) -> Iterator["Connection"]:
    from bellwire_schema import migrate
    from bellwire_schema.connection import connect
    from bellwire_schema.errors import MigrationBehind

    url = address(database_url)
    with reached(url), connect(url, application_name="bellwire cli") as connection:
        with connection.begin():
            found = migrate.revision(connection)
        if found is None or found < migrate.head():
            raise MigrationBehind(found, migrate.head())
        yield connection
