"""One channel, whatever happens: many publishes and many reconnects leave nothing behind (B36)."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest

from bellwire_relay.publishing import Publisher
from bellwire_runtime.broker.address import BrokerAddress
from bellwire_runtime.telemetry import Telemetry
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until_async


class Counted(Telemetry):
    """Counts what became of hints."""

    def __init__(self) -> None:
        super().__init__(component="relay", instance="test")
        self.results: dict[str, int] = {}

    def published(self, result: Any, count: int = 1) -> None:
        self.results[result] = self.results.get(result, 0) + count

    @property
    def answered(self) -> int:
        return sum(self.results.values())


async def _publish(publisher: Publisher, counted: Counted, hints: int, ids: list[UUID]) -> None:
    """So many hints with one id each, at most 500 unanswered."""
    sent = counted.answered
    for _ in range(hints):
        publisher.offer("work", 1, ids, least=1, hearers=1)
        sent += 1
        if sent - counted.answered > 500:
            await wait_until_async(
                lambda sent=sent: sent - counted.answered <= 400,  # type: ignore[misc]
                deadline=60,
                describe="answers to come",
            )
    await wait_until_async(lambda: counted.answered == sent, deadline=60, describe="all to be answered")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_publishes_and_reconnects_leave_nothing_behind(
    amqp_url: str, amqp_proxy_url: str, amqp_proxy: Proxy, amqp_admin: Admin
) -> None:
    amqp_admin.set_policy({"max-length": 10, "overflow": "drop-head"})
    counted = Counted()
    publisher = Publisher(address=BrokerAddress(url=amqp_proxy_url, timeout=5.0), telemetry=counted)
    publisher.owner._cap = 0.2
    publisher.installation = uuid4()
    publisher.start()
    ids = [uuid4()]
    process = psutil.Process()
    try:
        await wait_until_async(lambda: publisher.well, describe="the broker")
        await _publish(publisher, counted, 2000, ids)
        gc.collect()
        tasks, before = len(asyncio.all_tasks()), process.memory_info().rss
        await _publish(publisher, counted, 20_000, ids)
        for n in range(40):
            connects = publisher.owner.connects
            for _ in range(20):
                publisher.offer("work", 1, ids, least=1, hearers=1)
            amqp_proxy.cut()
            await wait_until_async(
                lambda connects=connects: publisher.owner.connects > connects and publisher.well,  # type: ignore[misc]
                deadline=20,
                describe=f"connection {n}",
            )
        await _publish(publisher, counted, 100, ids)
        gc.collect()
        grown = process.memory_info().rss - before
        assert grown < 20 * 1024 * 1024, f"{grown / 1e6:.1f} MB"
        assert len(asyncio.all_tasks()) <= tasks + 2
        assert publisher._ids == 0
        await wait_until_async(
            lambda: asyncio.to_thread(_one_channel, amqp_admin), deadline=20, describe="one channel"
        )
    finally:
        await publisher.close()
        counted.close()
    await wait_until_async(
        lambda: asyncio.to_thread(lambda: not amqp_admin.connections()), deadline=20, describe="no connection"
    )


def _one_channel(admin: Admin) -> bool:
    return len(admin.connections()) == 1 and admin.channel_count() == 1
