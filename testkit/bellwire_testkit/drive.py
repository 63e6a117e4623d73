"""One relay and one consumer of an app, driven pass by pass in this process until nothing moves any more.

The real daemons' own loops and statements, without their pacing: a pass looks at everything once and waits
for nothing, so "nothing is due" can be seen (two passes that changed no row) instead of waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bellwire_consumer.app import App
from bellwire_consumer.daemon import Consumer
from bellwire_consumer.settings import ConsumerSettings
from bellwire_consumer.settler import Ended
from bellwire_relay.daemon import Relay
from bellwire_relay.settings import RelaySettings

STILL = 2
"""Passes without a change after which nothing will change: what one pass made possible the next one does."""


@dataclass(frozen=True, slots=True)
class Drive:
    """Both daemons, ready to be driven."""

    relay: Relay
    consumer: Consumer
    conn: psycopg.Connection[Any]

    async def step(self, *, only: UUID | None = None) -> list[Ended]:
        """One pass of both; `only` lets the consumer take no other job."""
        await self.relay.run_once()
        return await self.consumer.run_once(ids=None if only is None else [only])

    async def job(self, job_id: UUID) -> Ended | None:
        """Until one attempt of this job has ended; None where it stands still without one."""
        still, before = 0, self._state()
        while still < STILL:
            for ended in await self.step(only=job_id):
                return ended
            after = self._state()
            still, before = (still + 1 if after == before else 0), after
        return None

    async def all(self) -> AsyncIterator[Sequence[Ended]]:
        """Until nothing is due; answers the attempts of each pass as they ended."""
        still, before = 0, self._state()
        while still < STILL:
            ended = await self.step()
            after = self._state()
            still, before = (still + 1 if not ended and after == before else 0), after
            yield ended

    def _state(self) -> list[tuple[Any, ...]]:
        jobs = self.conn.execute(
            "SELECT state, count(*), sum(attempt), sum(generation) FROM bellwire.job GROUP BY 1 ORDER BY 1"
        ).fetchall()
        wakeups = self.conn.execute("SELECT count(*), count(admitted_at) FROM bellwire.outbox").fetchall()
        return [*jobs, *wakeups]


@contextlib.asynccontextmanager
async def drive(
    app: App[Any], url: str, conn: psycopg.Connection[Any], *, slots: int
) -> AsyncIterator[Drive]:
    """A fresh relay and consumer on the database at `url`; `conn` is a superuser's, in autocommit."""
    bury(conn)
    relay = Relay(
        RelaySettings(
            database_url=_as_role(url, "bellwire_relay"),
            listen_url="off",
            # The clock is moved on purpose here; a lease that ran out by it is not an outage.
            relay_recover_wait=timedelta(0),
        )
    )
    try:
        settings = ConsumerSettings(
            database_url=_as_role(url, "bellwire_consumer"), listen_url="off", slots=slots
        )
        async with Consumer(app, settings) as consumer:
            yield Drive(relay, consumer, conn)
    finally:
        await relay.close()


def bury(conn: psycopg.Connection[Any]) -> None:
    """Give back what killed relays and consumers still hold in the registries; they own nothing else."""
    for relay, token in conn.execute("SELECT DISTINCT relay, token FROM bellwire.kind_owner").fetchall():
        conn.execute("SELECT bellwire.disown(%s, %s)", (relay, token))
    for (consumer,) in conn.execute("SELECT id FROM bellwire.consumer").fetchall():
        conn.execute("SELECT bellwire.forget_consumer(%s)", (consumer,))


@cache
def _as_role(url: str, role: str) -> str:
    """The address as the daemon's own role, with its rights and settings, where the server lets it in."""
    parts: dict[str, Any] = {**conninfo_to_dict(url), "user": role}
    parts.pop("password", None)
    candidate = make_conninfo(**parts)
    try:
        psycopg.connect(candidate, connect_timeout=5).close()
    except psycopg.OperationalError:
        return url
    return candidate
