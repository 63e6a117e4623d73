"""Jobs and their wake-ups stay in step, whoever meets whom: the second session is seen waiting for the first.

Under READ COMMITTED a statement that waited for a job re-reads the job, not the outbox. Where a rule could be
left out, the naive statement runs through the same scene and breaks what the rule keeps.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from bellwire_schema import transitions as edges
from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.edge_stage import Conn, Stage, race

MINUTE = timedelta(minutes=1)
REPLACED: dict[str, Any] = {"kind": "work", "version": 1, "payload": {"n": 2}}


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind()
    return made


def due(stage: Stage, clock: Clock, **fields: Any) -> UUID:
    """A scheduled job whose time has come."""
    (job_id,) = stage.submit(run_in="1 minute", **fields)
    clock.advance(2 * MINUTE)
    return job_id


def promote(stage: Stage) -> None:
    assert edges.promote(stage.conn, limit=10).promoted == 1


def test_cancel_meets_promote(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    job_id = due(stage, clock)
    with race(database, conn) as run:
        promote(run.first)
        second = run.waits(lambda s: s.cancel(job_id))
        run.commit()
        assert second.result() == ["cancelled"]
    assert stage.state(job_id)[0] == "cancelled"
    stage.assert_in_step()


def test_cancel_in_one_statement_leaves_an_orphan(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    job_id = due(stage, clock)
    naive = (
        "WITH held AS (SELECT id FROM bellwire.job WHERE id = %s FOR UPDATE),"
        " gone AS (DELETE FROM bellwire.outbox o USING held WHERE o.job_id = held.id)"
        " UPDATE bellwire.job j SET state = 'cancelled', finished_at = now() FROM held WHERE j.id = held.id"
    )
    with race(database, conn) as run:
        promote(run.first)
        second = run.waits(lambda s: s.conn.execute(naive, (job_id,)))
        run.commit()
        second.result()
    assert stage.state(job_id)[0] == "cancelled"
    assert stage.wakeup(job_id) is not None, "the wake-up that promote made was not seen"


def test_supersede_meets_promote(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    job_id = due(stage, clock)
    with race(database, conn) as run:
        promote(run.first)
        second = run.waits(lambda s: edges.supersede(s.conn, [job_id], [UUID(int=7)]))
        run.commit()
        assert [row.state for row in second.result()] == ["cancelled"]
    stage.assert_in_step()


@pytest.mark.parametrize("run_at", ["now", "later"])
def test_replace_meets_promote(
    database: Database, conn: Conn, stage: Stage, clock: Clock, run_at: str
) -> None:
    job_id = due(stage, clock)
    job = REPLACED | ({"run_at": (clock.now() + timedelta(hours=1)).isoformat()} if run_at == "later" else {})
    with race(database, conn) as run:
        promote(run.first)
        second = run.waits(lambda s: edges.replace(s.conn, [job_id], [job]))
        run.commit()
        assert second.result() == [job_id]
    assert stage.state(job_id)[0] == ("scheduled" if run_at == "later" else "ready")
    assert stage.job(job_id)["payload"] == {"n": 2}
    stage.assert_in_step()


def test_reprioritise_meets_promote(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    job_id = due(stage, clock)
    with race(database, conn) as run:
        promote(run.first)
        second = run.waits(
            lambda s: edges.reprioritise(s.conn, [job_id], priority=7, actor="ana", reason="urgent")
        )
        run.commit()
        assert second.result() == [job_id]
    wakeup = stage.wakeup(job_id)
    assert wakeup is not None
    assert wakeup["rank"] == wakeup["eligible_at"] - 7 * MINUTE
    stage.assert_in_step()


def test_reprioritise_by_a_plain_update_misses_the_wake_up(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    job_id = due(stage, clock)
    naive = (
        "WITH moved AS (UPDATE bellwire.job SET priority = 7 WHERE id = %s RETURNING id, eligible_at)"
        " UPDATE bellwire.outbox o SET rank = m.eligible_at - interval '7 minutes' FROM moved m"
        " WHERE o.job_id = m.id"
    )
    with race(database, conn) as run:
        promote(run.first)
        second = run.waits(lambda s: s.conn.execute(naive, (job_id,)))
        run.commit()
        second.result()
    wakeup = stage.wakeup(job_id)
    assert wakeup is not None
    assert stage.job(job_id)["priority"] == 7
    assert wakeup["rank"] == wakeup["eligible_at"]


def test_hasten_meets_promote(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    job_id = due(stage, clock)
    with race(database, conn) as run:
        promote(run.first)
        second = run.waits(lambda s: edges.hasten(s.conn, [job_id], actor="ana", reason="now"))
        run.commit()
        assert second.result() == [], "it is ready already"
    assert stage.rows("SELECT FROM bellwire.audit WHERE action = 'run-now'") == []
    stage.assert_in_step()


def test_promote_leaves_what_others_hold_for_its_next_turn(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    job_id = due(stage, clock)
    with race(database, conn) as run:
        run.first.cancel(job_id)
        assert edges.promote(conn, limit=10).promoted == 0
        run.rollback()
        assert edges.promote(conn, limit=10).promoted == 1
    stage.assert_in_step()


def test_expire_and_prune_leave_what_others_hold(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    (late,) = stage.submit(max_age="1 minute")
    (done,) = stage.running()
    edges.succeed(conn, [done])
    clock.advance(timedelta(days=30))
    with database.connect(autocommit=False) as other:
        other.execute("SELECT FROM bellwire.job FOR UPDATE")
        assert edges.expire(conn, limit=10) == []
        assert edges.prune(conn, limit=10) == 0
        other.rollback()
    assert edges.expire(conn, limit=10) == [(late, "work")]
    assert edges.prune(conn, limit=10) == 1


# --- claim


def pause(stage: Stage) -> None:
    """An operator pauses the kind, and its relay's next cycle takes back what is out."""
    relay, token = UUID(int=2), UUID(int=3)
    stage.conn.execute("UPDATE bellwire.kind SET paused_at = now() WHERE name = 'work'")
    stage.conn.execute(
        "INSERT INTO bellwire.kind_owner (kind, relay, token, expires_at)"
        " VALUES ('work', %s, %s, bellwire.now() + interval '1 minute')",
        (relay, token),
    )
    cycle = "SELECT held FROM bellwire.admit(%s, %s, '{}', '{}', '{}')"
    assert stage.rows(cycle, relay, token) == [{"held": "paused"}]


def claim_naively(stage: Stage, job_id: UUID) -> int:
    """Reads the admission, then acts on it, in one statement."""
    return stage.conn.execute(
        "WITH picked AS (SELECT j.id FROM bellwire.job j JOIN bellwire.outbox w ON w.job_id = j.id"
        " WHERE j.id = %s AND j.state = 'ready' AND w.admitted_at IS NOT NULL FOR UPDATE OF j SKIP LOCKED),"
        " gone AS (DELETE FROM bellwire.outbox o USING picked WHERE o.job_id = picked.id)"
        " UPDATE bellwire.job j SET state = 'running', token = gen_random_uuid(),"
        " attempt_id = gen_random_uuid(), consumer = gen_random_uuid(), started_at = now(),"
        " heartbeat_at = now(), lease_expires_at = now(), lease = '30 s' FROM picked WHERE j.id = picked.id",
        (job_id,),
    ).rowcount


@pytest.mark.parametrize("naive", [False, True])
def test_claim_meets_an_admission_that_is_taken_back(
    database: Database, conn: Conn, stage: Stage, naive: bool
) -> None:
    """From the COMMIT of a pause on, no claim succeeds: one under way waited, and then claimed nothing."""
    (job_id,) = stage.submit()
    stage.admit([job_id])
    with race(database, conn) as run:
        pause(run.first)
        if naive:
            second = run.waits(lambda s: claim_naively(s, job_id))
        else:
            second = run.waits(lambda s: len(s.claim([job_id])))
        run.commit()
        assert second.result() == (1 if naive else 0)
    if naive:
        assert stage.state(job_id)[0] == "running", "started under a pause"
    else:
        assert stage.state(job_id)[0] == "ready"
        stage.assert_in_step()


def test_claim_polled_meets_an_admission_that_is_taken_back(
    database: Database, conn: Conn, stage: Stage
) -> None:
    ids = stage.submit(3)
    stage.admit(ids)
    with race(database, conn) as run:
        run.first.conn.execute("UPDATE bellwire.outbox SET admitted_at = NULL WHERE job_id = %s", (ids[1],))
        second = run.waits(lambda s: s.claim(None, limit=5))
        run.commit()
        assert {c.job_id for c in second.result()} == {ids[0], ids[2]}
    assert stage.state(ids[1])[0] == "ready"
    stage.assert_in_step()


def test_an_admission_is_not_taken_back_from_a_claim_under_way(
    database: Database, conn: Conn, stage: Stage
) -> None:
    (job_id,) = stage.submit()
    stage.admit([job_id])
    with race(database, conn) as run:
        assert len(run.first.claim([job_id])) == 1
        pause(stage)
        run.commit()
    assert stage.state(job_id)[0] == "running"
    stage.assert_in_step()


def test_cancel_meets_claim(database: Database, conn: Conn, stage: Stage) -> None:
    (job_id,) = stage.submit()
    stage.admit([job_id])
    with race(database, conn) as run:
        (claim,) = run.first.claim([job_id])
        second = run.waits(lambda s: s.cancel(job_id))
        run.commit()
        assert second.result() == ["requested"]
    assert [b.cancel_actor for b in edges.heartbeat(conn, [claim])] == ["ana"]
    stage.assert_in_step()


def test_claim_meets_cancel(database: Database, conn: Conn, stage: Stage) -> None:
    """What somebody is cancelling is busy: left out at once, and gone at the next look."""
    ids = stage.submit(2)
    stage.admit(ids)
    with race(database, conn) as run:
        run.first.cancel(ids[0])
        assert [c.job_id for c in stage.claim(ids)] == ids[1:]
        run.commit()
    assert stage.claim(ids) == []
    assert stage.claim(None, limit=5) == []
    stage.assert_in_step()


def test_two_claims_never_share_a_job(database: Database, conn: Conn, stage: Stage) -> None:
    ids = stage.submit(10)
    stage.admit(ids)
    with race(database, conn) as run:
        mine = {c.job_id for c in run.first.claim(ids, limit=6)}
        others = {c.job_id for c in stage.claim(ids, limit=6)}
        polled = stage.claim(None, limit=6)
        run.commit()
    assert len(mine) == 6
    assert others == set(ids) - mine
    assert polled == []
    stage.assert_in_step()


@pytest.mark.parametrize("edge", ["replace", "reprioritise"])
def test_claim_meets_what_takes_the_admission_away(
    database: Database, conn: Conn, stage: Stage, edge: str
) -> None:
    (job_id,) = stage.submit()
    stage.admit([job_id])
    with race(database, conn) as run:
        if edge == "replace":
            edges.replace(run.first.conn, [job_id], [REPLACED])
        else:
            edges.reprioritise(run.first.conn, [job_id], priority=-5, actor="ana", reason="later")
        assert stage.claim([job_id]) == []
        run.commit()
    assert stage.claim([job_id]) == [], "it is to be admitted anew"
    assert stage.state(job_id)[0] == "ready"
    stage.assert_in_step()


@pytest.mark.parametrize("naive", [False, True])
def test_replace_meets_claim(database: Database, conn: Conn, stage: Stage, naive: bool) -> None:
    (job_id,) = stage.submit(payload={"n": 1})
    stage.admit([job_id])
    statement = (
        "UPDATE bellwire.job SET payload = '{\"n\": 2}'"
        " WHERE id IN (SELECT id FROM bellwire.job WHERE id = %s AND state = 'ready')"
    )
    with race(database, conn) as run:
        assert len(run.first.claim([job_id])) == 1
        if naive:
            second = run.waits(lambda s: s.conn.execute(statement, (job_id,)).rowcount)
        else:
            second = run.waits(lambda s: edges.replace(s.conn, [job_id], [REPLACED]))
        run.commit()
        assert second.result() == (1 if naive else [])
    assert stage.job(job_id)["payload"] == {"n": 2 if naive else 1}


# --- mend


@pytest.mark.parametrize("naive", [False, True])
def test_mend_meets_a_job_that_is_just_becoming_ready(
    database: Database, conn: Conn, stage: Stage, clock: Clock, naive: bool
) -> None:
    """Acting on what its walk saw would delete a wake-up that lives by then."""
    job_id = due(stage, clock)
    conn.execute(
        "INSERT INTO bellwire.outbox (job_id, kind, version, tenant, rank, eligible_at)"
        " VALUES (%s, 'work', 1, '', now(), now())",
        (job_id,),
    )
    mend = "SELECT orphans, missing FROM bellwire.mend(NULL, NULL, 100)"
    with race(database, conn) as run:
        promote(run.first)
        if naive:
            (seen,) = stage.rows(
                "SELECT o.job_id FROM bellwire.outbox o JOIN bellwire.job j ON j.id = o.job_id"
                " WHERE j.state <> 'ready'"
            )
            second = run.waits(
                lambda s: s.conn.execute("DELETE FROM bellwire.outbox WHERE job_id = %s", (seen["job_id"],))
            )
            run.commit()
            second.result()
            assert stage.wakeup(job_id) is None, "a ready job that nobody will run"
        else:
            assert stage.rows(mend) == [{"orphans": 0, "missing": 0}]
            run.commit()
            assert stage.rows(mend) == [{"orphans": 0, "missing": 0}]
            stage.assert_in_step()


def test_mend_puts_both_directions_right(conn: Conn, stage: Stage) -> None:
    orphan, missing, sound = stage.submit(3)
    conn.execute("UPDATE bellwire.job SET state = 'scheduled', reason = 'retry' WHERE id = %s", (orphan,))
    conn.execute("DELETE FROM bellwire.outbox WHERE job_id = %s", (missing,))
    mend = "SELECT orphans, missing FROM bellwire.mend(NULL, NULL, 100)"
    assert stage.rows(mend) == [{"orphans": 1, "missing": 1}]
    assert stage.wakeup(sound) is not None
    stage.assert_in_step()
    assert stage.rows(mend) == [{"orphans": 0, "missing": 0}]
