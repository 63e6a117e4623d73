"""What belongs to no kind, done by the one relay that serves `*`: what is due, expired, out of step.

None of it needs the fence that admission needs: the guards are the jobs' own, so two relays in a take-over do
each thing once. Each pass is bounded, and one that came out full is followed by the next at once.
"""

import random
import time
from collections.abc import Callable
from uuid import UUID

import structlog

from bellwire_relay import server_calls
from bellwire_relay.ownership import Ownership
from bellwire_relay.server_calls import Recovered
from bellwire_runtime.database import SupervisedConnection
from bellwire_runtime.telemetry import Telemetry

__all__ = ["ExpireLoop", "MendLoop", "PromoteLoop", "RecoverLoop"]

log = structlog.get_logger("bellwire.relay")


class PromoteLoop:
    """scheduled → ready, when it is due: sleeps until then, and at most the floor."""

    name = "promote"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        ownership: Ownership,
        floor: float,
        batch: int,
        on_ready: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._ownership = ownership
        self._floor = floor
        self._batch = batch
        self._on_ready = on_ready

    async def run_once(self) -> float | None:
        if not self._ownership.rest:
            return self._floor
        promoted, due_in = await self.sweep()
        if promoted >= self._batch:
            return 0.0
        # A row that somebody holds stays due: without a least pause that would be a spin.
        return self._floor if due_in is None else min(self._floor, max(0.002, due_in))

    async def sweep(self) -> tuple[int, float | None]:
        """One batch: how many became ready, and seconds until the next is due."""
        answer = await self._connection.run(lambda conn: server_calls.promote(conn, limit=self._batch))
        if answer.promoted:
            self._on_ready()
        return answer.promoted, None if answer.due_in is None else answer.due_in.total_seconds()


class RecoverLoop:
    """Leases that have expired by the database's clock are taken back.

    Not before consumers have had a beat's time to renew, when this relay itself could not reach the database:
    an outage longer than a lease would else use up an attempt of every running job.
    """

    name = "recover"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        ownership: Ownership,
        telemetry: Telemetry,
        every: float,
        wait: float,
        batch: int,
        on_ready: Callable[[], None],
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._ownership = ownership
        self._telemetry = telemetry
        self._every = every
        self._wait = wait
        self._batch = batch
        self._on_ready = on_ready
        self._rng = rng or random.Random()  # noqa: S311 (jitter of backoff, no secret)
        self._clock = clock
        self._not_before = float("-inf")

    def server_started(self, ago: float) -> None:
        """The server has been up for `ago` seconds: less than the wait means that all were without it."""
        self._not_before = max(self._not_before, self._clock() - ago + self._wait)

    async def run_once(self) -> float | None:
        if not self._ownership.rest:
            return self._every
        back = self._connection.back_since
        left = max(self._not_before, float("-inf") if back is None else back + self._wait) - self._clock()
        if left > 0:
            return min(left, self._every)
        return 0.0 if len(await self.sweep()) >= self._batch else self._every

    async def sweep(self) -> list[Recovered]:
        """One batch, now."""
        randoms = [self._rng.random() for _ in range(32)]
        rows = await self._connection.run(
            lambda conn: server_calls.recover(conn, limit=self._batch, randoms=randoms)
        )
        for row in rows:
            self._telemetry.recovered(row.kind, row.outcome)
        if rows:
            consumers = {row.consumer for row in rows}
            log.warning("leases expired, jobs taken back", jobs=len(rows), consumers=len(consumers))
        if any(row.state == "ready" for row in rows):
            self._on_ready()
        return rows


class ExpireLoop:
    """Jobs that nobody started before their deadline fail with `deadline_exceeded`."""

    name = "expire"

    def __init__(
        self, *, connection: SupervisedConnection, ownership: Ownership, batch: int, every: float = 2.0
    ) -> None:
        self._connection = connection
        self._ownership = ownership
        self._batch = batch
        self._every = every

    async def run_once(self) -> float | None:
        if not self._ownership.rest:
            return self._every
        return 0.0 if await self.sweep() >= self._batch else self._every

    async def sweep(self) -> int:
        """One batch, now: how many."""
        rows = await self._connection.run(lambda conn: server_calls.expire(conn, limit=self._batch))
        return len(rows)


class MendLoop:
    """Job and wake-up held in step, both directions. It expects to find nothing, and says so when it does."""

    name = "mend"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        ownership: Ownership,
        on_ready: Callable[[], None],
        every: float = 5.0,
        batch: int = 1000,
    ) -> None:
        self._connection = connection
        self._ownership = ownership
        self._on_ready = on_ready
        self._every = every
        self._batch = batch
        self._after: UUID | None = None
        self._wakeup_after: UUID | None = None
        self.orphans = 0
        self.missing = 0

    async def run_once(self) -> float | None:
        if self._ownership.rest:
            await self.sweep()
        return self._every

    async def sweep(self) -> int:
        """One step of the walk: how many rows were out of step."""
        after, wakeup_after = self._after, self._wakeup_after
        found = await self._connection.run(
            lambda conn: server_calls.mend(conn, after=after, wakeup_after=wakeup_after, limit=self._batch)
        )
        self._after, self._wakeup_after = found.position, found.wakeup_position
        self.orphans += found.orphans
        self.missing += found.missing
        if found.orphans or found.missing:
            log.error(
                "jobs and wake-ups were out of step, mended",
                wakeups_without_job=found.orphans,
                jobs_without_wakeup=found.missing,
            )
        if found.missing:
            self._on_ready()
        return found.orphans + found.missing
