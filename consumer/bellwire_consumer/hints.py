"""Where a consumer hears that something was admitted. A hint carries no meaning but "look"; polling is the
floor.

This source is the one that needs no broker: the relay notifies one channel of each consumer. LISTEN shares
the claim connection, so it costs no connection of its own: between two claims the event loop watches the
socket itself, and during one psycopg hands over what arrives. A dead LISTEN looks like a quiet one, and
costs the poll floor.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

import psycopg
from psycopg import Notify, sql

from bellwire_runtime.database import Connection

__all__ = ["Announcements", "HintSource"]


class HintSource(Protocol):
    """What the claimer asks for. `ids`: the jobs to look at, or None to look at the oldest admitted."""

    def take(self, limit: int) -> Sequence[UUID] | None: ...
    async def before_claim(self, conn: Connection) -> None: ...
    def after_claim(self, conn: Connection) -> None: ...
    def close(self) -> None: ...


class Announcements:
    """Listens on the consumer's own channel; `on_hint` is called on the event loop."""

    def __init__(self, *, consumer: UUID, on_hint: Callable[[], None], listen: bool = True) -> None:
        self._channel = f"bellwire_{consumer.hex}"
        self._on_hint = on_hint
        self._listen = listen
        self._conn: Connection | None = None
        self._watched: int | None = None

    def take(self, limit: int) -> None:  # noqa: ARG002 (this source names no jobs)
        return None

    async def before_claim(self, conn: Connection) -> None:
        """The connection is psycopg's again; a new one is told to listen."""
        self._unwatch()
        if self._listen and conn is not self._conn:
            conn.add_notify_handler(self._notified)
            await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._conn = conn

    def after_claim(self, conn: Connection) -> None:
        """Watch the idle socket until the next claim."""
        if self._listen and conn is self._conn and not conn.closed:
            self._watched = conn.fileno()
            asyncio.get_running_loop().add_reader(self._watched, self._readable, conn)

    def close(self) -> None:
        self._unwatch()
        self._conn = None

    def _unwatch(self) -> None:
        if self._watched is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    def _readable(self, conn: Connection) -> None:
        try:
            conn.pgconn.consume_input()
            heard = False
            while conn.pgconn.notifies() is not None:
                heard = True
        except psycopg.Error:
            # The server has gone; the next claim finds out, and says so.
            self._unwatch()
            heard = True
        if heard:
            self._on_hint()

    def _notified(self, _note: Notify) -> None:
        self._on_hint()
