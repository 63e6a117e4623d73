"""One unit of work on whatever the user's own code holds: open it, connect, flush, commit, roll back, give it
back.

Each adapter does what its library means by these words and nothing else; which connection it is, from which
pool and with which isolation level, stays the user's choice. `token` identifies the transaction that was
begun, so that a commit in the middle of the block is noticed.
"""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from bellwire_schema.errors import ConnectionUnsupported

__all__ = ["AsyncUnit", "Unit", "open_async_unit", "open_unit"]


class Unit(Protocol):
    handle: Any

    def connect(self) -> None: ...
    def token(self) -> object: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class AsyncUnit(Protocol):
    handle: Any

    async def connect(self) -> None: ...
    def token(self) -> object: ...
    async def flush(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def close(self) -> None: ...


def open_unit(source: object) -> Unit:
    """A unit on a sessionmaker, an Engine, a psycopg pool, or a function that gives one connection as a
    context."""
    match source:
        case sessionmaker():
            return SessionUnit(source())
        case Engine():
            return ConnectionUnit(source.connect())
        case async_sessionmaker() | AsyncEngine():
            raise ConnectionUnsupported(
                "a plain def handler needs a synchronous source: sessionmaker or Engine"
            )
        case _:
            return PsycopgUnit(_context(source))


async def open_async_unit(source: object) -> AsyncUnit:
    """As `open_unit`, for async_sessionmaker, AsyncEngine and asynchronous pools and functions."""
    match source:
        case async_sessionmaker():
            return AsyncSessionUnit(source())
        case AsyncEngine():
            return AsyncConnectionUnit(await source.connect())
        case sessionmaker() | Engine():
            raise ConnectionUnsupported(
                "an async handler needs async_sessionmaker, AsyncEngine or an async pool"
            )
        case _:
            unit = AsyncPsycopgUnit(_context(source))
            await unit.open()
            return unit


def _context(source: object) -> Any:
    opener = getattr(source, "connection", None) if not callable(source) else source
    if not callable(opener):
        raise ConnectionUnsupported(
            f"attempt.transaction takes a sessionmaker, an Engine, their async forms, a psycopg pool or a "
            f"function that gives a psycopg connection as a context manager; {type(source).__name__} is none"
        )
    return opener()


class SessionUnit:
    def __init__(self, session: Session) -> None:
        self.handle = session

    def connect(self) -> None:
        self.handle.connection()

    def token(self) -> object:
        return self.handle.get_transaction()

    def flush(self) -> None:
        self.handle.flush()

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    def close(self) -> None:
        self.handle.close()


class ConnectionUnit:
    def __init__(self, connection: Connection) -> None:
        self.handle = connection

    def connect(self) -> None:
        """It is one already."""

    def token(self) -> object:
        return self.handle.get_transaction()

    def flush(self) -> None:
        """A connection holds nothing back."""

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    def close(self) -> None:
        self.handle.close()


class PsycopgUnit:
    def __init__(self, context: AbstractContextManager["psycopg.Connection[Any]"]) -> None:
        self._context = context
        self.handle = context.__enter__()
        if not isinstance(self.handle, psycopg.Connection):
            context.__exit__(None, None, None)
            raise ConnectionUnsupported(
                f"the source gave a {type(self.handle).__name__}, not a psycopg Connection"
            )
        if self.handle.autocommit:
            self.handle.execute("BEGIN")

    def connect(self) -> None:
        """It is one already."""

    def token(self) -> object:
        return self.handle.info.transaction_status == TransactionStatus.INTRANS

    def flush(self) -> None:
        """A connection holds nothing back."""

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    def close(self) -> None:
        self._context.__exit__(None, None, None)


class AsyncSessionUnit:
    def __init__(self, session: AsyncSession) -> None:
        self.handle = session

    async def connect(self) -> None:
        _ = await self.handle.connection()

    def token(self) -> object:
        return self.handle.sync_session.get_transaction()

    async def flush(self) -> None:
        await self.handle.flush()

    async def commit(self) -> None:
        await self.handle.commit()

    async def rollback(self) -> None:
        await self.handle.rollback()

    async def close(self) -> None:
        await self.handle.close()


class AsyncConnectionUnit:
    def __init__(self, connection: AsyncConnection) -> None:
        self.handle = connection

    async def connect(self) -> None:
        """It is one already."""

    def token(self) -> object:
        connection = self.handle.sync_connection
        return connection.get_transaction() if connection is not None else None

    async def flush(self) -> None:
        """A connection holds nothing back."""

    async def commit(self) -> None:
        await self.handle.commit()

    async def rollback(self) -> None:
        await self.handle.rollback()

    async def close(self) -> None:
        await self.handle.close()


class AsyncPsycopgUnit:
    handle: "psycopg.AsyncConnection[Any]"

    def __init__(self, context: AbstractAsyncContextManager["psycopg.AsyncConnection[Any]"]) -> None:
        self._context = context

    async def open(self) -> None:
        if not hasattr(self._context, "__aenter__"):
            raise ConnectionUnsupported("an async handler needs an asynchronous pool or function")
        self.handle = await self._context.__aenter__()
        if not isinstance(self.handle, psycopg.AsyncConnection):
            await self._context.__aexit__(None, None, None)
            raise ConnectionUnsupported(
                f"the source gave a {type(self.handle).__name__}, not a psycopg AsyncConnection"
            )
        if self.handle.autocommit:
            await self.handle.execute("BEGIN")

    async def connect(self) -> None:
        """It is one already."""

    def token(self) -> object:
        return self.handle.info.transaction_status == TransactionStatus.INTRANS

    async def flush(self) -> None:
        """A connection holds nothing back."""

    async def commit(self) -> None:
        await self.handle.commit()

    async def rollback(self) -> None:
        await self.handle.rollback()

    async def close(self) -> None:
        await self._context.__aexit__(None, None, None)
