"""A connection that is never trusted: every use has a deadline, and one that was interrupted is thrown away.

Cancelling a task that waits on a half-open connection may not be delivered until the far side answers, and
keepalives do not help while a load balancer still acknowledges them. So each use runs in a task of its own,
and when its time is over (or its caller is cancelled) the socket is shut down from outside, which wakes
whatever waits on it. What the server made of an interrupted call is unknown; callers read back.

Reconnecting is jittered, so that fifty processes do not come back in the same second, and silent between the
line that says the database was lost and the line that says it is back, save for one a minute.
"""

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import psycopg
import structlog
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from bellwire_runtime.left_behind import forget
from bellwire_runtime.redact import redact

__all__ = ["Abandoned", "Connection", "SupervisedConnection", "connect", "is_refusal", "is_transient"]

T = TypeVar("T")
Connection: TypeAlias = psycopg.AsyncConnection[Any]
log = structlog.get_logger("bellwire.database")

# What a wrong password, role or database name answers with: waiting cannot mend it.
_REFUSALS = (pg.InvalidAuthorizationSpecification, pg.InvalidPassword, pg.InvalidCatalogName)
_REFUSAL_TEXTS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
# Beside OperationalError (the connection, shutdown, deadlock, too many connections): a lost race, a server
# that has become a standby, a statement cut short by its timeout.
_TRANSIENT = (
    psycopg.OperationalError,
    pg.SerializationFailure,
    pg.ReadOnlySqlTransaction,
    pg.IdleInTransactionSessionTimeout,
    pg.QueryCanceled,
    OSError,
    TimeoutError,
)


class Abandoned(psycopg.OperationalError):
    """The call did not end within its deadline. Its connection is gone, its outcome unknown."""


def is_transient(error: BaseException) -> bool:
    """Whether trying again later can help. False: a bug, or something a person must mend."""
    return isinstance(error, _TRANSIENT)


def is_refusal(error: BaseException) -> bool:
    """Whether the server said who we are is wrong: a wrong password, role or database name."""
    if isinstance(error, _REFUSALS):
        return True
    # An error while connecting carries no SQLSTATE in libpq, only the server's words.
    text = str(error)
    missing = "does not exist" in text and ('FATAL:  role "' in text or 'FATAL:  database "' in text)
    return isinstance(error, psycopg.OperationalError) and (missing or any(t in text for t in _REFUSAL_TEXTS))


async def connect(
    url: str, *, application_name: str, within: float = 5.0, prepare: bool = True
) -> Connection:
    """A new autocommit connection, within that many seconds, or `psycopg.OperationalError`.

    Keepalives and `tcp_user_timeout` are the client's half of noticing a dead peer; what the address itself
    says about them wins.
    """
    ours: dict[str, Any] = {
        "connect_timeout": max(1, round(within)),
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        # A session that may only read (a standby, a server under maintenance) is no use, and would stay so.
        "target_session_attrs": "read-write",
    }
    for name in conninfo_to_dict(url):
        ours.pop(name, None)
    try:
        # The margin lets libpq's own timeout speak first, with the better message.
        async with asyncio.timeout(within + 1):
            return await psycopg.AsyncConnection.connect(
                url,
                autocommit=True,
                prepare_threshold=1 if prepare else None,
                application_name=application_name,
                **ours,
            )
    except TimeoutError:
        raise Abandoned(f"no connection within {within:.0f} s") from None
    except OSError as error:
        raise psycopg.OperationalError(str(error)) from error


def abandon(conn: Connection) -> None:
    """Shut the socket down under whoever waits on it, then close. Never waits itself."""
    # A duplicate, so that libpq still owns and closes its own descriptor.
    with (
        contextlib.suppress(OSError, psycopg.Error, ValueError),
        socket.socket(fileno=os.dup(conn.pgconn.socket)) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)


class SupervisedConnection:
    """One connection, used by one call at a time, made again when it breaks; in any thread's event loop."""

    def __init__(
        self,
        *,
        url: str,
        application_name: str,
        connect_timeout: float = 5.0,
        call_timeout: float = 35.0,
        prepare: bool = True,
        backoff_cap: float = 5.0,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = url
        self._name = application_name
        self._connect_timeout = connect_timeout
        self._call_timeout = call_timeout
        self._prepare = prepare
        self._cap = backoff_cap
        self._rng = rng or random.Random()  # noqa: S311 (jitter, not a secret)
        self._clock = clock
        self._sleep = sleep
        self._conn: Connection | None = None
        self._lock = asyncio.Lock()
        self._failures = 0
        self._not_before = 0.0
        self._lost_at: float | None = None
        self._said_at = 0.0
        self._closed = False
        self.connects = 0
        """How often a connection was made."""
        self.back_since: float | None = None
        """Monotonic time since when the database is back after an outage; None: there was none."""

    @property
    def down(self) -> str | None:
        """Why there is no connection, for health; None while all is well."""
        if self._lost_at is None:
            return None
        return f"no database connection ({self._name}) for {self._clock() - self._lost_at:.0f} s"

    async def run(self, call: Callable[[Connection], Awaitable[T]], *, within: float | None = None) -> T:
        """`call` with the connection, connecting first where needed.

        Raises what `call` raises, `Abandoned` after `within` seconds, and `psycopg.OperationalError` when no
        connection can be had; never tries `call` twice, because it may have been done.
        """
        async with self._lock:
            conn = await self._connected()
            return await self._watched(conn, call, self._call_timeout if within is None else within)

    async def close(self) -> None:
        """Close, waiting for nobody."""
        self._closed = True
        conn, self._conn = self._conn, None
        if conn is not None:
            if conn.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                abandon(conn)
            await conn.close()

    async def _connected(self) -> Connection:
        if self._closed:
            raise psycopg.OperationalError("the connection is closed")
        if self._conn is not None:
            if not self._conn.closed:
                return self._conn
            self._conn = None
        pause = self._not_before - self._clock()
        if pause > 0:
            await self._sleep(pause)
        try:
            conn = await connect(
                self._url, application_name=self._name, within=self._connect_timeout, prepare=self._prepare
            )
        except psycopg.Error as error:
            self._lost(error)
            raise
        self._conn = conn
        self.connects += 1
        self._found()
        return conn

    async def _watched(
        self, conn: Connection, call: Callable[[Connection], Awaitable[T]], within: float
    ) -> T:
        task: asyncio.Task[T] = asyncio.ensure_future(_awaited(call, conn))
        try:
            done, _ = await asyncio.wait({task}, timeout=within)
        except asyncio.CancelledError:
            await self._discard(conn, task)
            raise
        if not done:
            await self._discard(conn, task)
            error = Abandoned(f"no answer within {within:.0f} s: the connection is given up")
            self._lost(error)
            raise error
        failure = task.exception()
        usable = (
            not conn.closed
            and conn.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
            # Such a session may stay read-only for ever; whether the server writes again, a new one says.
            and not isinstance(failure, pg.ReadOnlySqlTransaction)
        )
        if not usable:
            await self._discard(conn, None)
        if failure is None:
            return task.result()
        if not usable:
            self._lost(failure)
        raise failure

    async def _discard(self, conn: Connection, task: "asyncio.Task[Any] | None") -> None:
        if self._conn is conn:
            self._conn = None
        abandon(conn)
        if task is not None:
            task.cancel()
            # A task that even a dead socket does not wake is left behind: its error, if any, is nobody's.
            task.add_done_callback(forget)
            await asyncio.wait({task}, timeout=1.0)
            if not task.done():
                # Whatever still watches the descriptor would next watch somebody else's: let it leak.
                return
        with contextlib.suppress(Exception):
            await conn.close()

    def _lost(self, error: BaseException) -> None:
        now = self._clock()
        self._failures += 1
        self._not_before = now + self._rng.uniform(0.05, min(self._cap, 0.1 * 2.0 ** min(self._failures, 10)))
        reason = redact(str(error).strip().splitlines()[0]) if str(error) else type(error).__name__
        if self._lost_at is None:
            self._lost_at = self._said_at = now
            if self.connects == 0:
                # Whoever starts a process says that it waits for the database, or ends with that one line.
                return
            log.warning("database lost", connection=self._name, error=reason)
        elif now - self._said_at >= 60:
            self._said_at = now
            log.warning(
                "database still lost", connection=self._name, seconds=round(now - self._lost_at), error=reason
            )

    def _found(self) -> None:
        if self._lost_at is not None:
            now = self._clock()
            log.info("database back", connection=self._name, seconds=round(now - self._lost_at, 1))
            self.back_since = now
        self._lost_at = None
        self._failures = 0


async def _awaited(call: Callable[[Connection], Awaitable[T]], conn: Connection) -> T:
    return await call(conn)
