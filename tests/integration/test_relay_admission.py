"""What goes next, on a real database: as late as possible, in order, in turn, and never beyond a limit."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from bellwire_relay.rank import rank
from bellwire_relay.rotation import Place, Queue, rotate
from bellwire_testkit.databases import Database
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, relay_on, submit


def tenants_of(conn: Conn, ids: list[Any]) -> Counter[str]:
    rows = conn.execute("SELECT tenant FROM bellwire.job WHERE id = ANY (%s)", (ids,)).fetchall()
    return Counter(tenant for (tenant,) in rows)


async def test_the_window_is_the_free_slots_and_what_was_just_claimed(database: Database, conn: Conn) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=4).beat()
    submit(conn, count=30)
    async with relay_on(database) as relay:
        await relay.run_once()
        assert len(admitted(conn)) == 4
        await relay.run_once()
        assert len(admitted(conn)) == 4, "nothing was claimed, so nothing more goes out"
        claims = muscle.claim(4)
        assert len(claims) == 4
        await relay.admission.cycle()
        assert len(admitted(conn)) == 1, "no slot is free, but one hint is kept ahead"
        muscle.succeed(claims)
        await relay.admission.cycle()
        assert len(admitted(conn)) == 8, "four free slots, and four claims within the last second"
        muscle.succeed(muscle.claim(4))
        muscle.succeed(muscle.claim(4))
        await relay.admission.cycle()
        await relay.admission.cycle()
        assert len(admitted(conn)) == 8, "never more than twice the slots"


async def test_a_version_nobody_runs_is_not_admitted_and_comes_back(database: Database, conn: Conn) -> None:
    add_kind(conn)
    old = Muscle(conn, slots=2, lines=[("work", 1)]).beat()
    submit(conn, count=1, version=1)
    newer = submit(conn, count=1, version=2)
    async with relay_on(database) as relay:
        await relay.run_once()
        assert len(admitted(conn)) == 1
        new = Muscle(conn, slots=2, lines=[("work", 2)]).beat()
        await relay.run_once()
        assert set(newer) <= set(admitted(conn))
        assert [c.job_id for c in new.claim(2)] == newer
        old.leave()
        await relay.run_once()
        assert admitted(conn) == [], "its only consumer left: the hint is taken back"


async def test_a_consumer_that_stopped_beating_opens_no_window(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=4).beat()
    conn.execute("UPDATE bellwire.consumer SET beat_at = beat_at - interval '16 seconds'")
    submit(conn, count=3)
    async with relay_on(database) as relay:
        await relay.run_once()
        assert admitted(conn) == []


@pytest.mark.parametrize(
    ("limits", "expected"), [({"running": 3}, 3), ({"running_per_tenant": 1}, 2), ({"running": 0}, 0)]
)
async def test_caps_count_running_and_admitted(
    database: Database, conn: Conn, limits: dict[str, Any], expected: int
) -> None:
    add_kind(conn, **limits)
    muscle = Muscle(conn, slots=20).beat()
    submit(conn, count=10, tenant="a")
    submit(conn, count=10, tenant="b")
    async with relay_on(database) as relay:
        await relay.run_once()
        assert len(admitted(conn)) == expected
        claims = muscle.claim(20)
        assert len(claims) == expected
        for _ in range(3):
            await relay.run_once()
        assert admitted(conn) == [], "what runs counts against the cap"
        if claims:
            muscle.succeed(claims[:1])
            await relay.run_once()
            assert len(admitted(conn)) == 1


async def test_inside_a_tenant_rank_decides_as_the_pure_function_has_it(
    database: Database, conn: Conn
) -> None:
    """Whatever each cycle admits is the front of the order that the pure function gives."""
    aging = timedelta(seconds=7)
    add_kind(conn, aging=aging)
    muscle = Muscle(conn, slots=3).beat()
    rng = random.Random(4)
    for _ in range(40):
        submit(conn, priority=rng.randint(-100, 100))
    # Ages of up to 15 minutes, and wake-ups written anew from them by the edge that does so.
    conn.execute(
        "UPDATE bellwire.job"
        " SET eligible_at = eligible_at - make_interval(secs => abs(hashtext(id::text)) % 900)"
    )
    conn.execute("DELETE FROM bellwire.outbox")
    rows = conn.execute("SELECT id, eligible_at, priority FROM bellwire.job").fetchall()
    order = [r[0] for r in sorted(rows, key=lambda r: (rank(r[1], r[2], aging), r[0]))]
    async with relay_on(database) as relay:
        await relay.owning.run_once()
        assert await relay.mending.sweep() == len(order)
        while order:
            (row,) = await relay.admission.cycle()
            assert set(row.job_ids) == set(order[: len(row.job_ids)])
            del order[: len(row.job_ids)]
            muscle.succeed(muscle.claim(row.outstanding))


@pytest.mark.parametrize("seed", range(12))
async def test_across_tenants_the_database_deals_as_the_pure_function_does(
    database: Database, conn: Conn, seed: int
) -> None:
    """Random tenants, backlogs, weights and windows; cycle after cycle, tenant by tenant."""
    rng = random.Random(seed)
    add_kind(conn)
    queues: dict[str, Queue] = {}
    for name in rng.sample(["", "a", "b", "B", "c", "aa", "z", "é", "10", "9"], rng.randint(2, 8)):
        waiting, weight = rng.randint(1, 12), rng.choice([1, 1, 2, 3])
        queues[name] = Queue(waiting=waiting, weight=weight)
        submit(conn, count=waiting, tenant=name)
        conn.execute("INSERT INTO bellwire.tenant (name, weight) VALUES (%s, %s)", (name, weight))
    place = Place()
    async with relay_on(database) as relay:
        await relay.owning.run_once()
        while any(queue.waiting for queue in queues.values()):
            # A consumer of so many slots that takes all it is offered; the claims are not counted as recent.
            slots = rng.randint(1, 6)
            muscle = Muscle(conn, slots=slots).beat()
            rows = await relay.admission.cycle()
            relay.admission._window_rate.__init__()  # type: ignore[misc]
            (row,) = rows
            turns = rotate(queues, place, slots)
            assert tenants_of(conn, row.job_ids) == Counter(turns.taken)
            place = turns.place
            for name, n in turns.taken.items():
                queues[name] = Queue(waiting=queues[name].waiting - n, weight=queues[name].weight)
            claims = muscle.claim(slots)
            assert len(claims) == len(row.job_ids)
            muscle.succeed(claims)
            muscle.leave()


async def test_a_flood_does_not_delay_a_quiet_tenant(database: Database, conn: Conn) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=3).beat()
    submit(conn, count=2000, tenant="flood")
    async with relay_on(database) as relay:
        await relay.run_once()
        (quiet,) = submit(conn, tenant="quiet")
        for _round in range(3):
            claims = muscle.claim(3)
            if quiet in [c.job_id for c in claims]:
                break
            muscle.succeed(claims)
            await relay.admission.cycle()
        else:
            pytest.fail("the quiet tenant's job was not among the next three rounds")


async def test_a_job_that_commits_late_with_an_earlier_rank_is_found(database: Database, conn: Conn) -> None:
    """Its transaction began before everybody else's and ends after them; no cursor may have passed it by."""
    add_kind(conn)
    muscle = Muscle(conn, slots=2).beat()
    with database.connect(autocommit=False) as slow:
        late = submit(slow, priority=100)
        submit(conn, count=50)
        async with relay_on(database) as relay:
            await relay.run_once()
            for _ in range(5):
                muscle.succeed(muscle.claim(2))
                await relay.admission.cycle()
            slow.commit()
            muscle.succeed(muscle.claim(4))
            await relay.admission.cycle()
            assert late[0] in [c.job_id for c in muscle.claim(4)]


async def test_paused_kinds_and_tenants_say_so_and_go_on_afterwards(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=4).beat()
    submit(conn, count=2, tenant="a")
    submit(conn, count=2, tenant="b")
    conn.execute("INSERT INTO bellwire.kind_tenant (kind, tenant, paused_at) VALUES ('work', 'a', now())")
    async with relay_on(database) as relay:
        await relay.run_once()
        assert tenants_of(conn, admitted(conn)) == {"b": 2}
        conn.execute("UPDATE bellwire.kind SET paused_at = now()")
        (row,) = await relay.admission.cycle()
        assert row.held == "paused"
        assert admitted(conn) == []
        conn.execute("UPDATE bellwire.kind SET paused_at = NULL")
        conn.execute("DELETE FROM bellwire.kind_tenant")
        await relay.admission.cycle()
        assert tenants_of(conn, admitted(conn)) == {"a": 2, "b": 2}


async def test_a_relay_whose_ownership_ran_out_admits_nothing(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=4).beat()
    async with relay_on(database) as relay:
        await relay.run_once()
        conn.execute("UPDATE bellwire.kind_owner SET expires_at = now() - interval '1 second'")
        submit(conn, count=3)
        assert await relay.admission.cycle() == []
        assert admitted(conn) == []


async def test_a_wakeup_that_somebody_holds_delays_nobody_else(database: Database, conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=4).beat()
    ids = submit(conn, count=4)
    with psycopg.connect(database.url) as holder:
        holder.execute("SELECT FROM bellwire.outbox WHERE job_id = %s FOR UPDATE", (ids[0],))
        async with relay_on(database) as relay:
            await relay.run_once()
            assert admitted(conn) == sorted(ids[1:])
            holder.rollback()
            await relay.admission.cycle()
            assert admitted(conn) == sorted(ids)
