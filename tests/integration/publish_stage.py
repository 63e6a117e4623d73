"""A relay that publishes, in this process, and what its broker got from it.

Consumers are `Muscle`s, which hear nothing, so that every hint stays in its queue until the test takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bellwire_relay.daemon import Relay
from bellwire_relay.publishing import Publisher
from bellwire_runtime.broker.topology import queue_name
from bellwire_testkit.databases import Database
from bellwire_testkit.rabbitmq import Admin, AdminRefused
from bellwire_testkit.waiting import wait_until_async
from tests.integration.relay_stage import Conn, Muscle, relay_on

TIMEOUT = 2.0
"""Seconds for one wait for the broker, in these tests."""


@dataclass(frozen=True)
class Hint:
    """One hint, taken from its queue."""

    ids: tuple[UUID, ...]
    properties: dict[str, Any]
    body: dict[str, Any]


class Bell:
    """A running relay, its publisher, and the queue of one kind and version."""

    def __init__(self, relay: Relay, conn: Conn, admin: Admin) -> None:
        assert relay.publisher is not None
        assert relay.repeating is not None
        self.relay = relay
        self.publisher: Publisher = relay.publisher
        self.repeating = relay.repeating
        self.conn = conn
        self.admin = admin
        row = conn.execute("SELECT id FROM bellwire.installation").fetchone()
        assert row is not None
        self.installation = UUID(str(row[0]))

    def queue(self, kind: str = "work", version: int = 1) -> str:
        return queue_name(self.installation, kind, version)

    async def well(self, *, deadline: float = 15.0) -> None:
        await wait_until_async(
            lambda: self.publisher.well, deadline=deadline, describe=lambda: f"well; {self.publisher.down}"
        )

    async def unwell(self, *, deadline: float = 15.0) -> str:
        """Wait until it is not, and its connection's end is known; answers why."""
        await wait_until_async(
            lambda: self.publisher.blocked or self.publisher.owner.error,
            deadline=deadline,
            describe="publishing to stop",
        )
        return self.publisher.error or ""

    async def take(self, kind: str = "work", version: int = 1) -> list[Hint]:
        """All hints that are in the queue now, removed from it."""

        def get() -> list[Hint]:
            rows = self.admin.call(
                "POST",
                "queues",
                self.admin.vhost,
                self.queue(kind, version),
                "get",
                body={"count": 10_000, "ackmode": "ack_requeue_false", "encoding": "auto"},
            )
            return [_hint(row) for row in rows]

        return await asyncio.to_thread(get)

    async def hints(
        self,
        ids: Sequence[UUID],
        kind: str = "work",
        *,
        deadline: float = 15.0,
        alive: Sequence[Muscle] = (),
    ) -> list[Hint]:
        """Take hints until each of these ids was in one. `alive`: consumers that must beat meanwhile."""
        taken: list[Hint] = []

        async def all_there() -> bool:
            for muscle in alive:
                muscle.beat()
            with contextlib.suppress(AdminRefused):  # no queue, not yet or just now
                taken.extend(await self.take(kind))
            return set(ids) <= {job for hint in taken for job in hint.ids}

        await wait_until_async(
            all_there,
            deadline=deadline,
            describe=lambda: f"{len(ids)} ids in hints; there were {sum(len(h.ids) for h in taken)}",
        )
        return taken

    def counted(self, result: str) -> int:
        """Hints of this process with that result."""
        value = self.relay.telemetry.registry.get_sample_value(
            "bellwire_hint_published_total", {"result": result}
        )
        return int(value or 0)

    @property
    def confirmed(self) -> int:
        return self.counted("confirmed")

    def noted(self, kind: str = "work") -> dict[str, int]:
        """Publish errors that stand on wake-ups that are out, and on how many."""
        rows = self.conn.execute(
            "SELECT publish_error, count(*) FROM bellwire.outbox"
            " WHERE kind = %s AND admitted_at IS NOT NULL AND publish_error IS NOT NULL GROUP BY 1",
            (kind,),
        ).fetchall()
        return dict(rows)

    def said(self) -> tuple[bool | None, str | None]:
        """What its registry row says of its broker."""
        row = self.conn.execute(
            "SELECT broker_well, broker_error FROM bellwire.relay WHERE id = %s",
            (self.relay.identity.relay,),
        ).fetchone()
        return (None, None) if row is None else (row[0], row[1])


@asynccontextmanager
async def bell_on(
    database: Database, conn: Conn, amqp_url: str, admin: Admin, *, wait: bool = True, **changes: Any
) -> AsyncIterator[Bell]:
    """All loops of a relay going, and its broker found (with `wait`)."""
    stop = asyncio.Event()
    async with relay_on(database, **{"amqp_url": amqp_url, "amqp_timeout": TIMEOUT, **changes}) as relay:
        task = asyncio.ensure_future(relay.run(stop))
        bell = Bell(relay, conn, admin)
        try:
            if wait:
                await bell.well()
            await wait_until_async(lambda: relay.ownership.kinds, describe="kinds to serve")
            yield bell
        finally:
            stop.set()
            if relay.listener is not None:
                await relay.listener.close()
            await asyncio.wait_for(task, 10)


def _hint(row: dict[str, Any]) -> Hint:
    body = json.loads(row["payload"])
    return Hint(ids=tuple(UUID(job) for job in body["ids"]), properties=row["properties"], body=body)
