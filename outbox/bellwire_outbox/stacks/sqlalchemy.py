"""SQLAlchemy sessions and connections, over psycopg, psycopg2 and asyncpg.

A session's connection is asked for directly: `Session.execute` would flush what the caller has pending, and
a flush is the caller's decision. The statement goes to the driver as it is (`exec_driver_sql`), so no
compiled-SQL cache and no type of SQLAlchemy's takes part.
"""

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from bellwire_outbox.call import Call, Style, rows
from bellwire_outbox.stacks import AsyncStack, SyncStack, not_in_transaction
from bellwire_schema.errors import ConnectionUnsupported


def adopt(target: object) -> SyncStack | AsyncStack | None:
    if isinstance(target, Session | scoped_session | Connection):
        return SQLAlchemyStack(target)
    if isinstance(target, AsyncSession | async_scoped_session | AsyncConnection):
        return AsyncSQLAlchemyStack(target)
    return None


class SQLAlchemyStack(SyncStack):
    def __init__(self, target: "Session | scoped_session[Any] | Connection") -> None:
        self._target = target

    def run(self, call: Call) -> list[dict[str, Any]]:
        target = self._target
        return _run(target if isinstance(target, Connection) else target.connection(), call)


class AsyncSQLAlchemyStack(AsyncStack):
    def __init__(self, target: "AsyncSession | async_scoped_session[Any] | AsyncConnection") -> None:
        self._target = target

    async def arun(self, call: Call) -> list[dict[str, Any]]:
        target = self._target
        connection = target if isinstance(target, AsyncConnection) else await target.connection()
        return await connection.run_sync(_run, call)


def _run(connection: Connection, call: Call) -> list[dict[str, Any]]:
    style = _style(connection)
    if call.writes:
        _refuse_autocommit(connection)
    result = connection.exec_driver_sql(call.sql(style), call.parameters())
    return rows([tuple(row) for row in result])


def _style(connection: Connection) -> Style:
    dialect = connection.dialect
    match dialect.name, dialect.paramstyle:
        case "postgresql", "pyformat" | "format":
            return "format"
        case "postgresql", "numeric_dollar":
            return "numeric_dollar"
        case _:
            raise ConnectionUnsupported(
                f"SQLAlchemy's {dialect.name}+{dialect.driver} is not supported: use postgresql+psycopg, "
                "postgresql+psycopg2 or postgresql+asyncpg"
            )


def _refuse_autocommit(connection: Connection) -> None:
    # The driver's own flag: an isolation level set on the engine, on the connection or by an event all end
    # up here.
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise not_in_transaction("use a connection without isolation_level='AUTOCOMMIT'")
