"""A sleeper is woken by a submit, nobody else is notified, and nothing depends on either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from bellwire_relay.daemon import Relay, channel_of
from bellwire_testkit.databases import Database
from bellwire_testkit.waiting import wait_until_async
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, relay_on, submit


@asynccontextmanager
async def running(database: Database, **changes: Any) -> AsyncIterator[Relay]:
    """A relay with all its loops going, in this process."""
    stop = asyncio.Event()
    async with relay_on(database, **changes) as relay:
        task = asyncio.ensure_future(relay.run(stop))
        try:
            yield relay
        finally:
            stop.set()
            if relay.listener is not None:
                await relay.listener.close()
            await asyncio.wait_for(task, 10)


def asleep(conn: Conn) -> bool:
    row = conn.execute(
        "SELECT count(*) > 0 AND bool_and(asleep_until > bellwire.now()) FROM bellwire.kind_owner"
    ).fetchone()
    return bool(row and row[0])


async def listen(database: Database, relay: Relay) -> psycopg.AsyncConnection[Any]:
    conn = await psycopg.AsyncConnection.connect(database.url, autocommit=True)
    await conn.execute(f"LISTEN {channel_of(relay.identity.relay)}".encode())
    return conn


async def heard(conn: psycopg.AsyncConnection[Any], within: float) -> int:
    """Submits' notifications, the listener's own proofs left out."""
    return len([n async for n in conn.notifies(timeout=within) if not n.payload.startswith("proof:")])


async def test_a_sleeping_relay_hears_a_submit_long_before_its_floor(database: Database, conn: Conn) -> None:
    """The floor is five seconds here, so what is admitted within one was notified."""
    add_kind(conn)
    Muscle(conn, slots=10).beat()
    async with running(database, relay_poll_floor=5, relay_ownership=20):
        await wait_until_async(lambda: asleep(conn), describe="the relay to sleep")
        for n in range(1, 6):
            submit(conn)
            await wait_until_async(
                lambda n=n: len(admitted(conn)) == n,  # type: ignore[misc]
                deadline=1.5,
                describe=f"job {n} to be admitted",
            )


async def test_the_floor_finds_what_no_notification_announced(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=10).beat()
    async with running(database):
        await wait_until_async(lambda: asleep(conn), describe="the relay to sleep")
        submit(conn, wake=False)
        await wait_until_async(lambda: admitted(conn), deadline=3, describe="the job to be admitted")


async def test_without_listen_no_flag_is_raised_and_polling_finds_all(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=10).beat()
    async with running(database, listen_url="off") as relay:
        for n in range(1, 4):
            submit(conn)
            await wait_until_async(
                lambda n=n: len(admitted(conn)) == n,  # type: ignore[misc]
                deadline=3,
                describe=f"job {n} to be admitted",
            )
            assert not asleep(conn)
        assert relay.listener is None


async def test_a_listen_that_is_not_delivered_is_not_believed(database: Database, conn: Conn) -> None:
    """As behind a transaction pooler: LISTEN is accepted, on a database that submits never notify."""
    add_kind(conn)
    Muscle(conn, slots=10).beat()
    async with relay_on(database) as relay:
        assert relay.listener is not None
        relay.listener._proof_within = 0.3

        async def lost(_conn: Any) -> bool:
            return False

        relay.listener._prove = lost  # type: ignore[assignment,method-assign]
        pause = await relay.listener.run_once()
        assert pause is not None
        assert pause >= 30
        assert not relay.listener.standing
        await relay.owning.run_once()
        for _ in range(20):
            await relay.admission.run_once()
        assert not asleep(conn)


async def test_only_sleepers_are_notified(database: Database, conn: Conn) -> None:
    add_kind(conn)
    async with relay_on(database) as relay:
        await relay.owning.run_once()
        ears = await listen(database, relay)
        try:
            submit(conn, count=3)
            submit(conn)
            assert await heard(ears, 0.3) == 0, "the flag is down: no submit notifies"
            assert await relay.admission._sleep()
            submit(conn, count=3)
            submit(conn)
            assert await heard(ears, 1.0) == 2, "one a transaction"
            await relay.admission._wake()
            submit(conn)
            assert await heard(ears, 0.3) == 0
        finally:
            await ears.close()


async def test_a_storm_of_submits_lowers_the_flag(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=1).beat()
    async with running(database):
        await wait_until_async(lambda: asleep(conn), describe="the relay to sleep")

        def submit_until_awake() -> bool:
            submit(conn)
            return not asleep(conn)

        await wait_until_async(submit_until_awake, deadline=10, describe="the flag to come down")


async def test_the_flag_never_outlasts_the_ownership(database: Database, conn: Conn) -> None:
    add_kind(conn)
    async with running(database):
        await wait_until_async(lambda: asleep(conn), describe="the relay to sleep")
        row = conn.execute("SELECT bool_and(asleep_until <= expires_at) FROM bellwire.kind_owner").fetchone()
        assert row == (True,)


async def test_a_promotion_is_admitted_at_once(database: Database, conn: Conn) -> None:
    """Nobody notifies for what the relay itself made ready; its loops tell each other."""
    add_kind(conn)
    Muscle(conn, slots=1).beat()
    async with running(database, relay_poll_floor=2, relay_ownership=10) as relay:
        await wait_until_async(lambda: asleep(conn), describe="the relay to sleep")
        submit(conn, run_in="1 second")
        await relay.promotion.sweep()
        await wait_until_async(lambda: admitted(conn), deadline=4, describe="the job to be admitted")
        row = conn.execute("SELECT admitted_at - eligible_at FROM bellwire.outbox").fetchone()
        assert row is not None
        assert row[0].total_seconds() < 2.2
