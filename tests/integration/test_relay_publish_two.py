"""Two relays, one without a broker: kinds go where they can be published, and none is left alone (P31)."""

from __future__ import annotations

import asyncio
from typing import Any

from bellwire_testkit.databases import Database
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until_async
from tests.integration.publish_stage import bell_on
from tests.integration.relay_stage import Conn, Muscle, add_kind, submit

KINDS = [f"kind{n}" for n in range(6)]


def _stage(conn: Conn) -> Muscle:
    for kind in KINDS:
        add_kind(conn, kind)
    return Muscle(conn, slots=1000, lines=[(kind, 1) for kind in KINDS]).beat()


async def test_kinds_go_to_the_relay_that_can_publish(
    database: Database, conn: Conn, amqp_url: str, amqp_proxy_url: str, amqp_proxy: Proxy, amqp_admin: Admin
) -> None:
    muscle = _stage(conn)
    brief: dict[str, Any] = {"relay_ownership": 2, "relay_poll_floor": 0.2}
    async with (
        bell_on(database, conn, amqp_proxy_url, amqp_admin, **brief) as cut,
        bell_on(database, conn, amqp_url, amqp_admin, **brief) as well,
    ):
        await wait_until_async(
            lambda: len(cut.relay.ownership.kinds) >= 3 <= len(well.relay.ownership.kinds),
            describe="both to serve their share",
        )
        amqp_proxy.refuse()
        await wait_until_async(
            lambda: len(well.relay.ownership.kinds) == len(KINDS), deadline=20, describe="all kinds to move"
        )
        assert not cut.relay.ownership.kinds
        assert cut.said()[0] is False
        for kind in KINDS:
            await well.hints(submit(conn, kind), kind, alive=[muscle])
        amqp_proxy.serve()
        await cut.well()
        # For a minute they stay away, and it says so; the time itself is shown by a unit test.
        await wait_until_async(
            lambda: "went to another relay" in (cut.said()[1] or ""), describe="it to say that it is back"
        )
        assert cut.said()[0] is False
        assert cut.publisher.down is None
        assert not cut.relay.ownership.kinds


async def test_when_nobody_can_publish_everybody_keeps_what_it_has(
    database: Database, conn: Conn, amqp_proxy_url: str, amqp_proxy: Proxy, amqp_admin: Admin
) -> None:
    muscle = _stage(conn)
    async with (
        bell_on(database, conn, amqp_proxy_url, amqp_admin) as a,
        bell_on(database, conn, amqp_proxy_url, amqp_admin) as b,
    ):
        await wait_until_async(
            lambda: len(a.relay.ownership.kinds) >= 3 <= len(b.relay.ownership.kinds),
            describe="both to serve their share",
        )
        shares = a.relay.ownership.kinds, b.relay.ownership.kinds
        amqp_proxy.refuse()
        await asyncio.gather(a.unwell(), b.unwell())
        for bell in (a, b):
            await wait_until_async(
                lambda bell=bell: len(bell.relay.owning._broker().avoid) >= 3,  # type: ignore[misc]
                deadline=20,
                describe="kinds to be avoided",
            )
            await bell.relay.owning.run_once()
        assert (a.relay.ownership.kinds, b.relay.ownership.kinds) == shares
        amqp_proxy.serve()
        await asyncio.gather(a.well(), b.well())
        # Nothing had gone, so nothing stays away, and nothing goes although one of them is back first.
        await wait_until_async(
            lambda: a.said() == b.said() == (True, None), deadline=20, describe="both to say so"
        )
        assert (a.relay.ownership.kinds, b.relay.ownership.kinds) == shares
        for kind in KINDS:
            await a.hints(submit(conn, kind), kind, alive=[muscle])
