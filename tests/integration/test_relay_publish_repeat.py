"""What stays admitted is published again: by age, and all at once where nobody knows what was heard (P23)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin, RabbitServer
from bellwire_testkit.waiting import wait_until_async
from tests.conftest import vhost_of
from tests.integration.publish_stage import bell_on
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, relay_on, submit


async def test_an_unheard_hint_is_repeated_by_age_ever_more_rarely(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin, clock: Clock
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=10).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        (job,) = submit(conn)
        await bell.hints([job])
        for wait in (5, 10, 20):
            clock.advance(timedelta(seconds=wait - 1))
            muscle.beat()
            assert await bell.repeating.repeat() == 0, f"not before {wait} s"
            clock.advance(timedelta(seconds=1.5))
            muscle.beat()
            (hint,) = await bell.hints([job], alive=[muscle])
            assert hint.ids == (job,)
        repeated = bell.relay.telemetry.registry.get_sample_value("bellwire_hint_repeated_total")
        assert repeated == 3.0
        # Once claimed, it is over.
        assert len(muscle.claim(1)) == 1
        clock.advance(timedelta(minutes=5))
        assert await bell.repeating.repeat() == 0


async def test_a_take_over_publishes_everything_that_is_out(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    """The relay before it died after admitting, without a word to the broker."""
    add_kind(conn)
    Muscle(conn, slots=250).beat()
    async with relay_on(database) as silent:
        await silent.owning.run_once()
        jobs = submit(conn, count=250)
        await silent.admission.cycle()
        assert set(admitted(conn)) == set(jobs)
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        hints = await bell.hints(jobs)
        assert {len(hint.ids) for hint in hints} == {100, 50}
        row = conn.execute("SELECT max(publishes) FROM bellwire.outbox").fetchone()
        assert row == (0,), "it is no sign of trouble, so nothing waits longer for it"


async def test_when_the_broker_is_back_everything_goes_out_at_once(
    database: Database, conn: Conn, amqp_proxy_url: str, amqp_proxy: Proxy, amqp_admin: Admin
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=100).beat()
    async with bell_on(database, conn, amqp_proxy_url, amqp_admin) as bell:
        await bell.hints(submit(conn))
        amqp_proxy.refuse()
        await bell.unwell()
        jobs = submit(conn, count=60)
        await wait_until_async(lambda: set(jobs) <= set(admitted(conn)), describe="the jobs to be admitted")
        amqp_proxy.serve()
        await bell.hints(jobs, alive=[muscle], deadline=15)


async def test_a_broker_that_lost_all_its_data_is_rung_anew(
    database: Database, conn: Conn, own_rabbitmq: RabbitServer, own_amqp_url: str
) -> None:
    vhost = vhost_of(own_amqp_url)
    admin = own_rabbitmq.admin.at(vhost)
    add_kind(conn)
    muscle = Muscle(conn, slots=100).beat()
    async with bell_on(database, conn, own_amqp_url, admin) as bell:
        jobs = submit(conn, count=10)
        await wait_until_async(lambda: bell.confirmed > 0, describe="the hint to be confirmed")
        await asyncio.to_thread(own_rabbitmq.wipe)
        await bell.unwell()
        await asyncio.to_thread(own_rabbitmq.start)
        await asyncio.to_thread(own_rabbitmq.admin.create_vhost, vhost)
        await bell.hints(jobs, alive=[muscle], deadline=40)


async def test_while_nothing_is_out_nothing_is_asked(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin
) -> None:
    add_kind(conn)
    conn.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    Muscle(conn, slots=10).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        await wait_until_async(lambda: _calls(conn, "republish") > 0, describe="the look of a take-over")
        await wait_until_async(lambda: not bell.repeating._everything, describe="no other one to come")
        before = _calls(conn, "republish"), _calls(conn, "own")
        # Each renewal is two seconds: meanwhile the loop came round several times.
        await wait_until_async(
            lambda: _calls(conn, "own") >= before[1] + 2, deadline=20, describe="two renewals"
        )
        assert _calls(conn, "republish") == before[0]
        submit(conn)
        await wait_until_async(
            lambda: _calls(conn, "republish") > before[0], describe="a look once something is out"
        )


async def test_a_repeat_that_the_database_cut_short_is_made_up_for(
    database: Database, conn: Conn, amqp_url: str, amqp_admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=10).beat()
    async with bell_on(database, conn, amqp_url, amqp_admin) as bell:
        jobs = submit(conn)
        await bell.hints(jobs)
        plain = bell.repeating.repeat
        failed: list[bool] = []

        async def cut_short(*, everything: bool = False) -> int:
            if len(failed) < 2:
                failed.append(everything)
                raise psycopg.OperationalError("as if the connection broke")
            return await plain(everything=everything)

        monkeypatch.setattr(bell.repeating, "repeat", cut_short)
        bell.relay._well()
        await bell.hints(jobs, alive=[muscle])
        assert failed == [True, True]


def _calls(conn: Conn, function: str) -> int:
    row = conn.execute(
        "SELECT coalesce(sum(s.calls), 0)::integer FROM pg_stat_statements s"
        " JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database() AND s.toplevel"
        " AND s.query LIKE %s",
        (f"%FROM bellwire.{function}(%",),
    ).fetchone()
    assert row is not None
    return int(row[0])
