"""Ends the session that keeps an expired job.

A half-open owner holds its row locks for as long as the operating system believes in it, and recovery, which
skips locked rows, would wait as long. Who holds a row is known only while somebody waits for it, so one
connection waits briefly and the other asks what it waits for. Only our own sessions are ended: a daemon's, or
one that `attempt.transaction` has marked.
"""

import asyncio
from datetime import timedelta

import structlog

from bellwire_relay import server_calls
from bellwire_relay.ownership import Ownership
from bellwire_runtime.database import SupervisedConnection

__all__ = ["EvictLoop"]

log = structlog.get_logger("bellwire.relay")
_LOOKS = 8
_LOOK_EVERY_S = 0.05


class EvictLoop:
    """Looks for leases that have been over for longer than a lease lasts, and were not taken back."""

    name = "evict"

    def __init__(
        self,
        *,
        waiting: SupervisedConnection,
        asking: SupervisedConnection,
        ownership: Ownership,
        over: timedelta = timedelta(seconds=30),
        every: float = 10.0,
        limit: int = 10,
    ) -> None:
        self._waiting = waiting
        self._asking = asking
        self._ownership = ownership
        self._over = over
        self._every = every
        self._limit = limit

    async def run_once(self) -> float | None:
        if self._ownership.rest:
            await self.sweep()
        return self._every

    async def sweep(self) -> int:
        """How many sessions were ended."""
        jobs = await self._waiting.run(
            lambda conn: server_calls.overdue(conn, over=self._over, limit=self._limit)
        )
        ended = 0
        for job in jobs:
            waiter = asyncio.ensure_future(
                self._waiting.run(lambda conn, job=job: server_calls.await_row(conn, job=job))  # type: ignore[misc]
            )
            try:
                for _ in range(_LOOKS):
                    await asyncio.sleep(_LOOK_EVERY_S)
                    if waiter.done():
                        break
                    holders = await self._asking.run(server_calls.evict)
                    for holder in holders:
                        log.warning(
                            "an expired job is held by a session",
                            job_id=str(job),
                            pid=holder.pid,
                            application=holder.application_name,
                            ended=holder.ended,
                        )
                    if holders:
                        ended += sum(holder.ended for holder in holders)
                        break
            finally:
                await asyncio.wait([waiter])
            # Whether the row came free is seen by the next recovery; only a lost connection is news.
            waiter.result()
        return ended
