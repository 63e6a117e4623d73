"""The database's clock, shifted: tests reach next month without waiting, in every process at once.

All dates are drawn from `bellwire.now()`, so one function is the clock of relays, consumers and
applications together. The shift is a row, visible to others when it is committed, so a statement under way
keeps the time it began with. The production function is kept and put back by `uninstall`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import psycopg

_INSTALL = """
CREATE SCHEMA bellwire_test;
CREATE TABLE bellwire_test.clock (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    shift interval NOT NULL DEFAULT '0',
    production text NOT NULL
);
INSERT INTO bellwire_test.clock (production)
    SELECT pg_get_functiondef('bellwire.now()'::regprocedure);
GRANT USAGE ON SCHEMA bellwire_test TO PUBLIC;
GRANT SELECT ON bellwire_test.clock TO PUBLIC;
CREATE OR REPLACE FUNCTION bellwire.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT statement_timestamp() + shift FROM bellwire_test.clock';
"""


def installed(conn: psycopg.Connection[Any]) -> bool:
    return conn.execute("SELECT to_regclass('bellwire_test.clock')").fetchone() != (None,)


def install(conn: psycopg.Connection[Any]) -> None:
    """Replace `bellwire.now()` by the shifted one, by a shift of zero; does nothing where that is done."""
    with conn.transaction():
        if not installed(conn):
            conn.execute(_INSTALL)


def uninstall(conn: psycopg.Connection[Any]) -> None:
    """Put the production clock back."""
    with conn.transaction():
        if installed(conn):
            row = conn.execute("SELECT production FROM bellwire_test.clock").fetchone()
            assert row is not None, "the clock has no row"
            conn.execute(row[0])
            conn.execute("DROP SCHEMA bellwire_test CASCADE")


def advance(conn: psycopg.Connection[Any], by: timedelta) -> timedelta:
    """Move the clock for all sessions; answers the whole shift. A negative step plays a clock set back."""
    with conn.transaction():
        row = conn.execute(
            "UPDATE bellwire_test.clock SET shift = shift + %s RETURNING shift", (by,)
        ).fetchone()
    assert row is not None, "the clock has no row"
    shift: timedelta = row[0]
    return shift


class Clock:
    """The same for one test: installed while the context is open, on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg.connect(url, autocommit=True, application_name="bellwire-test-clock")

    def advance(self, by: timedelta) -> timedelta:
        return advance(self._conn, by)

    def now(self) -> datetime:
        row = self._conn.execute("SELECT bellwire.now()").fetchone()
        assert row is not None
        moment: datetime = row[0]
        return moment

    def __enter__(self) -> Self:
        install(self._conn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._conn:  # closes it
            uninstall(self._conn)
