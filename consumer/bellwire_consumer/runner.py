"""Runs one attempt from the claimed row to its ending, and never lets anything out of it but an ending.

Whatever a payload, a hook or a handler does, the attempt ends exactly once: by what the handler did, or by
the reason for which it was stopped. The lease is renewed all the while by another thread, decoding and
hooks included.
"""

import asyncio
import json
import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import ValidationError

from bellwire_consumer.app import Hook
from bellwire_consumer.attempt import AnyAttempt, AsyncAttempt, Attempt
from bellwire_consumer.error_text import message_of, place_of, storable
from bellwire_consumer.forked import end_if_forked
from bellwire_consumer.handler import Handler
from bellwire_consumer.lease import Lease
from bellwire_consumer.outcome import RELEASED, SUCCEEDED, Ending, Fail, Retried, Stop, Succeed, judge
from bellwire_consumer.server_calls import Claimed
from bellwire_consumer.settler import Settler
from bellwire_consumer.slots import Slots
from bellwire_consumer.strict_json import encode
from bellwire_consumer.threads import Threads
from bellwire_consumer.transaction import Desk
from bellwire_consumer.watch import Watch
from bellwire_outbox.payload import decode
from bellwire_outbox.refusals import payload_invalid
from bellwire_schema.errors import JobCancelled, LeaseLost, PayloadInvalid

__all__ = ["Plan", "Runner"]

log = structlog.get_logger("bellwire.consumer")
_DEBUG = logging.getLogger("bellwire.consumer")


class Undecodable(Exception):
    """Wraps why a payload is none of its class; apart from what a handler itself may raise of the same
    type."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A handler, and what is entered around it, outermost first."""

    handler: Handler
    hooks: tuple[Hook, ...]


class Runner:
    """Starts attempts on the running event loop."""

    def __init__(
        self,
        *,
        plans: Mapping[str, Plan],
        deps: Any,
        desk: Desk,
        slots: Slots,
        settler: Settler,
        threads: Threads,
        tell_failures: bool = False,
    ) -> None:
        self._plans = plans
        self._deps = deps
        self._desk = desk
        self._slots = slots
        self._settler = settler
        self._threads = threads
        self._tell_failures = tell_failures
        self._pid = os.getpid()
        self.watch = Watch(slots=slots, abandon=self.abandon)

    def start(self, rows: Sequence[Claimed], *, sent: float) -> None:
        """An attempt for each row of a claim that was sent at `sent` (monotonic)."""
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        for row in rows:
            lease = Lease(row, handler=self._plans[row.kind], sent=sent, now=now)
            self._slots.take(lease)
            if now >= lease.expires:
                # The answer took longer than the lease: somebody else may have the job by now.
                self._end(lease, RELEASED)
                continue
            lease.task = loop.create_task(self._attempt(lease))
            self.watch.add(lease)

    async def _attempt(self, lease: Lease) -> None:
        try:
            ending = await self._run(lease)
        except BaseException as error:  # noqa: BLE001 (SystemExit too ends its attempt, not the process)
            ending = self._ending_of(lease, error)
        end_if_forked(self._pid)
        self._end(lease, ending)

    async def _run(self, lease: Lease) -> Ending:
        plan: Plan = lease.handler
        handler = plan.handler
        attempt: AnyAttempt
        if handler.is_async:
            attempt = AsyncAttempt(lease, deps=self._deps, desk=self._desk)
        else:
            attempt = Attempt(lease, deps=self._deps, desk=self._desk)
        if plan.hooks:
            result = await _around(plan.hooks, attempt, lambda: self._call(lease, handler, attempt))
        else:
            result = await self._call(lease, handler, attempt)
        return SUCCEEDED if result is None else Succeed(encode("result", result))

    async def _call(self, lease: Lease, handler: Handler, attempt: AnyAttempt) -> Any:
        row: Claimed = lease.row
        try:
            job = _decoded(handler, row)
        except Exception as error:
            raise Undecodable from error
        if handler.is_async:
            return await handler.function(job, attempt)
        return await self._threads.run(handler.function, job, attempt)

    def _ending_of(self, lease: Lease, error: BaseException) -> Ending:
        try:
            ending = self._judged(lease, error)
        except BaseException:  # noqa: BLE001 (an error that raises when it is looked at ends its attempt too)
            ending = Retried("unknown", "unreadable_error", "the error itself raised when it was read")
        if isinstance(ending, Retried | Fail):
            self._tell(lease, ending, error)
        return ending

    def _tell(self, lease: Lease, ending: Retried | Fail, error: BaseException) -> None:
        debug = _DEBUG.isEnabledFor(logging.DEBUG)
        if not (debug or self._tell_failures):
            return
        told = {"kind": lease.kind, "job_id": str(lease.job_id), "attempt": lease.row.attempt}
        told["place"] = place_of(error)
        if debug:
            # Where, and the bounded text: a traceback would carry the exception's whole text, however long.
            told["where"] = "".join(traceback.format_tb(error.__traceback__, limit=-5))
        log.warning("attempt failed", **told, code=ending.code, error=ending.message)

    def _judged(self, lease: Lease, error: BaseException) -> Ending:
        message = message_of(error)
        match lease.gone:
            case "timed_out" | "stalled" as limit:
                told = "" if isinstance(error, asyncio.CancelledError) else f": {message}"
                return Retried(limit, limit, storable(f"{_LIMITS[limit]}{told}"))
            case "outlived":
                # Again at once would be the same again, so it uses up an attempt and says what to do.
                return Retried("lease_lost", LeaseLost.code, storable(_OUTLIVED.format(lease.seconds)))
            case "interrupted":
                return Stop("interrupted by the cancel request")
            case "expired" | "released" | "lost":
                return RELEASED
        match error:
            case Undecodable():
                return Fail("payload_invalid", PayloadInvalid.code, message_of(error.__cause__ or error))
            case JobCancelled() if lease.cancel is None:
                return Retried("unknown", JobCancelled.code, message)
        return judge(error, lease.handler.handler.errors, cancel_requested=lease.cancel is not None)

    def _end(self, lease: Lease, ending: Ending) -> None:
        if lease.ended:
            return
        lease.ended = True
        lease.task = None
        if lease.settled:
            if not isinstance(ending, Succeed):
                log.warning(
                    "the handler failed after its transaction had completed the job",
                    kind=lease.kind,
                    job_id=str(lease.job_id),
                    ending=type(ending).__name__,
                )
            self._settler.drop(lease, "completed")
        elif lease.gone == "lost":
            self._settler.drop(lease, "lost")
        else:
            self._settler.put(lease, ending)

    def abandon(self, lease: Lease) -> None:
        if lease.ended:
            return
        log.warning(
            "a cancelled handler does not end; its slot goes to another",
            kind=lease.kind,
            job_id=str(lease.job_id),
        )
        self._end(lease, self._ending_of(lease, asyncio.CancelledError()))


def _decoded(handler: Handler, row: Claimed) -> Any:
    text = row.payload
    if text is None:
        raise PayloadInvalid("payload", "was purged, and cannot be run any more", kind=row.kind)
    if row.version != handler.version:
        return decode(handler.job_class, json.loads(text), version=row.version)
    # The way of nearly all: straight from the text, without a tree in between.
    try:
        return handler.job_class.model_validate_json(text)
    except ValidationError as error:
        raise payload_invalid(error, kind=row.kind) from None


_OUTLIVED = (
    "a transaction above READ COMMITTED outlived the lease of {:.0f} s, which no heartbeat can renew "
    "meanwhile: keep it shorter, use READ COMMITTED, or declare a longer lease="
)
_LIMITS = {
    "timed_out": "the attempt's time was over",
    "stalled": "the attempt reported no progress for too long",
}


async def _around(hooks: Sequence[Hook], attempt: AnyAttempt, call: Callable[[], Awaitable[Any]]) -> Any:
    failure: BaseException | None = None
    result: Any = None
    async with AsyncExitStack() as stack:
        for hook in hooks:
            context: Any = hook(attempt)
            if hasattr(context, "__aenter__"):
                await stack.enter_async_context(context)
            else:
                stack.enter_context(context)
        try:
            result = await call()
        except BaseException as error:
            failure = error
            raise
    if failure is not None:
        # A hook may look at the error, but not make it a success.
        raise failure
    return result
