"""Who holds a key, when it is free again, and the edges that pass it on; redrive, hasten, prune."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from bellwire_schema import transitions as edges
from bellwire_schema.statements import Receipt
from bellwire_testkit.clock import Clock
from tests.integration.edge_stage import MINUTE, Conn, Stage, submission

DAY = timedelta(days=1)


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind()
    return made


def submit(stage: Stage, key: str = "k", unique_until: str = "finished", **fields: Any) -> Receipt:
    (receipt,) = edges.submit(stage.conn, [submission(key, unique_until=unique_until, **fields)])
    return receipt


def start(stage: Stage, job_id: UUID | None) -> Any:
    assert job_id is not None
    stage.admit([job_id])
    (claim,) = stage.claim([job_id])
    return claim


# --- freed


@pytest.mark.parametrize(
    ("unique_until", "free"), [("started", True), ("finished", False), ("pruned", False)]
)
def test_a_key_at_the_start(stage: Stage, unique_until: str, free: bool) -> None:
    first = submit(stage, unique_until=unique_until)
    start(stage, first.job_id)
    second = submit(stage, unique_until=unique_until)
    assert (second.outcome, second.job_id == first.job_id) == (
        ("created", False) if free else ("existing", True)
    )
    assert stage.job(first.job_id)["label"] == "k"  # type: ignore[arg-type]


ENDINGS = ["succeeded", "failed", "cancelled", "expired", "recovered"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("unique_until", ["started", "finished", "pruned"])
def test_a_key_at_the_end(stage: Stage, clock: Clock, unique_until: str, ending: str) -> None:
    """Free again unless it is kept until pruned; also where the job never started."""
    stage.kind(max_attempts=1)
    first = submit(stage, unique_until=unique_until, max_age="1 hour")
    assert first.job_id is not None
    match ending:
        case "succeeded":
            edges.succeed(stage.conn, [start(stage, first.job_id)])
        case "failed":
            stage.fail([start(stage, first.job_id)])
        case "cancelled":
            stage.cancel(first.job_id)
        case "expired":
            clock.advance(DAY)
            edges.expire(stage.conn, limit=5)
        case _:
            start(stage, first.job_id)
            clock.advance(DAY)
            edges.recover(stage.conn, limit=5, randoms=[0.5])
    second = submit(stage, unique_until=unique_until)
    if unique_until == "pruned":
        assert (second.outcome, second.job_id) == ("existing", first.job_id)
    else:
        assert second.outcome == "created"
        assert second.job_id != first.job_id


def test_a_key_at_the_prune(stage: Stage, clock: Clock) -> None:
    first = submit(stage, unique_until="pruned")
    edges.succeed(stage.conn, [start(stage, first.job_id)])
    clock.advance(8 * DAY)
    assert edges.prune(stage.conn, limit=10) == 1
    assert submit(stage, unique_until="pruned").outcome == "created"


@pytest.mark.parametrize("edge", ["retry", "release", "recover"])
def test_a_key_once_freed_is_not_taken_back_by_going_on(stage: Stage, clock: Clock, edge: str) -> None:
    first = submit(stage, unique_until="started")
    claim = start(stage, first.job_id)
    second = submit(stage, unique_until="started")
    match edge:
        case "retry":
            stage.retry([claim])
        case "release":
            edges.release(stage.conn, [claim])
        case _:
            clock.advance(claim.lease * 2)
            edges.recover(stage.conn, limit=5, randoms=[0.5])
    assert stage.job(claim.job_id)["key"] is None
    assert submit(stage, unique_until="started").job_id == second.job_id


def test_a_key_belongs_to_its_kind_and_tenant(stage: Stage) -> None:
    stage.kind("other")
    jobs = [
        submission("order-17", tenant="a"),
        submission("order-17", tenant="b"),
        submission("order-17", kind="other", tenant="a"),
    ]
    assert [r.outcome for r in edges.submit(stage.conn, jobs)] == ["created"] * 3
    assert [r.outcome for r in edges.submit(stage.conn, jobs)] == ["existing"] * 3


# --- replace


def test_replace_takes_the_newest_arguments(stage: Stage) -> None:
    first = submit(stage, payload={"n": 1}, ordering_key="a")
    assert first.job_id is not None
    stage.admit([first.job_id])
    again = submit(
        stage, payload={"n": 2}, priority=5, ordering_key="b", max_age="1 hour", on_duplicate="replace"
    )
    assert (again.job_id, again.outcome, again.state) == (first.job_id, "replaced", "ready")
    job = stage.job(first.job_id)
    assert (job["payload"], job["priority"], job["ordering_key"]) == ({"n": 2}, 5, "b")
    assert job["deadline_at"] == job["run_at"] + timedelta(hours=1)
    wakeup = stage.wakeup(first.job_id)
    assert wakeup is not None
    assert wakeup["admitted_at"] is None, "it is admitted anew, as what it is now"
    assert wakeup["rank"] == wakeup["eligible_at"] - 5 * MINUTE


def test_replace_can_put_off_and_bring_forward(stage: Stage) -> None:
    first = submit(stage)
    assert first.job_id is not None
    later = submit(stage, run_in="1 hour", on_duplicate="replace")
    assert (later.outcome, later.state) == ("replaced", "scheduled")
    assert stage.wakeup(first.job_id) is None
    stage.assert_in_step()
    sooner = submit(stage, on_duplicate="replace")
    assert (sooner.outcome, sooner.state) == ("replaced", "ready")
    assert stage.wakeup(first.job_id) is not None
    stage.assert_in_step()


def test_replace_leaves_a_claimed_job_alone(stage: Stage) -> None:
    first = submit(stage, payload={"n": 1})
    start(stage, first.job_id)
    assert submit(stage, payload={"n": 1}, on_duplicate="replace").outcome == "existing"
    other = submit(stage, payload={"n": 2}, on_duplicate="replace")
    assert (other.code, other.detail["fields"]) == ("key_conflict", ["n"])
    assert stage.job(first.job_id)["payload"] == {"n": 1}  # type: ignore[arg-type]


def test_replace_submits_anew_where_the_start_has_freed_the_key(stage: Stage) -> None:
    first = submit(stage, unique_until="started")
    start(stage, first.job_id)
    again = submit(stage, unique_until="started", payload={"n": 2}, on_duplicate="replace")
    assert again.outcome == "created"
    assert again.job_id != first.job_id


def test_replace_as_an_edge_takes_sets(stage: Stage) -> None:
    ids = stage.submit(3)
    stage.admit(ids[:1])
    stage.claim(ids[:1])
    jobs = [{"kind": "work", "version": 2, "payload": {"n": n}} for n in range(3)]
    assert set(edges.replace(stage.conn, ids, jobs)) == set(ids[1:])
    assert [stage.job(each)["payload"] for each in ids] == [{}, {"n": 1}, {"n": 2}]
    stage.assert_in_step()


# --- supersede


@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_supersede_cancels_the_old_and_passes_the_key_on(stage: Stage, state: str) -> None:
    old = submit(stage, unique_until="pruned", run_in="1 hour" if state == "scheduled" else None)
    new = submit(stage, unique_until="pruned", payload={"n": 2}, on_duplicate="supersede")
    assert new.outcome == "created"
    assert old.job_id is not None
    job = stage.job(old.job_id)
    assert (job["state"], job["reason"], job["superseded_by"]) == ("cancelled", "superseded", new.job_id)
    assert submit(stage, unique_until="pruned", payload={"n": 2}).job_id == new.job_id
    stage.assert_in_step()


def test_supersede_asks_a_running_job_to_stop(stage: Stage) -> None:
    old = submit(stage)
    claim = start(stage, old.job_id)
    new = submit(stage, payload={"n": 2}, on_duplicate="supersede")
    assert new.outcome == "created"
    (beat,) = edges.heartbeat(stage.conn, [claim])
    assert (beat.cancel_actor, beat.cancel_reason) == ("application", "superseded")
    assert [a.state for a in edges.stop(stage.conn, [claim])] == ["cancelled"]
    assert stage.job(claim.job_id)["superseded_by"] == new.job_id


def test_supersede_leaves_a_finished_job_in_peace(stage: Stage) -> None:
    old = submit(stage, unique_until="pruned")
    edges.succeed(stage.conn, [start(stage, old.job_id)])
    again = submit(stage, unique_until="pruned", on_duplicate="supersede")
    assert (again.outcome, again.state) == ("existing", "succeeded")
    assert edges.supersede(stage.conn, [claim_id for claim_id in [old.job_id] if claim_id], [uuid4()]) == []


# --- redrive


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_redrive_starts_the_next_generation_with_everything_forgiven(
    stage: Stage, clock: Clock, ending: str
) -> None:
    receipt = submit(stage, max_age="1 hour", priority=2)
    assert receipt.job_id is not None
    claim = start(stage, receipt.job_id)
    stage.throttle([claim])
    edges.hasten(stage.conn, [claim.job_id], actor="ana", reason="now")
    stage.cancel(claim.job_id) if ending == "cancelled" else stage.fail([stage.again(claim.job_id)])
    assert stage.state(claim.job_id)[0] == ending
    stage.conn.execute(
        "INSERT INTO bellwire.effect (job_id, name, attempt, status, written_at)"
        " SELECT %s, status, 1, status, now()"
        " FROM unnest(ARRAY['pending', 'confirmed', 'refused', 'uncertain']) AS status",
        (claim.job_id,),
    )
    clock.advance(5 * DAY)
    assert stage.redrive(claim.job_id, generations=[2]) == ["generation_differs"]
    assert stage.redrive(claim.job_id, generations=[1]) == ["redriven"]
    job = stage.job(claim.job_id)
    assert (job["state"], job["generation"], job["reason"], job["finished_at"]) == ("ready", 2, None, None)
    tallies = ("attempts_used", "unknown_errors", "deaths", "waits", "releases")
    assert [job[tally] for tally in tallies] == [0] * 5
    assert (job["cancel_requested_at"], job["cancel_actor"], job["cancel_reason"]) == (None, None, None)
    assert job["deadline_at"] == job["run_at"] + timedelta(hours=1), "as long as the first, never the old one"
    assert job["eligible_at"] == job["run_at"]
    assert job["key"] == "k"
    wakeup = stage.wakeup(claim.job_id)
    assert wakeup is not None
    assert wakeup["rank"] == wakeup["eligible_at"] - 2 * MINUTE
    effects = stage.rows("SELECT name FROM bellwire.effect ORDER BY name")
    assert [e["name"] for e in effects] == ["confirmed", "pending", "uncertain"]
    (audit,) = stage.rows("SELECT * FROM bellwire.audit WHERE action = 'redrive'")
    assert (audit["actor"], audit["job_id"], audit["reason"]) == ("ana", claim.job_id, "mended")
    assert audit["new"] == {"generation": 2}
    stage.assert_in_step()


def test_redrive_takes_the_deadline_it_is_given(stage: Stage, clock: Clock) -> None:
    claim = start(stage, submit(stage).job_id)
    stage.fail([claim])
    given = clock.now() + DAY
    assert stage.redrive(claim.job_id, deadline=given) == ["redriven"]
    assert stage.job(claim.job_id)["deadline_at"] == given


def test_redrive_refuses_what_it_cannot_redrive(stage: Stage) -> None:
    (ready,) = stage.submit()
    (running, done, purged) = stage.running(3)
    edges.succeed(stage.conn, [done])
    stage.fail([purged])
    stage.conn.execute("UPDATE bellwire.job SET payload = NULL WHERE id = %s", (purged.job_id,))
    nobody = uuid4()
    ids = (ready, running.job_id, done.job_id, purged.job_id, nobody)
    outcomes = ["not_redrivable"] * 3 + ["payload_gone", "not_found"]
    assert stage.redrive(*ids) == outcomes
    assert stage.rows("SELECT FROM bellwire.audit WHERE job_id IS NOT NULL") == []


def test_each_redrive_is_judged_alone_and_a_taken_key_names_its_holder(stage: Stage) -> None:
    taken = start(stage, submit(stage, "a").job_id)
    free = start(stage, submit(stage, "b").job_id)
    stage.fail([taken, free])
    holder = submit(stage, "a").job_id
    answers = edges.redrive(stage.conn, [taken.job_id, free.job_id], actor="ana", reason="mended")
    assert [(a.outcome, a.holder) for a in answers] == [("key_taken", holder), ("redriven", None)]


def test_one_of_two_with_the_same_key_is_redriven(stage: Stage) -> None:
    older = start(stage, submit(stage).job_id)
    stage.fail([older])
    newer = start(stage, submit(stage).job_id)
    stage.fail([newer])
    answers = edges.redrive(stage.conn, [newer.job_id, older.job_id], actor="ana", reason="mended")
    assert [(a.outcome, a.holder) for a in answers] == [("redriven", None), ("key_taken", newer.job_id)]


def test_a_finished_namesake_in_the_set_takes_no_key(stage: Stage) -> None:
    done = start(stage, submit(stage).job_id)
    edges.succeed(stage.conn, [done])
    failed = start(stage, submit(stage).job_id)
    stage.fail([failed])
    assert stage.redrive(done.job_id, failed.job_id) == ["not_redrivable", "redriven"]


def test_a_redriven_job_gives_its_key_back_when_it_starts(stage: Stage) -> None:
    claim = start(stage, submit(stage, unique_until="started").job_id)
    stage.fail([claim])
    stage.redrive(claim.job_id)
    assert submit(stage, unique_until="started").job_id == claim.job_id
    stage.again(claim.job_id)
    assert submit(stage, unique_until="started").outcome == "created"


def test_reopen_redrives_for_the_application(stage: Stage) -> None:
    claim = start(stage, submit(stage, unique_until="pruned").job_id)
    stage.fail([claim])
    assert submit(stage, unique_until="pruned").outcome == "existing"
    other = submit(stage, unique_until="pruned", payload={"n": 2}, on_duplicate="reopen")
    assert other.code == "key_conflict"
    again = submit(stage, unique_until="pruned", on_duplicate="reopen")
    assert (again.job_id, again.outcome, again.state) == (claim.job_id, "reopened", "ready")
    edges.succeed(stage.conn, [stage.again(claim.job_id)])
    done = submit(stage, unique_until="pruned", on_duplicate="reopen")
    assert (done.outcome, done.state) == ("existing", "succeeded"), "success never reopens"


# --- the rest


def test_hasten_brings_forward_whatever_it_waited_for(stage: Stage) -> None:
    (delayed,) = stage.submit(run_in="1 day", priority=-3)
    (retried,) = stage.running()
    stage.retry([retried])
    (ready,) = stage.submit()
    hastened = edges.hasten(stage.conn, [delayed, retried.job_id, ready], actor="ana", reason="month end")
    assert set(hastened) == {delayed, retried.job_id}
    wakeup = stage.wakeup(delayed)
    assert wakeup is not None
    assert wakeup["rank"] == wakeup["eligible_at"] + 3 * MINUTE
    audit = stage.rows("SELECT action, actor, reason FROM bellwire.audit WHERE job_id IS NOT NULL")
    assert audit == [{"action": "run-now", "actor": "ana", "reason": "month end"}] * 2
    stage.assert_in_step()


def test_reprioritise_gives_a_new_rank_and_an_admission_to_earn(stage: Stage) -> None:
    (ready,) = stage.submit()
    (delayed,) = stage.submit(run_in="1 day")
    (running,) = stage.running()
    stage.admit([ready])
    moved = edges.reprioritise(
        stage.conn, [ready, delayed, running.job_id], priority=10, actor="ana", reason="angry customer"
    )
    assert set(moved) == {ready, delayed}
    wakeup = stage.wakeup(ready)
    assert wakeup is not None
    assert (wakeup["rank"], wakeup["admitted_at"]) == (wakeup["eligible_at"] - 10 * MINUTE, None)
    assert stage.wakeup(delayed) is None
    assert stage.job(delayed)["priority"] == 10
    assert stage.job(running.job_id)["priority"] == 0
    stage.assert_in_step()


def test_prune_takes_the_job_with_all_that_is_its_own(stage: Stage, clock: Clock) -> None:
    stage.kind(retain_succeeded="2 days", retain_failed="9 days", retain_cancelled="4 days")
    done, failed, cancelled = stage.running(3)
    stage.conn.execute(
        "INSERT INTO bellwire.effect (job_id, name, attempt, status, written_at)"
        " VALUES (%s, 'mail', 1, 'confirmed', now())",
        (done.job_id,),
    )
    edges.succeed(stage.conn, [done])
    stage.fail([failed])
    stage.cancel(cancelled.job_id)
    edges.stop(stage.conn, [cancelled])
    (living,) = stage.submit()
    left = []
    for days in (1, 2, 2, 5):
        clock.advance(days * DAY)
        edges.prune(stage.conn, limit=10)
        left.append({row["id"] for row in stage.rows("SELECT id FROM bellwire.job")} - {living})
    assert left == [
        {done.job_id, failed.job_id, cancelled.job_id},
        {failed.job_id, cancelled.job_id},
        {failed.job_id},
        set(),
    ]
    assert stage.rows("SELECT FROM bellwire.attempt") == []
    assert stage.rows("SELECT FROM bellwire.effect") == []


def test_prune_takes_a_batch_and_the_oldest_first(stage: Stage, clock: Clock) -> None:
    first = stage.running(3)
    edges.succeed(stage.conn, first)
    clock.advance(DAY)
    edges.succeed(stage.conn, stage.running(3))
    clock.advance(30 * DAY)
    assert edges.prune(stage.conn, limit=3) == 3
    assert {row["id"] for row in stage.rows("SELECT id FROM bellwire.job")}.isdisjoint(
        c.job_id for c in first
    )
    assert edges.prune(stage.conn, limit=10) == 3
    assert edges.prune(stage.conn, limit=10) == 0


def test_cancel_says_what_it_found(stage: Stage) -> None:
    (ready,) = stage.submit()
    (delayed,) = stage.submit(run_in="1 day")
    running, done = stage.running(2)
    edges.succeed(stage.conn, [done])
    nobody = uuid4()
    assert stage.cancel(done.job_id, ready, nobody, running.job_id, delayed) == [
        "too_late",
        "cancelled",
        "not_found",
        "requested",
        "cancelled",
    ]
    assert stage.cancel(ready) == ["too_late"]
    stage.assert_in_step()
