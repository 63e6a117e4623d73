"""What time alone does: leases run out, deadlines come, delays end; and what follows a failure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bellwire_schema import transitions as edges
from bellwire_schema.statements import Claimed, Recovered
from bellwire_testkit.clock import Clock
from tests.integration.edge_stage import CONSUMER, MINUTE, Conn, Stage

SECOND = timedelta(seconds=1)


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind(retry_base="40 seconds")
    return made


def recover(stage: Stage, limit: int = 100) -> list[Recovered]:
    return edges.recover(stage.conn, limit=limit, randoms=[0.5])


def die(stage: Stage, clock: Clock, claim: Claimed) -> Recovered:
    """The process goes silent; its lease runs out."""
    clock.advance(claim.lease + SECOND)
    (answer,) = recover(stage)
    assert answer.job_id == claim.job_id
    return answer


def test_a_living_lease_is_left_alone(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running()
    clock.advance(claim.lease - 5 * SECOND)
    assert recover(stage) == []
    edges.heartbeat(stage.conn, [claim])
    clock.advance(claim.lease - 5 * SECOND)
    assert recover(stage) == []
    clock.advance(6 * SECOND)
    assert [r.outcome for r in recover(stage)] == ["lease_expired"]


def test_the_first_death_goes_back_at_once_the_next_by_backoff(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running()
    answer = die(stage, clock, claim)
    assert answer == Recovered(claim.job_id, "work", "lease_expired", "ready", CONSUMER)
    assert stage.wakeup(claim.job_id) is not None
    job = stage.job(claim.job_id)
    assert (job["attempts_used"], job["deaths"], job["last_code"]) == (1, 1, "lease_expired")
    assert die(stage, clock, stage.again(claim.job_id)).state == "scheduled"
    job = stage.job(claim.job_id)
    assert (job["reason"], round((job["run_at"] - stage.now()).total_seconds(), -1)) == ("recovered", 80)
    stage.assert_in_step()


def test_a_poison_job_cannot_go_on_for_ever(stage: Stage, clock: Clock) -> None:
    stage.kind(max_deaths=3, max_attempts=100)
    (claim,) = stage.running()
    for expected in ("ready", "scheduled", "failed"):
        assert die(stage, clock, claim).state == expected
        if expected == "scheduled":
            edges.hasten(stage.conn, [claim.job_id], actor="ana", reason="now")
        if expected != "failed":
            claim = stage.again(claim.job_id)
    assert stage.state(claim.job_id) == ("failed", "exhausted")
    assert [a["outcome"] for a in stage.attempts(claim.job_id)] == ["recovered"] * 3
    assert stage.redrive(claim.job_id) == ["redriven"]
    assert die(stage, clock, stage.again(claim.job_id)).state == "ready", "a redrive forgives the deaths"


def test_the_last_attempt_fails_whatever_ended_it(stage: Stage, clock: Clock) -> None:
    stage.kind(max_attempts=1)
    (claim,) = stage.running()
    assert die(stage, clock, claim).state == "failed"
    assert stage.state(claim.job_id) == ("failed", "exhausted")


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        ({"timeout": "45 seconds"}, "timed_out"),
        ({"progress_timeout": "45 seconds"}, "stalled"),
        ({"timeout": "10 minutes", "progress_timeout": "10 minutes"}, "lease_expired"),
    ],
)
def test_recovery_says_what_ended_the_attempt(
    stage: Stage, clock: Clock, limits: dict[str, Any], cause: str
) -> None:
    stage.kind(**limits)
    (claim,) = stage.running()
    for _ in range(2):  # alive until 40 s, then not renewed
        clock.advance(20 * SECOND)
        edges.heartbeat(stage.conn, [claim])
    clock.advance(claim.lease + SECOND)
    (answer,) = recover(stage)
    assert answer.outcome == cause
    assert answer.state == ("ready" if cause == "lease_expired" else "scheduled")
    (attempt,) = stage.attempts(claim.job_id)
    assert (attempt["outcome"], attempt["error_class"], attempt["code"]) == ("recovered", cause, cause)
    assert stage.job(claim.job_id)["deaths"] == (1 if cause == "lease_expired" else 0)


def test_a_limit_ends_the_renewal_not_the_attempt(stage: Stage, clock: Clock) -> None:
    stage.kind(timeout="45 seconds")
    (claim,) = stage.running()
    clock.advance(20 * SECOND)
    assert [b.status for b in edges.heartbeat(stage.conn, [claim])] == ["alive"]
    clock.advance(26 * SECOND)
    assert [b.status for b in edges.heartbeat(stage.conn, [claim])] == ["timed_out"]
    assert [a.status for a in edges.succeed(stage.conn, [claim])] == ["settled"]


def test_recovery_ends_what_somebody_asked_to_cancel(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running()
    stage.cancel(claim.job_id)
    assert die(stage, clock, claim).state == "cancelled"
    assert stage.state(claim.job_id) == ("cancelled", "cancelled")
    assert [a["outcome"] for a in stage.attempts(claim.job_id)] == ["recovered"]


def test_no_recovery_past_the_deadline(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running(max_age="10 seconds")
    assert die(stage, clock, claim).state == "failed"
    assert stage.state(claim.job_id) == ("failed", "deadline_exceeded")


def test_recovery_takes_a_batch_and_the_longest_overdue_first(stage: Stage, clock: Clock) -> None:
    first = stage.running(3)
    clock.advance(10 * SECOND)
    second = stage.running(3)
    clock.advance(MINUTE)
    taken = [{r.job_id for r in recover(stage, limit=3)} for _ in range(2)]
    assert taken == [{c.job_id for c in first}, {c.job_id for c in second}]


@pytest.mark.parametrize("run_in", [None, "3 hours"])
def test_expire_fails_what_was_not_started_in_time(stage: Stage, clock: Clock, run_in: str | None) -> None:
    (late,) = stage.submit(max_age="1 hour", run_in=run_in)
    (other,) = stage.submit(max_age="2 days", run_in=run_in)
    (running,) = stage.running(max_age="1 hour")
    clock.advance(timedelta(hours=5))
    assert edges.expire(stage.conn, limit=10) == [(late, "work")]
    assert stage.state(late) == ("failed", "deadline_exceeded")
    assert stage.job(late)["last_code"] == "deadline_exceeded"
    assert stage.state(other)[0] == ("scheduled" if run_in else "ready")
    assert stage.state(running.job_id) == ("running", None)
    stage.assert_in_step()


def test_a_claim_takes_nothing_past_its_deadline(stage: Stage, clock: Clock) -> None:
    (late,) = stage.submit(max_age="1 hour")
    stage.admit([late])
    clock.advance(timedelta(hours=2))
    assert stage.claim([late]) == []
    assert stage.claim(None, limit=5) == []
    assert stage.state(late) == ("ready", None)


def test_promote_moves_what_is_due_and_says_what_is_next(stage: Stage, clock: Clock) -> None:
    soon, later = (stage.submit(run_in=delay)[0] for delay in ("1 minute", "1 hour"))
    promoted = edges.promote(stage.conn, limit=10)
    assert promoted.promoted == 0
    assert promoted.next_due == stage.job(soon)["run_at"]
    assert promoted.due_in is not None
    assert 50 * SECOND < promoted.due_in <= MINUTE
    clock.advance(MINUTE + SECOND)
    promoted = edges.promote(stage.conn, limit=10)
    assert (promoted.promoted, promoted.next_due) == (1, stage.job(later)["run_at"])
    job = stage.job(soon)
    assert (job["state"], job["reason"], job["eligible_at"]) == ("ready", None, job["run_at"])
    stage.assert_in_step()
    clock.advance(timedelta(hours=1))
    assert edges.promote(stage.conn, limit=10)[:2] == (1, None)


def test_promote_goes_by_time_and_by_batches(stage: Stage, clock: Clock) -> None:
    ids = [stage.submit(run_in=f"{minutes} minutes", priority=minutes)[0] for minutes in (3, 1, 2)]
    clock.advance(10 * MINUTE)
    assert edges.promote(stage.conn, limit=2).promoted == 2
    assert [stage.state(each)[0] for each in ids] == ["scheduled", "ready", "ready"]


@pytest.mark.parametrize("edge", ["fail", "retry", "recover", "expire", "throttle", "release"])
def test_the_failing_edge_submits_the_follow_up(stage: Stage, clock: Clock, edge: str) -> None:
    """Whoever writes the failure writes the job that follows, in the same transaction."""
    stage.kind(
        max_attempts=1,
        max_waits=0,
        max_releases=0,
        on_failed_kind="work_failed",
        on_failed_version=4,
    )
    fields: dict[str, Any] = {"tenant": "acme", "key": "k1", "unique_until": "finished", "max_age": "1 hour"}
    code = {
        "fail": "no_such_account",
        "retry": "mail_down",
        "recover": "lease_expired",
        "expire": "deadline_exceeded",
        "throttle": "busy",
        "release": "abandoned",
    }[edge]
    if edge == "expire":
        (job_id,) = stage.submit(**fields)
        clock.advance(timedelta(hours=2))
        edges.expire(stage.conn, limit=10)
    else:
        (claim,) = stage.running(**fields)
        job_id = claim.job_id
        match edge:
            case "fail":
                stage.fail([claim])
            case "retry":
                stage.retry([claim])
            case "recover":
                die(stage, clock, claim)
            case "throttle":
                stage.throttle([claim])
            case _:
                edges.release(stage.conn, [claim])
    (follow,) = stage.rows("SELECT * FROM bellwire.job WHERE kind = 'work_failed'")
    assert (follow["version"], follow["tenant"], follow["state"]) == (4, "acme", "ready")
    assert follow["payload"] == {"job_id": str(job_id), "failed_kind": "work", "key": "k1", "code": code}
    assert stage.wakeup(follow["id"]) is not None
    stage.assert_in_step()


def test_no_follow_up_where_the_job_goes_on_or_none_is_declared(stage: Stage) -> None:
    stage.kind(on_failed_kind="work_failed", on_failed_version=1)
    stage.kind("plain")
    claims = stage.running(3)
    stage.retry(claims[:1])
    edges.succeed(stage.conn, claims[1:2])
    stage.cancel(claims[2].job_id)
    edges.stop(stage.conn, claims[2:])
    stage.fail(stage.running(kind="plain"))
    assert stage.rows("SELECT * FROM bellwire.job WHERE kind = 'work_failed'") == []


def test_a_batch_of_failures_gets_a_follow_up_each(stage: Stage) -> None:
    stage.kind(on_failed_kind="work_failed", on_failed_version=1)
    claims = stage.running(20)
    stage.fail(claims)
    rows = stage.rows("SELECT payload ->> 'job_id' AS of FROM bellwire.job WHERE kind = 'work_failed'")
    assert {row["of"] for row in rows} == {str(c.job_id) for c in claims}
