"""Writes endings: one call per edge and batch, and each attempt's slot comes back only when its ending is
written.

Batches are natural: what ends while a statement is in flight goes with the next one; no timer ever waits
for more. A call whose answer was lost is simply sent again, since an ending that is there already answers
`already`. A batch that the server refuses for its data is halved until the culprit stands alone, and that
one ends with a code of its own; so a bad row costs its neighbours a few statements, never their endings.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import structlog
from psycopg import errors as pg

from bellwire_consumer import server_calls
from bellwire_consumer.error_text import message_of
from bellwire_consumer.lease import Lease
from bellwire_consumer.outcome import Ending, Fail, Release, Retried, Snoozed, Stop, Succeed, Throttled
from bellwire_consumer.server_calls import Settled
from bellwire_consumer.slots import Slots
from bellwire_runtime.database import Connection, SupervisedConnection, is_transient
from bellwire_runtime.telemetry import Telemetry
from bellwire_schema.faultpoints import reach

__all__ = ["Ended", "Settler"]

log = structlog.get_logger("bellwire.consumer")
MAX_BATCH = 500
_BUSY_AGAIN_S = 0.05
_IDLE_S = 60.0
_OUTCOMES: dict[type[Any], str] = {
    Succeed: "succeeded",
    Retried: "retry",
    Throttled: "throttled",
    Snoozed: "snoozed",
    Fail: "failed",
    Stop: "stopped",
    Release: "released",
}

_DECIDED = {"failed": "failed", "cancelled": "stopped"}
_SETTLED = Settled(UUID(int=0), "settled", "succeeded")
_LOST = Settled(UUID(int=0), "lost", None)


class Ended(NamedTuple):
    """One attempt that ended here. `status` is settled, already, lost, or completed (in its own
    transaction)."""

    job_id: UUID
    attempt_id: UUID
    kind: str
    status: str
    state: str | None


class Settler:
    """A loop: each `run_once` settles what is pending."""

    name = "settle"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        slots: Slots,
        telemetry: Telemetry,
        rng: Callable[[], float] = random.random,
        on_ended: Callable[[Ended], None] | None = None,
    ) -> None:
        self._connection = connection
        self._slots = slots
        self._telemetry = telemetry
        self._rng = rng
        self._on_ended = on_ended
        self._pending: list[tuple[Lease, Ending]] = []
        self._busy: set[Lease] = set()
        self.on_pending: Callable[[], None] = _nothing
        self.lost = 0
        """How many attempts found their lease gone."""

    @property
    def empty(self) -> bool:
        """Nothing waits to be written."""
        return not self._pending and not self._busy

    def put(self, lease: Lease, ending: Ending) -> None:
        """Write this ending with the next batch."""
        self._pending.append((lease, ending))
        if len(self._pending) == 1:
            self.on_pending()

    def drop(self, lease: Lease, status: str) -> None:
        """Give the slot back without a word to the database: the attempt has ended there already."""
        if status == "lost":
            self.lost += 1
            self._telemetry.settled(lease.kind, "lost")
        else:
            self._telemetry.settled(lease.kind, "succeeded")
        self._close(lease, status, "succeeded" if status == "completed" else None)
        self._slots.freed()

    async def run_once(self) -> float | None:
        """Settle what is pending. Answers when to come again; `on_pending` may say sooner."""
        while self._pending:
            batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
            groups: dict[type[Any], list[tuple[Lease, Ending]]] = {}
            for item in batch:
                groups.setdefault(type(item[1]), []).append(item)
            try:
                for group in groups.values():
                    await self._settle(group)
            except BaseException:
                # Weather, or the end of this pass: what was not written stays to be written.
                self._pending[:0] = [i for i in batch if not i[0].settled and i[0] not in self._busy]
                raise
        return _IDLE_S

    async def _settle(self, items: list[tuple[Lease, Ending]]) -> None:
        """All of one edge. Returns when each is written, lost, or waits for a busy row."""
        while True:
            try:
                reach("consumer.settling")
                answers = await self._connection.run(lambda conn: self._send(conn, items))
                reach("consumer.settled")
            except (pg.DeadlockDetected, pg.SerializationFailure):
                await asyncio.sleep(self._rng() * 0.01)
            except Exception as error:
                if isinstance(error, pg.QueryCanceled) and len(items) > 1:
                    await self._halve(items)
                    return
                if is_transient(error):
                    raise
                await self._narrow(items, error)
                return
            else:
                self._file(items, answers)
                return

    async def _narrow(self, items: list[tuple[Lease, Ending]], error: Exception) -> None:
        if len(items) > 1:
            await self._halve(items)
            return
        ((lease, ending),) = items
        substitute = _substitute(ending, error)
        if substitute is None:
            # Not even a plain failure can be written: the lease runs out, and recovery takes the job up.
            log.error(
                "an ending cannot be written",
                kind=lease.kind,
                job_id=str(lease.job_id),
                error=message_of(error),
            )
            self._close(lease, "lost", None)
            self._slots.freed()
            return
        await self._settle([(lease, substitute)])

    async def _halve(self, items: list[tuple[Lease, Ending]]) -> None:
        middle = len(items) // 2
        await self._settle(items[:middle])
        await self._settle(items[middle:])

    async def _send(self, conn: Connection, items: Sequence[tuple[Lease, Any]]) -> list[Settled]:
        leases = [lease for lease, _ in items]
        endings: list[Any] = [ending for _, ending in items]
        match endings[0]:
            case Succeed():
                return await server_calls.succeed(conn, leases, endings)
            case Retried():
                return await server_calls.retry(conn, leases, endings, [self._rng() for _ in items])
            case Throttled():
                return await server_calls.throttle(conn, leases, endings)
            case Snoozed():
                return await server_calls.snooze(conn, leases, endings)
            case Fail():
                return await server_calls.fail(conn, leases, endings)
            case Stop():
                return await server_calls.stop(conn, leases, endings)
            case _:
                return await server_calls.release(conn, leases)

    def _file(self, items: list[tuple[Lease, Ending]], answers: list[Settled]) -> None:
        told = {answer.attempt_id: answer for answer in answers}
        succeeded = isinstance(items[0][1], Succeed)
        counts: Counter[tuple[str, str, str]] = Counter()
        for lease, ending in items:
            # Of successes only the exceptions are told.
            answer = told.get(lease.id, _SETTLED if succeeded else _LOST)
            if answer.status == "busy":
                self._busy.add(lease)
                asyncio.get_running_loop().call_later(_BUSY_AGAIN_S, self._again, lease, ending)
                continue
            if answer.status == "lost":
                self.lost += 1
                counts[lease.kind, "lost", ""] += 1
            elif succeeded:
                counts[lease.kind, "succeeded", ""] += 1
            else:
                # The edge itself decides whether a retry is one: budgets, deadline, cancel requests.
                outcome = _DECIDED.get(answer.state or "") or _OUTCOMES[type(ending)]
                counts[lease.kind, outcome, getattr(ending, "code", "")] += 1
            self._close(lease, answer.status, answer.state)
        self._slots.freed()
        for (kind, outcome, code), count in counts.items():
            self._telemetry.settled(kind, outcome, code, count)

    def _again(self, lease: Lease, ending: Ending) -> None:
        self._busy.discard(lease)
        self.put(lease, ending)

    def _close(self, lease: Lease, status: str, state: str | None) -> None:
        lease.settled = True
        self._slots.give_back(lease)
        if self._on_ended is not None:
            self._on_ended(Ended(lease.job_id, lease.id, lease.kind, status, state))


def _substitute(ending: Ending, error: Exception) -> Ending | None:
    """What the culprit of a batch ends with instead."""
    told = getattr(getattr(error, "diag", None), "sqlstate", None) or type(error).__name__
    if not isinstance(error, psycopg.Error | UnicodeError | ValueError | OverflowError):
        return None
    match ending:
        case Succeed(result=result) if result is not None:
            return Fail("result_invalid", "result_invalid", f"the database refused the result ({told})")
        case Retried(error_class=error_class, code=code, message=message) if message:
            return Retried(error_class, code, "")
        case Fail(error_class=error_class, code=code, message=message) if message:
            return Fail(error_class, code, "")
        case Throttled(code=code, message=message, delay=delay, scope=scope) if message:
            return Throttled(code, "", delay, scope)
        case Throttled(code=code):
            return Retried("retryable", code, f"the database refused the throttle ({told})")
        case Stop(message=message) if message:
            return Stop("")
        case Snoozed(code=code):
            return Retried("retryable", code, f"the database refused the snooze ({told})")
        case _:
            return None


def _nothing() -> None:
    pass
