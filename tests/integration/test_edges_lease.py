"""Claims and heartbeats, claims in doubt, and what an attempt writes inside its handler's transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from bellwire_schema import transitions as edges
from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.edge_stage import CONSUMER, Conn, Stage

SECOND = timedelta(seconds=1)


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind()
    return made


def test_a_claim_copies_the_limits_and_dates_the_lease(stage: Stage) -> None:
    stage.kind(lease="20 seconds", timeout="10 minutes", progress_timeout="1 minute")
    (claim,) = stage.running(payload={"n": 1}, tenant="acme", priority=3, max_age="1 hour")
    assert (claim.lease, claim.timeout, claim.progress_timeout) == (20 * SECOND, 600 * SECOND, 60 * SECOND)
    assert (claim.payload, claim.tenant, claim.priority, claim.attempt) == ({"n": 1}, "acme", 3, 1)
    assert claim.remaining is not None
    assert timedelta(minutes=59) < claim.remaining <= timedelta(hours=1)
    job = stage.job(claim.job_id)
    assert job["lease_expires_at"] == claim.started_at + 20 * SECOND
    assert (job["consumer"], job["consumer_version"], job["host"]) == (CONSUMER, "1.0", "here")
    stage.kind(lease="5 seconds", timeout="1 second")
    edges.heartbeat(stage.conn, [claim])
    assert stage.job(claim.job_id)["lease"] == 20 * SECOND, "this attempt keeps what it was claimed under"


def test_a_claim_takes_only_what_is_admitted_and_declared(stage: Stage) -> None:
    ids = stage.submit(3)
    other = stage.submit(kind="other")
    (newer,) = stage.submit(version=2)
    assert stage.claim([*ids, *other, newer]) == []
    stage.admit([*ids[:2], *other, newer])
    assert [c.job_id for c in stage.claim([*ids, *other, newer])] == ids[:2]
    assert {w["job_id"] for w in stage.rows("SELECT job_id FROM bellwire.outbox")} == {ids[2], *other, newer}
    stage.assert_in_step()


def test_a_claim_takes_at_most_as_many_as_ids_were_drawn(stage: Stage) -> None:
    ids = stage.submit(10)
    stage.admit(ids)
    assert len(stage.claim(ids, limit=4)) == 4
    assert len(stage.claim(None, limit=3)) == 3
    assert len(stage.claim(ids, limit=10)) == 3
    assert stage.claim(None, limit=10) == []


def test_a_claim_meets_stale_hints_without_harm(stage: Stage) -> None:
    (done,) = stage.running()
    edges.succeed(stage.conn, [done])
    (cancelled,) = stage.submit()
    stage.cancel(cancelled)
    (running,) = stage.running()
    assert stage.claim([done.job_id, cancelled, running.job_id, uuid4()]) == []


def test_a_wake_up_whose_job_is_not_ready_goes_with_the_claim(stage: Stage) -> None:
    (job_id,) = stage.submit()
    stage.cancel(job_id)
    stage.conn.execute(
        "INSERT INTO bellwire.outbox (job_id, kind, version, tenant, rank, eligible_at, admitted_at)"
        " VALUES (%s, 'work', 1, '', now(), now(), now())",
        (job_id,),
    )
    assert stage.claim(None, limit=5) == []
    assert stage.wakeup(job_id) is None


def test_one_at_a_time_and_in_order_for_an_ordering_key(stage: Stage) -> None:
    first, second = stage.submit(2, ordering_key="a")
    (other,) = stage.submit(ordering_key="b")
    stage.admit([first, second, other])
    (one, two) = stage.claim([second, first, other], limit=3)
    assert {one.job_id, two.job_id} == {first, other}
    assert stage.claim([second]) == []
    edges.succeed(stage.conn, [one if one.job_id == first else two])
    assert [c.job_id for c in stage.claim(None, limit=3)] == [second]


def test_the_heartbeat_renews_and_carries_progress(stage: Stage, clock: Clock) -> None:
    one, two = stage.running(2)
    clock.advance(10 * SECOND)
    beats = edges.heartbeat(
        stage.conn, [one, two], progress=[3, None], totals=[10, None], notes=["three", None]
    )
    assert {b.token: b.status for b in beats} == {one.token: "alive", two.token: "alive"}
    job = stage.job(one.job_id)
    assert (job["progress"], job["progress_total"], job["progress_note"]) == (3, 10, "three")
    assert job["lease_expires_at"] - job["heartbeat_at"] == one.lease
    assert job["heartbeat_at"] > one.started_at + 9 * SECOND
    edges.heartbeat(stage.conn, [one], progress=[2])
    again = stage.job(one.job_id)
    assert (again["progress"], again["progress_total"]) == (3, 10), "progress never falls"
    assert again["progress_at"] == job["progress_at"]


def test_the_heartbeat_tells_who_asked_to_cancel(stage: Stage) -> None:
    (claim,) = stage.running()
    assert stage.cancel(claim.job_id, uuid4()) == ["requested", "not_found"]
    (beat,) = edges.heartbeat(stage.conn, [claim])
    assert (beat.status, beat.cancel_actor, beat.cancel_reason) == ("alive", "ana", "closed")
    assert beat.cancel_requested_at == stage.job(claim.job_id)["cancel_requested_at"]
    assert edges.cancel(stage.conn, [claim.job_id], actor="bob", reason="again")[0].outcome == "requested"
    assert stage.job(claim.job_id)["cancel_actor"] == "ana", "the first who asked is kept"


def test_progress_holds_off_the_stall_and_its_lack_does_not(stage: Stage, clock: Clock) -> None:
    stage.kind(progress_timeout="50 seconds")
    moving, stuck = stage.running(2)
    beats = {}
    for n in range(1, 4):
        clock.advance(20 * SECOND)
        beats = {b.token: b.status for b in edges.heartbeat(stage.conn, [moving, stuck], progress=[n, 0])}
    assert beats == {moving.token: "alive", stuck.token: "alive"}, "a first progress of nought counts"
    clock.advance(20 * SECOND)
    beats = {b.token: b.status for b in edges.heartbeat(stage.conn, [moving, stuck], progress=[4, 0])}
    assert beats == {moving.token: "alive", stuck.token: "stalled"}


@pytest.mark.parametrize("limit", ["timeout", "deadline"])
def test_a_lease_past_its_limit_is_not_renewed(stage: Stage, clock: Clock, limit: str) -> None:
    stage.kind(timeout="15 seconds" if limit == "timeout" else None)
    (claim,) = stage.running(max_age="15 seconds" if limit == "deadline" else None)
    before = stage.job(claim.job_id)["lease_expires_at"]
    clock.advance(16 * SECOND)
    assert [b.status for b in edges.heartbeat(stage.conn, [claim])] == ["timed_out"]
    assert stage.job(claim.job_id)["lease_expires_at"] == before


def test_a_beat_past_the_expiry_still_renews_until_recovery_comes(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running()
    clock.advance(claim.lease * 3)
    assert [b.status for b in edges.heartbeat(stage.conn, [claim])] == ["alive"]
    assert edges.recover(stage.conn, limit=10, randoms=[0.5]) == []
    clock.advance(claim.lease * 3)
    assert len(edges.recover(stage.conn, limit=10, randoms=[0.5])) == 1
    assert [b.status for b in edges.heartbeat(stage.conn, [claim])] == ["lost"]


def test_one_locked_row_among_fifty_leaves_the_others_their_beat(
    stage: Stage, database: Database, clock: Clock
) -> None:
    """What waited for the one would have renewed none of them in time."""
    claims = stage.running(50)
    clock.advance(10 * SECOND)
    with database.connect(autocommit=False) as other:
        other.execute("SELECT FROM bellwire.job WHERE id = %s FOR UPDATE", (claims[7].job_id,))
        beats = {b.token: b.status for b in edges.heartbeat(stage.conn, claims)}
        assert beats.pop(claims[7].token) == "busy"
        assert set(beats.values()) == {"alive"}
        assert len(beats) == 49
    renewed = stage.rows("SELECT id FROM bellwire.job WHERE heartbeat_at > started_at")
    assert {row["id"] for row in renewed} == {c.job_id for c in claims} - {claims[7].job_id}
    assert [b.status for b in edges.heartbeat(stage.conn, claims[7:8])] == ["alive"]


def test_a_busy_row_is_no_lost_lease_to_any_ending(stage: Stage, database: Database, clock: Clock) -> None:
    claim, neighbour = stage.running(2)
    with database.connect(autocommit=False) as other:
        other.execute("SELECT FROM bellwire.job WHERE id = %s FOR UPDATE", (claim.job_id,))
        answers = edges.succeed(stage.conn, [claim, neighbour])
        assert [(a.status, a.state) for a in answers] == [("busy", "running"), ("settled", "succeeded")]
        clock.advance(claim.lease * 2)
        assert edges.recover(stage.conn, limit=10, randoms=[0.5]) == [], "locked by its own attempt: alive"
    assert [a.status for a in edges.succeed(stage.conn, [claim])] == ["settled"]


def test_a_claim_in_doubt_is_handed_back_and_uses_up_nothing(stage: Stage) -> None:
    """Its answer was lost; its tokens ride along until what turns out to be ours is given back."""
    known, doubted = stage.running(2)
    tokens = [doubted.token, uuid4()]
    assert edges.release_doubtful(stage.conn, consumer=UUID(int=99), tokens=tokens) == []
    assert edges.release_doubtful(stage.conn, consumer=CONSUMER, tokens=tokens) == [doubted.job_id]
    assert edges.release_doubtful(stage.conn, consumer=CONSUMER, tokens=tokens) == []
    job = stage.job(doubted.job_id)
    assert (job["state"], job["attempts_used"], job["deaths"]) == ("ready", 0, 0)
    assert stage.state(known.job_id) == ("running", None)
    assert [a["outcome"] for a in stage.attempts(doubted.job_id)] == ["released"]
    stage.assert_in_step()


def installation(stage: Stage) -> UUID:
    found: UUID = stage.rows("SELECT id FROM bellwire.installation")[0]["id"]
    return found


def test_a_handlers_transaction_knows_its_database_and_bounds_its_idleness(
    stage: Stage, database: Database
) -> None:
    with database.connect(autocommit=False) as own:
        assert edges.begin_attempt(own, installation=installation(stage), lease=30 * SECOND)
        assert own.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("30s",)
        assert own.execute("SHOW application_name").fetchone() == ("bellwire attempt",)
        own.rollback()
        assert own.execute("SHOW application_name").fetchone() == ("test",), "locally, so poolers are safe"
        assert not edges.begin_attempt(own, installation=uuid4(), lease=30 * SECOND)


def test_completion_commits_with_the_handlers_rows_or_not_at_all(stage: Stage, database: Database) -> None:
    stage.conn.execute("CREATE TABLE bill (n int)")
    (claim,) = stage.running()
    with database.connect(autocommit=False) as own:
        own.execute("INSERT INTO bill VALUES (1)")
        assert edges.complete(own, claim, result='{"n": 1}') == "settled"
        own.rollback()
        assert stage.state(claim.job_id) == ("running", None)
        own.execute("INSERT INTO bill VALUES (1)")
        assert edges.complete(own, claim, result='{"n": 1}') == "settled"
        own.commit()
        assert stage.job(claim.job_id)["result"] == {"n": 1}
        assert stage.rows("SELECT n FROM bill") == [{"n": 1}]
        # A COMMIT whose answer was lost is asked about, and answered by the attempt's row.
        assert edges.complete(own, claim) == "already"


def test_a_stale_attempt_changes_nothing_by_any_of_its_calls(
    stage: Stage, database: Database, clock: Clock
) -> None:
    (stale,) = stage.running()
    clock.advance(stale.lease * 2)
    edges.recover(stage.conn, limit=10, randoms=[0.5])
    stage.again(stale.job_id)
    before = stage.job(stale.job_id)
    with database.connect() as own:
        assert edges.complete(own, stale, result='{"stale": true}') == "lost"
        assert edges.checkpoint(own, stale, value='{"stale": true}') is False
        assert edges.hold_token(own, stale) is False
        assert [b.status for b in edges.heartbeat(own, [stale], progress=[9])] == ["lost"]
    stage.retry([stale])
    stage.fail([stale])
    edges.release(stage.conn, [stale])
    assert stage.job(stale.job_id) == before


def test_a_checkpoint_is_kept_for_the_next_attempt(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running()
    assert edges.checkpoint(stage.conn, claim, value='{"last_id": 70}')
    clock.advance(claim.lease * 2)
    edges.recover(stage.conn, limit=10, randoms=[0.5])
    again = stage.again(claim.job_id)
    assert again.checkpoint == {"last_id": 70}
    stage.fail([again])
    assert stage.redrive(claim.job_id) == ["redriven"]
    third = stage.again(claim.job_id)
    assert third.checkpoint == {"last_id": 70}
    stage.fail([third])
    assert stage.redrive(claim.job_id, keep_checkpoint=False) == ["redriven"]
    assert stage.again(claim.job_id).checkpoint is None


def test_the_database_itself_refuses_half_a_lease(stage: Stage) -> None:
    (claim,) = stage.running()
    (ready,) = stage.submit()
    broken: list[tuple[str, Any]] = [
        ("UPDATE bellwire.job SET token = NULL WHERE id = %s", claim.job_id),
        ("UPDATE bellwire.job SET state = 'ready' WHERE id = %s", claim.job_id),
        ("UPDATE bellwire.job SET lease_expires_at = NULL WHERE id = %s", claim.job_id),
        ("UPDATE bellwire.job SET token = gen_random_uuid() WHERE id = %s", ready),
        ("UPDATE bellwire.job SET state = 'succeeded' WHERE id = %s", ready),
        ("UPDATE bellwire.job SET state = 'scheduled' WHERE id = %s", ready),
    ]
    for statement, job_id in broken:
        with pytest.raises(psycopg.errors.CheckViolation):
            stage.conn.execute(statement.encode(), (job_id,))
