"""A broker without memory or disk: nobody waits for it, everybody is told, and it ends by itself (B13)."""

from __future__ import annotations

import asyncio
import time

import pytest

from bellwire_testkit.databases import Database
from bellwire_testkit.rabbitmq import RabbitServer
from bellwire_testkit.waiting import wait_until_async
from tests.conftest import vhost_of
from tests.integration.publish_stage import bell_on
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit


@pytest.mark.parametrize("alarm", ["memory", "disk"])
async def test_while_blocked_consumers_are_notified_and_then_everything_goes_out(
    database: Database,
    conn: Conn,
    own_rabbitmq: RabbitServer,
    own_amqp_url: str,
    alarm: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    switch = own_rabbitmq.alarm if alarm == "memory" else own_rabbitmq.disk_alarm
    admin = own_rabbitmq.admin.at(vhost_of(own_amqp_url))
    add_kind(conn)
    muscle = Muscle(conn, slots=1000).beat()
    with database.connect() as ears:
        ears.execute(f"LISTEN bellwire_{muscle.id.hex}".encode())
        async with bell_on(database, conn, own_amqp_url, admin) as bell:
            first = submit(conn)
            await bell.hints(first)
            await asyncio.to_thread(switch, True)
            # The broker blocks who publishes, so the first hint finds out.
            second = submit(conn)
            started = time.monotonic()
            error = await bell.unwell()
            assert time.monotonic() - started < 2.0
            assert "blocked" in error
            assert "alarm" in (bell.publisher.down or "")
            gauge = bell.relay.telemetry.registry.get_sample_value(
                "bellwire_broker_blocked", {"connection": "relay"}
            )
            assert gauge == 1.0
            third = submit(conn, count=50)
            heard = await asyncio.to_thread(lambda: list(ears.notifies(timeout=5, stop_after=1)))
            assert len(heard) == 1, "consumers are told by the database meanwhile"
            await wait_until_async(
                lambda: bell.said()[0] is False and "blocked" in (bell.said()[1] or ""),
                describe="its row to say so",
            )
            assert bell.counted("dropped") > 0
            assert len(admitted(conn)) == 52, "admission goes on"
            assert bell.counted("timed_out") == 0
            assert bell.publisher.owner.connects == 1, "the connection is as good as another"
            await asyncio.to_thread(switch, False)
            muscle.beat()
            await bell.well()
            await bell.hints([*second, *third], alive=[muscle])
            assert bell.publisher.down is None
    output = capsys.readouterr().out
    assert output.count("broker blocks us") == 1
    assert output.count("broker takes hints again") == 1


async def test_a_broker_that_is_blocked_when_it_is_found_is_waited_for(
    database: Database, conn: Conn, own_rabbitmq: RabbitServer, own_amqp_url: str
) -> None:
    admin = own_rabbitmq.admin.at(vhost_of(own_amqp_url))
    add_kind(conn)
    muscle = Muscle(conn, slots=10).beat()
    own_rabbitmq.alarm(True)
    async with bell_on(database, conn, own_amqp_url, admin, wait=False) as bell:
        await wait_until_async(lambda: bell.publisher.blocked, describe="the block to be seen")
        jobs = submit(conn)
        await wait_until_async(lambda: bell.counted("dropped") == 1, describe="the offer to be dropped")
        # Longer than any deadline of one wait: a block is no lost broker.
        seen = time.monotonic()
        await wait_until_async(lambda: time.monotonic() - seen > 3.0, describe="three seconds")
        assert bell.publisher.blocked
        assert bell.publisher.owner.connects == 1
        await asyncio.to_thread(own_rabbitmq.alarm, False)
        await bell.hints(jobs, alive=[muscle])
        assert bell.publisher.owner.connects == 1


async def test_a_long_block_is_outlived(
    database: Database, conn: Conn, own_rabbitmq: RabbitServer, own_amqp_url: str
) -> None:
    """Longer than either side waits for heartbeats: the broker pauses its own, and sends them on."""
    admin = own_rabbitmq.admin.at(vhost_of(own_amqp_url))
    add_kind(conn)
    muscle = Muscle(conn, slots=10).beat()
    async with bell_on(database, conn, own_amqp_url, admin, amqp_heartbeat=1) as bell:
        await bell.hints(submit(conn))
        await asyncio.to_thread(own_rabbitmq.alarm, True)
        jobs = submit(conn)
        await bell.unwell()
        seen = time.monotonic()
        await wait_until_async(
            lambda: time.monotonic() - seen > 8.0, deadline=12, describe="more than six heartbeats"
        )
        assert bell.publisher.blocked
        await asyncio.to_thread(own_rabbitmq.alarm, False)
        await bell.hints(jobs, alive=[muscle])
        assert bell.publisher.owner.connects == 1
