"""What the relay publishes, to whom, and in which shape; on a real broker."""

from __future__ import annotations

import asyncio
from uuid import UUID

from bellwire_runtime.broker.topology import ARGUMENTS
from bellwire_testkit.databases import Database
from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until_async
from tests.integration.publish_stage import bell_on
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit


async def test_a_lone_job_is_a_hint_with_one_id(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    add_kind(conn)
    Muscle(conn, slots=10).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        for n in range(3):
            (job,) = submit(conn)
            (hint,) = await bell.hints([job])
            assert hint.body == {
                "installation": str(bell.installation),
                "kind": "work",
                "version": 1,
                "ids": [job.hex],
            }
            assert hint.properties["delivery_mode"] == 2
            assert hint.properties["content_type"] == "application/json"
            assert set(hint.properties["headers"]) == {"x-delivery-count"}, "a quorum queue's own"
            assert len(admitted(conn)) == n + 1, "a hint changes nothing in the table"
        state = await asyncio.to_thread(amqp_admin.wait_for_queue, bell.queue())
        assert state.arguments == ARGUMENTS
        assert state.kind == "quorum"
        assert bell.confirmed == 3


async def test_a_backlog_is_spread_over_consumers_and_bounded_by_the_smallest(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    """P32: no hint carries more ids than the smallest live consumer has slots."""
    add_kind(conn)
    Muscle(conn, slots=12).beat()
    Muscle(conn, slots=100).beat()
    submit(conn, count=300)
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        await wait_until_async(lambda: len(admitted(conn)) == 112, describe="the window to fill")
        out = set(admitted(conn))
        hints = await bell.hints(list(out))
        assert {job for hint in hints for job in hint.ids} == out
        assert max(len(hint.ids) for hint in hints) == 12
        # What was out when the broker was found may have been said twice.
        assert len(hints) <= 2 * -(-112 // 12)


async def test_few_jobs_are_dealt_out_evenly(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    add_kind(conn)
    for _ in range(4):
        Muscle(conn, slots=50).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        jobs = submit(conn, count=40)
        hints = await bell.hints(jobs)
        assert sorted(len(hint.ids) for hint in hints) == [10, 10, 10, 10]


async def test_each_version_has_its_queue_and_unheard_ones_get_nothing(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    add_kind(conn)
    Muscle(conn, slots=10, lines=(("work", 1), ("work", 2))).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        (one,) = submit(conn, version=1)
        (two,) = submit(conn, version=2)
        submit(conn, version=3)
        assert [h.ids for h in await bell.hints([one])] == [(one,)]
        await wait_until_async(lambda: bell.confirmed == 2, describe="both hints")
        assert [h.ids for h in await bell.take(version=2)] == [(two,)]
        assert bell.queue(version=3) not in amqp_admin.queues()


async def test_while_it_can_publish_nobody_is_notified(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=10).beat()
    with database.connect() as ears:
        ears.execute(f"LISTEN bellwire_{muscle.id.hex}".encode())
        async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
            jobs = submit(conn, count=5)
            await bell.hints(jobs)
            assert await asyncio.to_thread(lambda: list(ears.notifies(timeout=0.3))) == []


async def test_two_relays_publish_each_admission_once(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    kinds = [f"kind{n}" for n in range(6)]
    for kind in kinds:
        add_kind(conn, kind)
    Muscle(conn, slots=1000, lines=[(kind, 1) for kind in kinds]).beat()
    async with (
        bell_on(database, conn, amqp_url, amqp_admin) as a,
        bell_on(database, conn, amqp_url, amqp_admin) as b,
    ):
        await wait_until_async(
            lambda: len(a.relay.ownership.kinds) >= 3 <= len(b.relay.ownership.kinds),
            describe="both to serve their share",
        )
        jobs: dict[str, list[UUID]] = {kind: submit(conn, kind, 50) for kind in kinds}
        for kind in kinds:
            hints = await a.hints(jobs[kind], kind)
            told = [job for hint in hints for job in hint.ids]
            assert len(told) == len(set(told)) == 50
