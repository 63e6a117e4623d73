"""What the relay publishes, to whom, and in which shape; on a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from bellwire_relay.daemon import Relay
from bellwire_runtime.broker.topology import ARGUMENTS
from bellwire_testkit.databases import Database
from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until_async
from tests.integration.relay_stage import Conn, Muscle, add_kind, relay_on, submit


@asynccontextmanager
async def publishing(database: Database, amqp_url: str, **changes: Any) -> AsyncIterator[Relay]:
    """A relay with all its loops going, in this process, with the broker found."""
    stop = asyncio.Event()
    async with relay_on(database, **{"amqp_url": amqp_url, **changes}) as relay:
        task = asyncio.ensure_future(relay.run(stop))
        try:
            assert relay.publisher is not None
            publisher = relay.publisher
            await wait_until_async(lambda: publisher.well, describe="the broker to be found")
            yield relay
        finally:
            stop.set()
            if relay.listener is not None:
                await relay.listener.close()
            await asyncio.wait_for(task, 10)


def installation(conn: Conn) -> UUID:
    row = conn.execute("SELECT id FROM bellwire.installation").fetchone()
    assert row is not None
    return UUID(str(row[0]))


async def test_a_job_is_a_hint_with_its_id(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    add_kind(conn)
    Muscle(conn, slots=10).beat()
    async with publishing(database, amqp_url):
        (job,) = submit(conn)
        name = f"bellwire.{installation(conn)}.work.v1"
        state = await asyncio.to_thread(amqp_admin.wait_for_queue, name, depth=1)
        assert state.arguments == ARGUMENTS
        (body,) = amqp_admin.take(name)
        assert json.loads(body) == {
            "installation": str(installation(conn)),
            "kind": "work",
            "version": 1,
            "ids": [job.hex],
        }
