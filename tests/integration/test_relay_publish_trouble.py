"""Whatever becomes of a hint: the admission stands, the trouble is told, and it goes out again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from bellwire_relay import queues
from bellwire_testkit.databases import Database
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until_async
from tests.integration.publish_stage import bell_on
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit


async def test_a_deleted_queue_is_declared_anew_and_the_hint_goes_out_once_more(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    add_kind(conn)
    Muscle(conn, slots=100).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        await bell.hints(submit(conn))
        await asyncio.to_thread(amqp_admin.delete_queue, bell.queue())
        jobs = [submit(conn)[0] for _ in range(20)]
        hints = await bell.hints(jobs)
        assert 1 <= bell.counted("returned") <= len(hints)
        await wait_until_async(lambda: bell.confirmed == 1 + len(hints), describe="all to be confirmed")
        assert bell.publisher.owner.connects == 1
        assert len(admitted(conn)) == 21
        assert bell.noted() == {}


async def test_a_second_return_is_trouble(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is gone again as soon as it was declared."""
    add_kind(conn)
    Muscle(conn, slots=100).beat()

    async def in_vain(*_: Any, **__: Any) -> None: ...

    monkeypatch.setattr(queues, "declare", in_vain)
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        jobs = [submit(conn)[0] for _ in range(5)]
        await wait_until_async(lambda: sum(bell.noted().values()) == 5, describe="the trouble to be told")
        assert set(bell.noted()) == {"returned: no queue"}
        assert bell.counted("returned") in {2 * n for n in range(1, 6)}, "each hint twice"
        assert bell.confirmed == 0
        assert set(admitted(conn)) == set(jobs), "admission stands"
        assert bell.publisher.well


async def test_what_a_full_queue_refuses_is_told_and_repeated(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    """B23. A policy of the operator's: at most 3 hints, the rest refused with a nack."""
    add_kind(conn)
    muscle = Muscle(conn, slots=100).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        await asyncio.to_thread(amqp_admin.set_policy, {"max-length": 3, "overflow": "reject-publish"})
        await bell.hints(submit(conn))
        await wait_until_async(lambda: _policy(amqp_admin, bell.queue()), describe="the policy to apply")
        # The queue may take a few more than its bound, each hint alone.
        jobs = []
        for _ in range(20):
            (job,) = submit(conn)
            jobs.append(job)
            await wait_until_async(
                lambda: set(jobs) <= set(admitted(conn)), describe="the job to be admitted"
            )
        await wait_until_async(lambda: bell.counted("nacked") > 0, describe="a nack")
        await wait_until_async(lambda: bell.noted().get("nacked", 0) > 0, describe="the trouble to be told")
        assert set(jobs) <= set(admitted(conn)), "admission stands"
        # Taken, they make room, and age alone brings some of the rest.
        told = len(await bell.hints(jobs[:1], alive=[muscle]))

        def more() -> bool:
            muscle.beat()
            return bell.confirmed > told

        await wait_until_async(more, deadline=30, describe="more to be confirmed")
        # Without the policy RabbitMQ goes on refusing this channel; a new one gets through.
        bell.publisher.nack_patience = 1.0
        await asyncio.to_thread(amqp_admin.clear_policy)
        await bell.hints(jobs, deadline=60, alive=[muscle])


async def test_a_frozen_broker_costs_the_connection_and_no_hint(
    database: Database, conn: Conn, amqp_proxy_url: str, amqp_proxy: Proxy, amqp_admin: Admin
) -> None:
    """B10: fifty publishes unanswered; late confirms count for nothing; back by itself, nothing is lost."""
    add_kind(conn)
    for _ in range(60):
        Muscle(conn, slots=1).beat()
    async with bell_on(database, conn, amqp_proxy_url, amqp_admin) as bell:
        await bell.hints(submit(conn))
        amqp_proxy.freeze()
        jobs = submit(conn, count=50)
        error = await bell.unwell()
        assert "no confirm within 2 s" in error
        assert bell.publisher.down
        assert "no confirm within 2 s" in bell.publisher.down
        assert bell.counted("timed_out") == 50
        await wait_until_async(lambda: sum(bell.noted().values()) == 50, describe="the trouble to be told")
        assert set(bell.noted()) == {"timed out: no confirm within 2 s"}
        assert set(jobs) <= set(admitted(conn))
        before = bell.confirmed
        amqp_proxy.thaw()
        await bell.well()
        await bell.hints(jobs)
        assert bell.publisher.down is None
        assert bell.confirmed > before
        await wait_until_async(lambda: bell.said() == (True, None), describe="its row to say so")


async def test_a_connection_cut_in_mid_publish_loses_nothing(
    database: Database, conn: Conn, amqp_proxy_url: str, amqp_proxy: Proxy, amqp_admin: Admin
) -> None:
    add_kind(conn)
    Muscle(conn, slots=500).beat()
    async with bell_on(database, conn, amqp_proxy_url, amqp_admin) as bell:
        jobs = submit(conn)
        await bell.hints(jobs)
        for cut in range(5):
            amqp_proxy.cut_after("to_server", 300 * cut + 1)
            jobs = [submit(conn)[0] for _ in range(10)]
            await asyncio.to_thread(amqp_proxy.wait_cut, cut + 1)
            await bell.hints(jobs, deadline=20)
        # No cut in mid-publish leaves a channel behind.
        assert await asyncio.to_thread(_channels, amqp_admin) == 1


async def test_who_may_not_publish_is_never_called_well(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    """The permission is asked for when the connection is made, not found out hint by hint."""
    amqp_admin.call("PUT", "users", "mute", body={"password": "mute", "tags": ""})
    amqp_admin.call(
        "PUT",
        "permissions",
        amqp_admin.vhost,
        "mute",
        body={"configure": ".*", "write": "^$", "read": ".*"},
    )
    scheme, _, where = amqp_url.partition("://")
    url = f"{scheme}://mute:mute@{where.rpartition('@')[2]}"
    add_kind(conn)
    muscle = Muscle(conn, slots=10).beat()
    try:
        with database.connect() as ears:
            ears.execute(f"LISTEN bellwire_{muscle.id.hex}".encode())
            async with bell_on(database, conn, url, amqp_admin, wait=False) as bell:
                await wait_until_async(
                    lambda: "ACCESS_REFUSED" in (bell.publisher.down or ""), describe="the refusal"
                )
                submit(conn)
                heard = await asyncio.to_thread(lambda: list(ears.notifies(timeout=5, stop_after=1)))
                assert len(heard) == 1, "consumers are notified while nothing can be published"
                await wait_until_async(
                    lambda: bell.said()[0] is False and "ACCESS_REFUSED" in (bell.said()[1] or ""),
                    describe="its row to say so",
                )
                assert bell.publisher.owner.connects == 0
                assert bell.counted("dropped") == 1
    finally:
        amqp_admin.call("DELETE", "users", "mute")
    assert capsys.readouterr().out.count("broker lost") == 1


def _policy(admin: Admin, queue: str) -> bool:
    state = admin.queue(queue)
    return state is not None and state.policy is not None


def _channels(admin: Admin) -> int:
    """As the broker counts them, once it has counted."""
    counts: list[int] = []
    end = time.monotonic() + 15
    while time.monotonic() < end:
        counts.append(admin.channel_count())
        if len(counts) > 20 and counts[-20:] == [1] * 20:
            return 1
        time.sleep(0.05)
    return counts[-1]
