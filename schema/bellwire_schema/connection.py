"""One short connection for a command or a migration: libpq reads the address, SQLAlchemy Core speaks on it.

Long-running processes do not use this; theirs must survive a database that goes away.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, NullPool, create_engine


def libpq_url(url: str) -> str:
    """The address as libpq reads it: `postgresql+psycopg://` is SQLAlchemy's spelling of `postgresql://`."""
    return re.sub(r"^(postgresql|postgres)\+\w+://", "postgresql://", url.strip())


@contextmanager
def connect(url: str, *, application_name: str) -> Iterator[Connection]:
    """A connection in no transaction yet, closed at the end. Raises psycopg.OperationalError."""
    address = libpq_url(url)
    # libpq reads the address itself, so that every form of it works (several hosts, sockets, services).
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(address, application_name=application_name, connect_timeout=10),
        poolclass=NullPool,
        isolation_level="READ COMMITTED",
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def driver(connection: Connection) -> psycopg.Connection[Any]:
    """psycopg's own connection, in the same transaction: for texts that hold many statements."""
    raw: Any = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)  # noqa: S101 - for the type checker: `connect` made it
    return raw
