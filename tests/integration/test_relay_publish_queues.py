"""A queue of ours that was declared otherwise: its kind is mute, is named, and mends; the others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bellwire_runtime.broker.topology import ARGUMENTS
from bellwire_testkit.databases import Database
from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until_async
from tests.integration.publish_stage import bell_on
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit

OTHER: dict[str, Any] = {**ARGUMENTS, "x-delivery-limit": 7}


async def test_one_kind_is_mute_and_the_others_go_on(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("good", "bad", "fine"):
        add_kind(conn, kind)
    muscle = Muscle(conn, slots=100, lines=(("good", 1), ("bad", 1), ("fine", 1))).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        bell.publisher.queues._retry_after = 1.0
        amqp_admin.declare_queue(bell.queue("bad"), OTHER)
        bad, good, fine = submit(conn, "bad"), submit(conn, "good"), submit(conn, "fine")
        await bell.hints(good, "good")
        await bell.hints(fine, "fine")
        await wait_until_async(lambda: bell.publisher.queues.mutes, describe="the kind to be mute")
        assert bell.publisher.well
        assert not bell.publisher.rings, "consumers are notified, too"
        for words in (bell.queue("bad"), "x-delivery-limit", "20", "7"):
            assert words in (bell.publisher.down or "")
        await wait_until_async(
            lambda: "x-delivery-limit" in (bell.said()[1] or ""), describe="its row to say so"
        )
        assert bell.said()[0] is False
        await wait_until_async(lambda: bell.noted("bad"), describe="the wake-up to say so")
        assert all(error.startswith("refused: queue") for error in bell.noted("bad"))
        assert admitted(conn, "bad") == bad, "admission stands"
        assert bell.publisher.owner.connects == 1
        assert (await bell.take("bad")) == []
        # Mended by a person, it is found again by itself, and what waited goes out by age.
        amqp_admin.delete_queue(bell.queue("bad"))
        await wait_until_async(lambda: bell.publisher.rings, describe="the queue to be had")
        await bell.hints(bad, "bad", deadline=30, alive=[muscle])
        assert bell.publisher.down is None
    output = capsys.readouterr().out
    assert output.count("no hints for a queue") == 1
    assert output.count("queue can be used again") == 1


async def test_many_queues_are_declared_in_one_go(
    database: Database, conn: Conn, amqp_proxy_url: str, amqp_admin: Admin, amqp_proxy: Any
) -> None:
    """After a reconnect: the queues in use are declared before the first hint needs them."""
    kinds = [f"kind{n:02}" for n in range(30)]
    for kind in kinds:
        add_kind(conn, kind)
    Muscle(conn, slots=300, lines=[(kind, 1) for kind in kinds]).beat()
    async with bell_on(database, conn, amqp_proxy_url, amqp_admin) as bell:
        for kind in kinds:
            submit(conn, kind)
        await wait_until_async(lambda: bell.confirmed >= 30, describe="a hint of each kind")
        for kind in kinds:
            await asyncio.to_thread(amqp_admin.delete_queue, bell.queue(kind))
        amqp_proxy.cut()
        await wait_until_async(lambda: bell.publisher.owner.connects == 2, describe="a new connection")
        for kind in kinds:
            await bell.hints(admitted(conn, kind), kind)
        assert bell.counted("returned") == 0
