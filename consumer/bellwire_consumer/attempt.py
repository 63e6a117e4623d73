"""What a handler holds: who it is, what it may use, and how it ends with its rows.

`Attempt` is for plain functions (in a thread), `AsyncAttempt` for coroutines; they differ only where
something is waited for. Nothing here writes to the job but `transaction`; progress and cancel requests
travel with the heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeAlias, TypeVar, overload
from uuid import UUID

import structlog
from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar as DefaultTypeVar

from bellwire_consumer.error_text import storable
from bellwire_consumer.lease import CancelRequest, Lease
from bellwire_consumer.transaction import (
    AsyncConnectionTransaction,
    AsyncSessionTransaction,
    ConnectionTransaction,
    Desk,
    SessionTransaction,
    open_async_transaction,
    open_transaction,
)
from bellwire_schema.errors import ArgumentInvalid, ConfigError, ResultInvalid

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

__all__ = ["AnyAttempt", "AsyncAttempt", "Attempt"]

D = DefaultTypeVar("D", default=None)
ModelT = TypeVar("ModelT", bound=BaseModel)
R = TypeVar("R", bound=BaseModel)
SessionT = TypeVar("SessionT", bound="Session")
AsyncSessionT = TypeVar("AsyncSessionT", bound="AsyncSession")
ConnT_co = TypeVar("ConnT_co", bound="psycopg.Connection[Any]", covariant=True)
AsyncConnT_co = TypeVar("AsyncConnT_co", bound="psycopg.AsyncConnection[Any]", covariant=True)
_MAX_NOTE = 500
_BIGINT = 2**63


class Pool(Protocol[ConnT_co]):
    """What `psycopg_pool.ConnectionPool` offers."""

    def connection(self) -> AbstractContextManager[ConnT_co]: ...


class AsyncPool(Protocol[AsyncConnT_co]):
    """What `psycopg_pool.AsyncConnectionPool` offers."""

    def connection(self) -> AbstractAsyncContextManager[AsyncConnT_co]: ...


class Facts(Generic[D]):
    """What both kinds of attempt know."""

    __slots__ = ("_desk", "_lease", "_logger", "deps")

    def __init__(self, lease: Lease, *, deps: D, desk: Desk) -> None:
        self._lease = lease
        self._desk = desk
        self._logger: Any = None
        self.deps = deps
        """What the app's `lifespan` gave."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind} {self.job_id}, number {self.number})"

    @property
    def job_id(self) -> UUID:
        return self._lease.job_id

    @property
    def id(self) -> UUID:
        return self._lease.id

    @property
    def number(self) -> int:
        """Grows with every attempt of the job, across redrives: the fence for stores outside the database."""
        number: int = self._lease.row.attempt
        return number

    @property
    def kind(self) -> str:
        return self._lease.kind

    @property
    def tenant(self) -> str:
        tenant: str = self._lease.row.tenant
        return tenant

    @property
    def key(self) -> str | None:
        """The job's business key, as text."""
        key: str | None = self._lease.row.key
        return key

    @property
    def started_at(self) -> datetime:
        """When this attempt started, by the database's clock."""
        at: datetime = self._lease.row.started_at
        return at

    @property
    def deadline(self) -> datetime | None:
        """When the job is too old to be worth doing, by the database's clock; None: never."""
        at: datetime | None = self._lease.row.deadline_at
        return at

    @property
    def scheduled_for(self) -> datetime | None:
        """The calendar instant this job stands for; None for a job that no schedule made."""
        return None

    def time_left(self) -> timedelta | None:
        """What is left of the attempt's time budget (timeout and deadline); None: there is none."""
        left = self._lease.time_left()
        return None if left == float("inf") else timedelta(seconds=left)

    def progress(self, value: int, total: int | None = None, note: str | None = None) -> None:
        """Report how far it is; shown to operators, and what `progress_timeout` waits for.

        No I/O: it travels with the next heartbeat. The value must rise to count; a lower one is refused.
        """
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _BIGINT:
            raise ArgumentInvalid("progress", f"must be a whole number of zero or more, got {value!r}")
        if total is not None and (
            isinstance(total, bool) or not isinstance(total, int) or not 0 <= total < _BIGINT
        ):
            raise ArgumentInvalid("total", f"must be a whole number of zero or more, got {total!r}")
        lease = self._lease
        if lease.progress is not None and value < lease.progress:
            raise ArgumentInvalid("progress", f"was {lease.progress} and must rise, got {value}")
        if value != lease.progress:
            lease.progressed_at = time.monotonic()
        lease.progress = value
        if total is not None:
            lease.progress_total = total
        if note is not None:
            lease.note = storable(str(note), limit=_MAX_NOTE)

    @property
    def cancel_request(self) -> CancelRequest | None:
        """Who asked that this job stop, when and why; comes with the heartbeat."""
        return self._lease.cancel

    def raise_if_cancelled(self) -> None:
        """A safe point: raises `JobCancelled` if that was asked for, `LeaseLost` if the job is no longer
        ours."""
        self._lease.raise_if_cancelled()

    def checkpoint(self, model: type[ModelT]) -> ModelT | None:
        """The last checkpoint that was committed, by this or an earlier attempt; None: there is none."""
        stored = self._lease.checkpoint
        if stored is None:
            return None
        try:
            return model.model_validate_json(stored)
        except ValidationError as error:
            count = error.error_count()
        raise ResultInvalid(f"the stored checkpoint is no {model.__name__} ({count} fields do not fit)")

    @property
    def logger(self) -> Any:
        """A structlog logger that carries the ids of job and attempt."""
        if self._logger is None:
            self._logger = structlog.get_logger("bellwire.handler").bind(
                kind=self.kind, job_id=str(self.job_id), attempt_id=str(self.id), attempt=self.number
            )
        return self._logger


class Attempt(Facts[D]):
    """An attempt of a plain function, which runs in a thread."""

    __slots__ = ()

    @overload
    def transaction(
        self, source: sessionmaker[SessionT]
    ) -> AbstractContextManager[SessionTransaction[SessionT]]: ...
    @overload
    def transaction(self, source: Engine) -> AbstractContextManager[ConnectionTransaction[Connection]]: ...
    @overload
    def transaction(
        self, source: Pool[ConnT_co]
    ) -> AbstractContextManager[ConnectionTransaction[ConnT_co]]: ...
    @overload
    def transaction(
        self, source: Callable[[], AbstractContextManager[ConnT_co]]
    ) -> AbstractContextManager[ConnectionTransaction[ConnT_co]]: ...
    def transaction(self, source: Any) -> AbstractContextManager[Any]:
        """One transaction whose rows and whose ending of this attempt commit together, fenced by the lease.

        Raises `WrongDatabase` at its start, `LeaseLost` at its end where the job is no longer ours; then,
        as with any exception in the block, everything in it is rolled back.
        """
        return open_transaction(self._lease, self._desk, source)

    @overload
    def effect(
        self,
        name: str,
        *,
        args: Any,
        returns: type[R],
        do: Callable[[str], R],
        find: Callable[[str], R | None],
        timeout: timedelta,
        refused: tuple[type[BaseException], ...] = (),
    ) -> R: ...
    @overload
    def effect(
        self,
        name: str,
        *,
        args: Any,
        returns: type[R],
        do: Callable[[str], R],
        if_uncertain: Literal["resend", "stop"],
        timeout: timedelta,
        refused: tuple[type[BaseException], ...] = (),
    ) -> R: ...
    def effect(self, name: str, **_: Any) -> Any:
        """One outside action of the job, kept in the effect ledger. Not built yet: raises `ConfigError`."""
        _unbuilt(name)


class AsyncAttempt(Facts[D]):
    """An attempt of a coroutine, which runs on the event loop."""

    __slots__ = ()

    @overload
    def transaction(
        self, source: async_sessionmaker[AsyncSessionT]
    ) -> AbstractAsyncContextManager[AsyncSessionTransaction[AsyncSessionT]]: ...
    @overload
    def transaction(
        self, source: AsyncEngine
    ) -> AbstractAsyncContextManager[AsyncConnectionTransaction[AsyncConnection]]: ...
    @overload
    def transaction(
        self, source: AsyncPool[AsyncConnT_co]
    ) -> AbstractAsyncContextManager[AsyncConnectionTransaction[AsyncConnT_co]]: ...
    @overload
    def transaction(
        self, source: Callable[[], AbstractAsyncContextManager[AsyncConnT_co]]
    ) -> AbstractAsyncContextManager[AsyncConnectionTransaction[AsyncConnT_co]]: ...
    def transaction(self, source: Any) -> AbstractAsyncContextManager[Any]:
        """One transaction whose rows and whose ending of this attempt commit together, fenced by the lease.

        Raises `WrongDatabase` at its start, `LeaseLost` at its end where the job is no longer ours; then,
        as with any exception in the block, everything in it is rolled back.
        """
        return open_async_transaction(self._lease, self._desk, source)

    @overload
    async def effect(
        self,
        name: str,
        *,
        args: Any,
        returns: type[R],
        do: Callable[[str], Awaitable[R]],
        find: Callable[[str], Awaitable[R | None]],
        timeout: timedelta,
        refused: tuple[type[BaseException], ...] = (),
    ) -> R: ...
    @overload
    async def effect(
        self,
        name: str,
        *,
        args: Any,
        returns: type[R],
        do: Callable[[str], Awaitable[R]],
        if_uncertain: Literal["resend", "stop"],
        timeout: timedelta,
        refused: tuple[type[BaseException], ...] = (),
    ) -> R: ...
    async def effect(self, name: str, **_: Any) -> Any:
        """One outside action of the job, kept in the effect ledger. Not built yet: raises `ConfigError`."""
        _unbuilt(name)


AnyAttempt: TypeAlias = "Attempt[Any] | AsyncAttempt[Any]"


def _unbuilt(name: str) -> NoReturn:
    raise ConfigError(f"effect {name!r}: effects are not built yet, and are refused rather than ignored")
