"""`attempt.transaction`: the handler's rows and the attempt's ending commit together, or not at all.

The block's first statement says where it runs and bounds how long it may sit idle; its last, just before
COMMIT, is the ending: completion, a checkpoint, or a check of the token that locks. Nothing in between
touches the job's row, since a lock on it held to COMMIT would starve the heartbeat. Above READ COMMITTED a
heartbeat in the middle would make that last statement fail, so there the heartbeat leaves the job alone, and
the block must end within the lease. A COMMIT whose answer was lost is settled by asking the database, never
by assuming.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable
from uuid import UUID

import structlog
from pydantic import BaseModel

from bellwire_consumer.lease import Lease
from bellwire_consumer.strict_json import encode
from bellwire_consumer.units import AsyncUnit, Unit, open_async_unit, open_unit
from bellwire_outbox import Job, OnDuplicate, Receipt, submit
from bellwire_outbox.call import Call
from bellwire_outbox.stacks import AsyncStack, SyncStack, stack_of
from bellwire_schema.errors import ConfigError, ConnectionUnsupported, LeaseLost, WrongDatabase
from bellwire_schema.faultpoints import reach

__all__ = [
    "AsyncConnectionTransaction",
    "AsyncSessionTransaction",
    "ConnectionTransaction",
    "Desk",
    "SessionTransaction",
    "open_async_transaction",
    "open_transaction",
]

S = TypeVar("S")
C = TypeVar("C")
log = structlog.get_logger("bellwire.consumer")
_BEAT_POLL_S = 0.002


class Desk(Protocol):
    """What an attempt needs of the process it runs in."""

    installation: UUID

    async def committed(self, lease: Lease) -> bool:
        """Whether the completing transaction, whose COMMIT was not answered, took effect."""

    def committed_from_thread(self, lease: Lease) -> bool:
        """The same, for a handler's thread."""


class Staged:
    """What the block ends with; written as the last statement before COMMIT."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._completes = False
        self._result: str | None = None
        self._checkpoint: str | None = None
        self._isolation = "read committed"
        self._since: str | None = None

    def complete(self, result: object = None) -> None:
        """The job is done once this block commits. `result` is JSON; raises `ResultInvalid` if it is none."""
        self._result = None if result is None else encode("result", result)
        self._completes = True

    def checkpoint(self, value: BaseModel) -> None:
        """Keep this with the rows of the block; the job goes on. Raises `ResultInvalid` if it cannot be
        stored."""
        self._checkpoint = encode("checkpoint", value)

    def _begin(self, installation: UUID) -> Call:
        arguments = (
            ("p_installation", "uuid", str(installation)),
            ("p_lease", "interval", f"{self._lease.seconds:.3f} seconds"),
        )
        return Call(
            "begin_attempt",
            arguments,  # type: ignore[arg-type]  # a tuple of literals, inferred as plain strings
            writes=True,
            columns=f"f AS ours, current_setting('transaction_isolation') AS isolation, {_SINCE}",
        )

    def _begun(self, rows: list[dict[str, Any]]) -> None:
        (row,) = rows
        if not row["ours"]:
            raise WrongDatabase(
                "the session given to attempt.transaction is of another database than the job's: they cannot "
                "commit together"
            )
        self._isolation = row["isolation"]
        self._since = row["since"]

    @property
    def _above_read_committed(self) -> bool:
        return self._isolation not in ("read committed", "read uncommitted")

    def _end(self) -> Call:
        lease = self._lease
        lease.require()
        if self._above_read_committed and time.monotonic() > lease.expires:
            raise LeaseLost(
                f"the transaction at {self._isolation.upper()} outlived the lease of {lease.seconds:.0f} s, "
                "which no heartbeat can renew meanwhile: keep it shorter, use READ COMMITTED, or declare a "
                "longer lease="
            )
        job = ("p_id", "uuid", str(lease.job_id))
        token = ("p_token", "uuid", str(lease.token))
        since = ("p_since", "text", self._since)
        if self._completes:
            attempt = ("p_attempt", "uuid", str(lease.id))
            result = ("p_result", "jsonb", self._result)
            return _call("complete", job, token, attempt, result, since)
        if self._checkpoint is not None:
            return _call("checkpoint", job, token, ("p_checkpoint", "jsonb", self._checkpoint), since)
        return _call("hold_token", job, token, since)

    def _ended(self, rows: list[dict[str, Any]]) -> None:
        (row,) = rows
        if row["answer"] in ("outside", None):
            raise ConfigError(_ENDED_INSIDE)
        if row["answer"] not in ("settled", True):
            raise LeaseLost(f"attempt {self._lease.id} of job {self._lease.job_id} no longer owns it")

    def _committed(self) -> None:
        if self._completes:
            self._lease.settled = True
        elif self._checkpoint is not None:
            self._lease.checkpoint = self._checkpoint

    def _same(self, before: object, after: object) -> None:
        if before is not after and before != after:
            raise ConfigError(_ENDED_INSIDE)


_ENDED_INSIDE = (
    "the transaction was committed or rolled back inside attempt.transaction(): the block's end does that"
)
# The same in one transaction, another in the next.
_SINCE = "extract(epoch FROM transaction_timestamp())::text AS since"


def _call(function: str, *arguments: tuple[str, Any, str | None]) -> Call:
    return Call(function, arguments, writes=True, columns="f AS answer")


@runtime_checkable
class OwnUnit(Unit, Protocol):
    """A unit that brings its own transaction class and its own way to the server."""

    stack: SyncStack

    def stage(self, lease: Lease) -> Staged: ...


class SessionTransaction(Staged, Generic[S]):
    """The block's transaction on a SQLAlchemy session."""

    def __init__(self, lease: Lease, handle: S) -> None:
        super().__init__(lease)
        self.session = handle

    def submit(
        self,
        job: Job,
        *,
        job_id: UUID | None = None,
        run_at: datetime | None = None,
        run_in: timedelta | None = None,
        priority: int | None = None,
        deadline: datetime | None = None,
        on_duplicate: OnDuplicate = "existing",
    ) -> Receipt:
        """Submit a job that exists only if this block commits, under this attempt's lease."""
        options: dict[str, Any] = {"job_id": job_id, "run_at": run_at, "run_in": run_in, "priority": priority}
        return _submit(self.session, job, deadline=deadline, on_duplicate=on_duplicate, **options)


class ConnectionTransaction(Staged, Generic[C]):
    """The block's transaction on a SQLAlchemy or psycopg connection."""

    def __init__(self, lease: Lease, handle: C) -> None:
        super().__init__(lease)
        self.connection = handle

    def submit(
        self,
        job: Job,
        *,
        job_id: UUID | None = None,
        run_at: datetime | None = None,
        run_in: timedelta | None = None,
        priority: int | None = None,
        deadline: datetime | None = None,
        on_duplicate: OnDuplicate = "existing",
    ) -> Receipt:
        """Submit a job that exists only if this block commits, under this attempt's lease."""
        options: dict[str, Any] = {"job_id": job_id, "run_at": run_at, "run_in": run_in, "priority": priority}
        return _submit(self.connection, job, deadline=deadline, on_duplicate=on_duplicate, **options)


class AsyncSessionTransaction(Staged, Generic[S]):
    """The block's transaction on a SQLAlchemy `AsyncSession`."""

    def __init__(self, lease: Lease, handle: S) -> None:
        super().__init__(lease)
        self.session = handle

    async def submit(
        self,
        job: Job,
        *,
        job_id: UUID | None = None,
        run_at: datetime | None = None,
        run_in: timedelta | None = None,
        priority: int | None = None,
        deadline: datetime | None = None,
        on_duplicate: OnDuplicate = "existing",
    ) -> Receipt:
        """Submit a job that exists only if this block commits, under this attempt's lease."""
        options: dict[str, Any] = {"job_id": job_id, "run_at": run_at, "run_in": run_in, "priority": priority}
        return await _asubmit(self.session, job, deadline=deadline, on_duplicate=on_duplicate, **options)


class AsyncConnectionTransaction(Staged, Generic[C]):
    """The block's transaction on a SQLAlchemy `AsyncConnection` or a psycopg `AsyncConnection`."""

    def __init__(self, lease: Lease, handle: C) -> None:
        super().__init__(lease)
        self.connection = handle

    async def submit(
        self,
        job: Job,
        *,
        job_id: UUID | None = None,
        run_at: datetime | None = None,
        run_in: timedelta | None = None,
        priority: int | None = None,
        deadline: datetime | None = None,
        on_duplicate: OnDuplicate = "existing",
    ) -> Receipt:
        """Submit a job that exists only if this block commits, under this attempt's lease."""
        options: dict[str, Any] = {"job_id": job_id, "run_at": run_at, "run_in": run_in, "priority": priority}
        return await _asubmit(self.connection, job, deadline=deadline, on_duplicate=on_duplicate, **options)


def _submit(target: Any, job: Job, **options: Any) -> Receipt:
    receipt: Receipt = submit(target, job, **options)
    return receipt


async def _asubmit(target: Any, job: Job, **options: Any) -> Receipt:
    receipt: Receipt = await submit(target, job, **options)
    return receipt


def _transaction_of(unit: Unit, lease: Lease) -> Staged:
    if isinstance(unit, OwnUnit):
        return unit.stage(lease)
    if hasattr(unit.handle, "flush"):
        return SessionTransaction(lease, unit.handle)
    return ConnectionTransaction(lease, unit.handle)


def _async_transaction_of(
    unit: AsyncUnit, lease: Lease
) -> "AsyncSessionTransaction[Any] | AsyncConnectionTransaction[Any]":
    if hasattr(unit.handle, "flush"):
        return AsyncSessionTransaction(lease, unit.handle)
    return AsyncConnectionTransaction(lease, unit.handle)


@contextmanager
def open_transaction(lease: Lease, desk: Desk, source: object) -> Iterator[Any]:
    """The block of a plain def handler. See `Attempt.transaction`."""
    lease.require()
    paused = False
    unit = None
    try:
        # First: waiting for a pool that is dry takes as long as it takes, and the lease is renewed meanwhile.
        unit = source if isinstance(source, OwnUnit) else open_unit(source)
        unit.connect()
        lease.pause_beats()
        paused = True
        while lease.beating:
            time.sleep(_BEAT_POLL_S)
        tx = _transaction_of(unit, lease)
        stack = unit.stack if isinstance(unit, OwnUnit) else stack_of(unit.handle)
        if isinstance(stack, AsyncStack):
            raise ConnectionUnsupported("a plain def handler needs a synchronous source")
        tx._begun(stack.run(tx._begin(desk.installation)))
        if not tx._above_read_committed:
            lease.resume_beats()
            paused = False
        begun = unit.token()
        yield tx
        tx._same(begun, unit.token())
        unit.flush()
        lease.settling = tx._completes
        tx._ended(stack.run(tx._end()))
        try:
            reach("transaction.committing")
            unit.commit()
            reach("transaction.committed")
        except Exception as error:
            if not (tx._completes and desk.committed_from_thread(lease)):
                raise
            log.warning(
                "COMMIT was not answered, but took effect",
                job_id=str(lease.job_id),
                error=type(error).__name__,
            )
        tx._committed()
    except BaseException:
        if unit is not None:
            # A connection that is gone has rolled back; its error would hide the one that matters.
            with contextlib.suppress(Exception):
                unit.rollback()
        raise
    finally:
        lease.settling = False
        if paused:
            lease.resume_beats()
        if unit is not None:
            with contextlib.suppress(Exception):
                unit.close()


@asynccontextmanager
async def open_async_transaction(lease: Lease, desk: Desk, source: object) -> AsyncIterator[Any]:
    """The block of an async handler. See `AsyncAttempt.transaction`."""
    lease.require()
    paused = False
    unit = None
    try:
        # First: waiting for a pool that is dry takes as long as it takes, and the lease is renewed meanwhile.
        unit = await open_async_unit(source)
        await unit.connect()
        lease.pause_beats()
        paused = True
        while lease.beating:  # noqa: ASYNC110 (the flag is another thread's; a beat takes milliseconds)
            await asyncio.sleep(_BEAT_POLL_S)
        tx = _async_transaction_of(unit, lease)
        stack = stack_of(unit.handle)
        if not isinstance(stack, AsyncStack):
            raise ConnectionUnsupported("an async handler needs an asynchronous source")
        tx._begun(await stack.arun(tx._begin(desk.installation)))
        if not tx._above_read_committed:
            lease.resume_beats()
            paused = False
        begun = unit.token()
        yield tx
        tx._same(begun, unit.token())
        await unit.flush()
        lease.settling = tx._completes
        tx._ended(await stack.arun(tx._end()))
        try:
            reach("transaction.committing")
            await unit.commit()
            reach("transaction.committed")
        except Exception as error:
            if not (tx._completes and await desk.committed(lease)):
                raise
            log.warning(
                "COMMIT was not answered, but took effect",
                job_id=str(lease.job_id),
                error=type(error).__name__,
            )
        tx._committed()
    except BaseException:
        if unit is not None:
            # A connection that is gone has rolled back; its error would hide the one that matters.
            with contextlib.suppress(Exception):
                await unit.rollback()
        raise
    finally:
        lease.settling = False
        if paused:
            lease.resume_beats()
        if unit is not None:
            with contextlib.suppress(Exception):
                await unit.close()
