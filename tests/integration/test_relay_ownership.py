"""Several relays share the kinds, hand them over, and never together let more go than one would."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg

from bellwire_relay.daemon import Relay
from bellwire_testkit.databases import Database
from bellwire_testkit.waiting import wait_for_lock, wait_until_async
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, relay_on, settings, submit


async def test_relays_share_the_kinds_evenly_and_serve_each_once(database: Database, conn: Conn) -> None:
    for i in range(20):
        add_kind(conn, f"k{i:02}")
    async with relay_on(database) as a, relay_on(database) as b, relay_on(database) as c:
        relays = (a, b, c)
        await a.owning.run_once()
        assert len(a.ownership.kinds) == 20
        assert a.ownership.rest
        for _ in range(3):
            for relay in relays:
                await relay.owning.run_once()
        served = [kind for relay in relays for kind in relay.ownership.kinds]
        assert len(served) == len(set(served)) == 20
        assert sum(relay.ownership.rest for relay in relays) == 1
        assert max(len(r.ownership.kinds) + r.ownership.rest for r in relays) == 7, "21 names over 3 relays"


async def test_a_relay_that_stops_hands_over_at_once(database: Database, conn: Conn) -> None:
    add_kind(conn)
    async with relay_on(database) as heir:
        async with relay_on(database) as first:
            await first.owning.run_once()
            await heir.owning.run_once()
            assert not heir.ownership.kinds or not first.ownership.kinds
        await heir.owning.run_once()
        assert heir.ownership.kinds == {"work"}
        assert heir.ownership.rest
        (count,) = conn.execute("SELECT count(*) FROM bellwire.relay").fetchone() or (None,)
        assert count == 1


async def test_what_a_dead_relay_held_is_taken_when_it_runs_out(database: Database, conn: Conn) -> None:
    add_kind(conn)
    async with relay_on(database) as heir:
        dead = Relay(settings(database))
        await dead.owning.run_once()
        await dead.front.close()
        await dead.back.close()
        dead.telemetry.close()
        await heir.owning.run_once()
        assert heir.ownership.kinds == frozenset()
        # Both clocks the heir looks at: the ownership's end, and the registry's beat.
        conn.execute("UPDATE bellwire.kind_owner SET expires_at = bellwire.now()")
        conn.execute("UPDATE bellwire.relay SET beat_at = beat_at - interval '7 s' WHERE id <> %s",
                     (heir.identity.relay,))  # fmt: skip
        await heir.owning.run_once()
        assert heir.ownership.kinds == {"work"}


async def test_two_relays_in_a_take_over_never_exceed_a_cap(database: Database, conn: Conn) -> None:
    """The second is seen waiting for the first's lock; when it goes on, it counts what the first admitted.

    Counting in the statement that waited would use a snapshot from before: cap 10 would become 20.
    """
    add_kind(conn, running=10)
    Muscle(conn, slots=100).beat()
    submit(conn, count=100)
    async with relay_on(database) as first, relay_on(database) as second:
        await first.owning.run_once()
        with psycopg.connect(database.url) as slow:
            # The first relay's admission, in a transaction that stays open where a slow one would be.
            (rows,) = slow.execute(
                "SELECT array_length(job_ids, 1) FROM bellwire.admit(%s, %s, '{}', '{}', '{}')",
                (first.identity.relay, first.identity.token),
            ).fetchone() or (None,)
            assert rows == 10
            # Its time is over, and the second relay takes the kind: it must wait for that same row.
            taking = asyncio.ensure_future(asyncio.to_thread(_take_over, database, second))
            await asyncio.to_thread(wait_for_lock, conn, await _pid(conn, "take-over"))
            slow.commit()
            assert await taking == 0
    assert len(admitted(conn)) == 10


def _take_over(database: Database, relay: Relay) -> int:
    """The row changes hands by force, as at the end of its time; then the new owner admits."""
    with database.connect(application_name="take-over") as conn:
        conn.execute(
            "UPDATE bellwire.kind_owner SET relay = %s, token = %s,"
            " expires_at = bellwire.now() + interval '6 s' WHERE kind = 'work'",
            (relay.identity.relay, relay.identity.token),
        )
        rows = conn.execute(
            "SELECT job_ids FROM bellwire.admit(%s, %s, '{}', '{}', '{}')",
            (relay.identity.relay, relay.identity.token),
        ).fetchall()
        return sum(len(ids) for (ids,) in rows)


async def _pid(conn: Conn, application_name: str) -> int:
    def found() -> int | None:
        row = conn.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s", (application_name,)
        ).fetchone()
        return None if row is None else int(row[0])

    pid: int = await wait_until_async(found, describe=f"a session called {application_name!r}")
    return pid


async def test_admissions_racing_through_many_take_overs_keep_the_cap(database: Database, conn: Conn) -> None:
    """Two relays admit without pause while the kind is torn from one to the other, fifty times."""
    add_kind(conn, running=5)
    muscle = Muscle(conn, slots=50).beat()
    submit(conn, count=2000)
    async with relay_on(database) as a, relay_on(database) as b:
        await a.owning.run_once()
        over: list[int] = []
        stop = asyncio.Event()

        async def admit(relay: Relay) -> None:
            while not stop.is_set():
                await relay.admission.cycle()

        async def tear() -> None:
            for turn in range(50):
                owner = (a, b)[turn % 2].identity
                conn.execute(
                    "UPDATE bellwire.kind_owner SET relay = %s, token = %s,"
                    " expires_at = bellwire.now() + interval '6 s' WHERE kind = 'work'",
                    (owner.relay, owner.token),
                )
                row = conn.execute(
                    "SELECT (SELECT count(*) FROM bellwire.job WHERE state = 'running')"
                    " + (SELECT count(*) FROM bellwire.outbox WHERE admitted_at IS NOT NULL)"
                ).fetchone()
                assert row is not None
                over.append(row[0])
                muscle.succeed(muscle.claim(3))
                await asyncio.sleep(0.002)
            stop.set()

        await asyncio.gather(admit(a), admit(b), tear())
        assert max(over) <= 5


async def test_a_new_identity_cannot_use_an_old_token(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=5).beat()
    submit(conn, count=5)
    async with relay_on(database) as relay:
        await relay.owning.run_once()
        relay.identity.token = uuid4()
        assert await relay.admission.cycle() == []
