"""Due, expired, overdue, out of step, counted: each by the relay that serves the rest, and by no other."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from prometheus_client import generate_latest

from bellwire_relay.daemon import Relay
from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, relay_on, states, submit


async def test_promote_waits_for_the_database_clock_and_says_when(
    database: Database, conn: Conn, clock: Clock
) -> None:
    add_kind(conn)
    Muscle(conn, slots=10).beat()
    submit(conn, count=3, run_in="1 hour")
    submit(conn, count=1, run_in="2 hours")
    async with relay_on(database) as relay:
        await relay.run_once()
        promoted, due_in = await relay.promotion.sweep()
        assert promoted == 0
        assert due_in == pytest.approx(3600, abs=60)
        clock.advance(timedelta(hours=1, seconds=1))
        Muscle(conn, slots=10).beat()
        await relay.run_once()
        assert states(conn) == {"ready": 3, "scheduled": 1}
        assert len(admitted(conn)) == 3, "what became due goes in the same pass"


async def test_promote_pauses_until_the_next_is_due_but_never_spins(database: Database, conn: Conn) -> None:
    add_kind(conn)
    async with relay_on(database) as relay:
        await relay.owning.run_once()
        assert await relay.promotion.run_once() == 0.5
        submit(conn, run_in="200 milliseconds")
        pause = await relay.promotion.run_once()
        assert pause is not None
        assert 0.0 < pause <= 0.2


async def test_recover_takes_back_what_expired_and_leaves_what_is_locked(
    database: Database, conn: Conn, clock: Clock
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=2).beat()
    submit(conn, count=2)
    async with relay_on(database) as relay:
        await relay.run_once()
        locked, free = muscle.claim(2)
        clock.advance(timedelta(seconds=31))
        with psycopg.connect(database.url) as attempt:
            attempt.execute("SELECT FROM bellwire.job WHERE id = %s FOR UPDATE", (locked.job_id,))
            rows = await relay.recovery.sweep()
            assert [(r.job_id, r.outcome, r.state) for r in rows] == [(free.job_id, "lease_expired", "ready")]
        rows = await relay.recovery.sweep()
        assert [r.job_id for r in rows] == [locked.job_id]
        shown = generate_latest(relay.telemetry.registry).decode()
        assert 'bellwire_job_recovered_total{kind="work",outcome="lease_expired"} 2.0' in shown


async def test_recover_waits_a_beat_after_the_relay_was_without_the_database(
    database: Database, conn: Conn, clock: Clock
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=1).beat()
    submit(conn)
    async with relay_on(database, relay_recover_wait=60) as relay:
        await relay.run_once()
        muscle.claim(1)
        relay.back.back_since = relay.recovery._clock()
        clock.advance(timedelta(seconds=31))
        await relay.owning.run_once()
        await relay.recovery.run_once()
        assert states(conn) == {"running": 1}
        relay.back.back_since -= 61
        await relay.recovery.run_once()
        assert states(conn) == {"ready": 1}


async def test_recover_waits_after_the_server_itself_started(
    database: Database, conn: Conn, clock: Clock
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=1).beat()
    submit(conn)
    async with relay_on(database, relay_recover_wait=60) as relay:
        await relay.run_once()
        muscle.claim(1)
        clock.advance(timedelta(seconds=31))
        await relay.owning.run_once()
        relay.recovery.server_started(59.0)
        await relay.recovery.run_once()
        assert states(conn) == {"running": 1}


async def test_expire_fails_what_nobody_started(database: Database, conn: Conn, clock: Clock) -> None:
    add_kind(conn)
    submit(conn, count=2, max_age="1 minute")
    submit(conn, count=1, run_in="10 minutes", deadline=None)
    async with relay_on(database) as relay:
        await relay.run_once()
        clock.advance(timedelta(seconds=61))
        await relay.run_once()
        assert states(conn) == {"failed": 2, "scheduled": 1}
        (left,) = conn.execute("SELECT count(*) FROM bellwire.outbox").fetchone() or (None,)
        assert left == 0


async def test_mend_puts_both_tables_in_step_and_counts(database: Database, conn: Conn) -> None:
    add_kind(conn)
    ids = submit(conn, count=2500)
    # By hand, since no edge leaves them so: a wake-up gone, one without its job, one of a job not ready.
    conn.execute("DELETE FROM bellwire.outbox WHERE job_id = %s", (ids[0],))
    conn.execute(
        "INSERT INTO bellwire.outbox (job_id, kind, version, tenant, rank, eligible_at)"
        " VALUES (gen_random_uuid(), 'work', 1, '', now(), now())"
    )
    conn.execute("UPDATE bellwire.job SET state = 'cancelled', finished_at = now() WHERE id = %s", (ids[-1],))
    async with relay_on(database) as relay:
        await relay.owning.run_once()
        steps = 0
        while relay.mending.orphans + relay.mending.missing < 3:
            await relay.mending.sweep()
            steps += 1
            assert steps < 20
        assert (relay.mending.orphans, relay.mending.missing) == (2, 1)
        assert steps >= 3, "the walk is bounded a step"
        for _ in range(steps):
            assert await relay.mending.sweep() == 0


async def test_mend_leaves_a_wakeup_whose_job_an_open_transaction_holds(
    database: Database, conn: Conn
) -> None:
    """A claim under way has deleted the wake-up, uncommitted, and holds the job: nothing is out of step."""
    add_kind(conn)
    muscle_conn = database.connect(autocommit=False)
    try:
        Muscle(conn, slots=1).beat()
        submit(conn)
        async with relay_on(database) as relay:
            await relay.run_once()
            muscle = Muscle(muscle_conn, slots=1)
            assert len(muscle.claim(1)) == 1
            assert await relay.mending.sweep() == 0
            muscle_conn.commit()
            assert await relay.mending.sweep() == 0
    finally:
        muscle_conn.close()


async def test_measure_is_written_once_and_shown_by_its_relay_alone(database: Database, conn: Conn) -> None:
    add_kind(conn)
    submit(conn, count=7)
    conn.execute("UPDATE bellwire.outbox SET eligible_at = now() - interval '90 seconds'")
    async with relay_on(database) as first, relay_on(database) as second:
        await first.run_once()
        assert first.ownership.rest
        await second.owning.run_once()
        await second.measuring.run_once()
        assert _shown(first, "bellwire_job_ready{") == 7.0
        assert _shown(first, "bellwire_job_ready_age_seconds{") == pytest.approx(90, abs=10)
        assert _shown(second, "bellwire_job_ready{") is None
        first.ownership.gone()
        await first.measuring.run_once()
        assert _shown(first, "bellwire_job_ready{") is None


async def test_only_the_owner_of_the_rest_keeps_house(database: Database, conn: Conn) -> None:
    add_kind(conn)
    submit(conn, run_in="1 millisecond")
    async with relay_on(database) as first, relay_on(database) as second:
        await first.owning.run_once()
        await second.owning.run_once()
        assert not second.ownership.rest
        for loop in (second.promotion, second.recovery, second.expiry, second.mending, second.measuring):
            await loop.run_once()
        assert second.back.connects == 0, "it did not even connect for it"
        assert states(conn) == {"scheduled": 1}


def _shown(relay: Relay, start: str) -> float | None:
    for line in generate_latest(relay.telemetry.registry).decode().splitlines():
        if line.startswith(start):
            return float(line.rpartition(" ")[2])
    return None
