"""A LISTEN is believed only while it has proved itself, because a dead one looks just like a quiet one.

Behind a transaction pooler LISTEN is accepted and nothing ever arrives; over a half-open connection too. So
the listener notifies itself, at the start and again every half minute, and `standing` is true only while the
last proof came back. Nothing depends on it but latency: whoever uses it polls too.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable

import psycopg
import structlog
from psycopg import sql

from bellwire_runtime.database import Connection, abandon, connect

__all__ = ["Listener"]

log = structlog.get_logger("bellwire.listener")
_PROOF = "proof:"


class Listener:
    """A loop: each `run_once` listens until the next proof is due, and raises what broke the connection."""

    name = "listen"

    def __init__(
        self,
        *,
        url: str,
        channel: str,
        application_name: str,
        on_notify: Callable[[str], None],
        connect_timeout: float = 5.0,
        proof_every: float = 30.0,
        proof_within: float = 5.0,
    ) -> None:
        self._url = url
        self._channel = channel
        self._application_name = application_name
        self._on_notify = on_notify
        self._connect_timeout = connect_timeout
        self._proof_every = proof_every
        self._proof_within = proof_within
        self._conn: Connection | None = None
        self._unproved = 0
        self._busy = False
        self.standing = False
        self.deadline = proof_every + proof_within + connect_timeout + 30.0

    async def run_once(self) -> float | None:
        """One proof, and then listening until the next is due."""
        self._busy = True
        try:
            if self._conn is None:
                self._conn = await connect(
                    self._url, application_name=self._application_name, within=self._connect_timeout
                )
                async with asyncio.timeout(self._proof_within):
                    await self._conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            if not await self._prove(self._conn):
                return self._give_up()
            self._stand()
            async for note in self._conn.notifies(timeout=self._proof_every):
                if not note.payload.startswith(_PROOF):
                    self._on_notify(note.payload)
        except TimeoutError as error:
            self._drop()
            raise psycopg.OperationalError("LISTEN was not answered") from error
        except BaseException:
            self._drop()
            raise
        finally:
            self._busy = False
        return 0.0

    async def close(self) -> None:
        """Close, waiting for nobody; a pass that is under way ends at once with an error."""
        self.standing = False
        if self._conn is not None:
            abandon(self._conn)
            if not self._busy:
                self._drop()

    async def _prove(self, conn: Connection) -> bool:
        nonce = _PROOF + uuid.uuid4().hex
        heard = False
        async with asyncio.timeout(self._proof_within * 2):
            await conn.execute("SELECT pg_notify(%s, %s)", (self._channel, nonce))
            async for note in conn.notifies(timeout=self._proof_within):
                if note.payload == nonce:
                    heard = True
                    break
                if not note.payload.startswith(_PROOF):
                    self._on_notify(note.payload)
        return heard

    def _stand(self) -> None:
        if not self.standing:
            if self._unproved:
                log.info("LISTEN proved, notifications are heard", channel=self._channel)
            self._unproved = 0
            self.standing = True

    def _give_up(self) -> float:
        self._drop()
        if self._unproved == 0:
            log.warning(
                "LISTEN is not delivered, polling instead",
                channel=self._channel,
                mend="point BELLWIRE_LISTEN_URL past the transaction pooler, or set it to 'off'",
            )
        self._unproved += 1
        # Each try costs a connection; a pooler that does not carry LISTEN today does not tomorrow either.
        return min(600.0, 30.0 * self._unproved)

    def _drop(self) -> None:
        self.standing = False
        conn, self._conn = self._conn, None
        if conn is not None:
            abandon(conn)
            with contextlib.suppress(Exception):
                conn.pgconn.finish()
