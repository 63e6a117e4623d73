"""Bare psycopg 3 connections.

The cursor classes are named, since a connection's own `cursor_factory` and `row_factory` may be anything. A
connection not in autocommit starts its transaction with our statement, as with any other.
"""

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from bellwire_outbox.call import Call, rows
from bellwire_outbox.stacks import AsyncStack, SyncStack, not_in_transaction


def adopt(target: object) -> SyncStack | AsyncStack | None:
    if isinstance(target, psycopg.Connection):
        return PsycopgStack(target)
    if isinstance(target, psycopg.AsyncConnection):
        return AsyncPsycopgStack(target)
    return None


def refuse_autocommit(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise not_in_transaction("open a transaction: with conn.transaction(): …")


class PsycopgStack(SyncStack):
    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def run(self, call: Call) -> list[dict[str, Any]]:
        if call.writes:
            refuse_autocommit(self._connection)
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(call.sql("format").encode(), call.parameters())
            return rows(cursor.fetchall())


class AsyncPsycopgStack(AsyncStack):
    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        self._connection = connection

    async def arun(self, call: Call) -> list[dict[str, Any]]:
        if call.writes:
            refuse_autocommit(self._connection)
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(call.sql("format").encode(), call.parameters())
            return rows(await cursor.fetchall())
