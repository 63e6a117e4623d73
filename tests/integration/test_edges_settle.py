"""Each ending of an attempt: where the job goes, what its row says, and which bound ends it instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from bellwire_schema import transitions as edges
from bellwire_schema.statements import Claimed
from bellwire_testkit.clock import Clock
from tests.integration.edge_stage import MINUTE, Conn, Stage

HOUR = timedelta(hours=1)


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind()
    return made


def settle(stage: Stage, name: str, claims: list[Claimed]) -> list[str | None]:
    """Any ending by its name; states in the order given."""
    ending: dict[str, Callable[[], list[Any]]] = {
        "succeed": lambda: edges.succeed(stage.conn, claims),
        "throttle": lambda: stage.throttle(claims),
        "snooze": lambda: stage.snooze(claims),
        "fail": lambda: stage.fail(claims),
        "stop": lambda: edges.stop(stage.conn, claims),
        "release": lambda: edges.release(stage.conn, claims),
    }
    if name == "retry":
        return stage.retry(claims)
    states = {answer.attempt_id: answer.state for answer in ending[name]()}
    return [states[claim.attempt_id] for claim in claims]


def test_success_keeps_the_result_and_leaves_one_row(stage: Stage) -> None:
    first, second = stage.running(2)
    answers = edges.succeed(stage.conn, [second, first], results=['{"pages": 3}', None])
    assert {a.attempt_id: (a.status, a.state) for a in answers} == {
        first.attempt_id: ("settled", "succeeded"),
        second.attempt_id: ("settled", "succeeded"),
    }
    job = stage.job(second.job_id)
    assert (job["state"], job["result"], job["attempts_used"]) == ("succeeded", {"pages": 3}, 1)
    assert job["token"] is None
    assert job["finished_at"] is not None
    (attempt,) = stage.attempts(second.job_id)
    assert (attempt["id"], attempt["number"], attempt["generation"]) == (second.attempt_id, 1, 1)
    assert (attempt["outcome"], attempt["consumer_version"], attempt["host"]) == ("succeeded", "1.0", "here")
    assert attempt["started_at"] <= attempt["ended_at"]
    assert attempt["late"] is False
    stage.assert_in_step()


def test_a_late_success_stands_and_says_so(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running(max_age="1 hour")
    clock.advance(2 * HOUR)
    assert settle(stage, "succeed", [claim]) == ["succeeded"]
    assert [a["late"] for a in stage.attempts(claim.job_id)] == [True]


def test_retry_waits_by_backoff_then_runs_again(stage: Stage, clock: Clock) -> None:
    stage.kind(retry_base="40 seconds", retry_factor=3, retry_cap="5 minutes")
    (claim,) = stage.running()
    waits = []
    for number in (1, 2, 3, 4):
        assert claim.attempt == number
        assert stage.retry([claim]) == ["scheduled"]
        job = stage.job(claim.job_id)
        assert (job["reason"], job["attempts_used"], job["last_code"]) == ("retry", number, "mail_down")
        assert stage.wakeup(claim.job_id) is None
        waits.append(round((job["run_at"] - stage.now()).total_seconds()))
        clock.advance(job["run_at"] - stage.now())
        assert edges.promote(stage.conn, limit=10).promoted == 1
        claim = stage.again(claim.job_id)
    assert waits == [40, 120, 300, 300]
    assert stage.retry([claim]) == ["failed"]
    assert stage.state(claim.job_id) == ("failed", "exhausted")
    attempts = stage.attempts(claim.job_id)
    assert [a["number"] for a in attempts] == [1, 2, 3, 4, 5]
    assert [a["outcome"] for a in attempts] == ["retry"] * 4 + ["failed"]
    assert {a["code"] for a in attempts} == {"mail_down"}


def test_retry_takes_the_jobs_own_share_of_chance_and_the_delay_it_is_given(stage: Stage) -> None:
    stage.kind(retry_base="100 seconds", retry_jitter=True)
    one, two, three = stage.running(3)
    stage.retry([two, one, three], randoms=[0.25, 0.75, 0.5], delays=[None, None, HOUR])
    at = stage.now()
    waits = [(stage.job(c.job_id)["run_at"] - at).total_seconds() for c in (one, two, three)]
    assert waits == pytest.approx([75, 25, 3600], abs=4)


def test_the_first_error_is_kept_beside_the_last(stage: Stage) -> None:
    (claim,) = stage.running()
    stage.retry([claim], "first_trouble", messages=["one"])
    edges.hasten(stage.conn, [claim.job_id], actor="ana", reason="now")
    stage.fail([stage.again(claim.job_id)], "second_trouble")
    job = stage.job(claim.job_id)
    assert (job["first_code"], job["last_code"], job["last_message"]) == (
        "first_trouble",
        "second_trouble",
        "it is not there",
    )


@pytest.mark.parametrize(
    ("policy", "error_class", "allowed"),
    [
        ({"max_attempts": 3}, "retryable", 2),
        ({"max_attempts": 1}, "retryable", 0),
        ({"max_unknown": 2}, "unknown", 1),
        ({"max_unknown": None}, "unknown", 4),
        ({"max_deaths": 2}, "process_died", 1),
    ],
)
def test_budgets_are_counted_apart(
    stage: Stage, policy: dict[str, Any], error_class: str, allowed: int
) -> None:
    stage.kind(max_attempts=policy.pop("max_attempts", 5), **policy)
    (claim,) = stage.running()
    for _ in range(allowed):
        assert stage.retry([claim], classes=[error_class]) == ["scheduled"]
        edges.hasten(stage.conn, [claim.job_id], actor="ana", reason="now")
        claim = stage.again(claim.job_id)
    assert stage.retry([claim], classes=[error_class]) == ["failed"]
    assert stage.state(claim.job_id) == ("failed", "exhausted")


def test_an_unknown_error_does_not_use_up_the_budget_of_deaths(stage: Stage) -> None:
    stage.kind(max_unknown=2, max_deaths=2)
    (claim,) = stage.running()
    for error_class in ("unknown", "process_died", "retryable"):
        assert stage.retry([claim], classes=[error_class]) == ["scheduled"]
        edges.hasten(stage.conn, [claim.job_id], actor="ana", reason="now")
        claim = stage.again(claim.job_id)
    job = stage.job(claim.job_id)
    assert (job["attempts_used"], job["unknown_errors"], job["deaths"]) == (3, 1, 1)


@pytest.mark.parametrize("name", ["throttle", "snooze"])
def test_waits_use_up_no_attempt_and_are_bounded(stage: Stage, name: str) -> None:
    stage.kind(max_waits=2, max_attempts=1)
    (claim,) = stage.running()
    for _ in range(2):
        assert settle(stage, name, [claim]) == ["scheduled"]
        job = stage.job(claim.job_id)
        assert (job["reason"], job["attempts_used"]) == (f"{name}d" if name == "snooze" else "throttled", 0)
        assert MINUTE - timedelta(seconds=10) < job["run_at"] - stage.now() <= MINUTE
        edges.hasten(stage.conn, [claim.job_id], actor="ana", reason="now")
        claim = stage.again(claim.job_id)
    assert settle(stage, name, [claim]) == ["failed"]
    assert stage.state(claim.job_id) == ("failed", "throttled_out")
    assert stage.job(claim.job_id)["last_code"] == ("busy" if name == "throttle" else "later")


def test_throttles_and_snoozes_are_one_tally(stage: Stage) -> None:
    stage.kind(max_waits=1)
    (claim,) = stage.running()
    settle(stage, "throttle", [claim])
    edges.hasten(stage.conn, [claim.job_id], actor="ana", reason="now")
    assert settle(stage, "snooze", [stage.again(claim.job_id)]) == ["failed"]


def test_a_throttle_holds_back_its_tenant_or_its_kind(stage: Stage) -> None:
    one, two = stage.running(2, tenant="acme")
    stage.throttle([one], MINUTE, "tenant")
    stage.throttle([two], 2 * MINUTE, "kind")
    holds = {(h["tenant"], h["whole_kind"]): h["until"] for h in stage.rows("SELECT * FROM bellwire.hold")}
    assert set(holds) == {("acme", False), ("", True)}
    assert holds["acme", False] < holds["", True]
    (three,) = stage.running(tenant="acme")
    stage.throttle([three], timedelta(seconds=1), "tenant")
    again = {(h["tenant"], h["whole_kind"]): h["until"] for h in stage.rows("SELECT * FROM bellwire.hold")}
    assert again == holds, "a shorter wait never shortens a hold"


def test_release_keeps_its_place_and_is_bounded(stage: Stage) -> None:
    stage.kind(max_releases=2, max_attempts=1)
    (claim,) = stage.running()
    before = stage.job(claim.job_id)["eligible_at"]
    for _ in range(2):
        assert settle(stage, "release", [claim]) == ["ready"]
        wakeup = stage.wakeup(claim.job_id)
        assert wakeup is not None
        assert (wakeup["eligible_at"], wakeup["rank"], wakeup["admitted_at"]) == (before, before, None)
        assert stage.job(claim.job_id)["attempts_used"] == 0
        claim = stage.again(claim.job_id)
    assert settle(stage, "release", [claim]) == ["failed"]
    assert stage.state(claim.job_id) == ("failed", "abandoned")
    assert [a["outcome"] for a in stage.attempts(claim.job_id)] == ["released", "released", "failed"]
    stage.assert_in_step()


@pytest.mark.parametrize("name", ["retry", "throttle", "snooze"])
def test_no_next_run_past_the_deadline(stage: Stage, name: str) -> None:
    stage.kind(retry_base="1 minute")
    (late,) = stage.running(max_age="50 seconds")
    (early,) = stage.running(max_age="70 seconds")
    assert settle(stage, name, [late, early]) == ["failed", "scheduled"]
    assert stage.state(late.job_id) == ("failed", "deadline_exceeded")
    assert stage.job(late.job_id)["last_code"] in ("mail_down", "busy", "later")


@pytest.mark.parametrize("name", ["retry", "throttle", "snooze", "release"])
def test_a_cancel_request_ends_what_would_go_on(stage: Stage, name: str) -> None:
    asked, other = stage.running(2)
    assert stage.cancel(asked.job_id) == ["requested"]
    assert settle(stage, name, [asked, other]) == ["cancelled", "ready" if name == "release" else "scheduled"]
    assert stage.state(asked.job_id) == ("cancelled", "cancelled")
    assert [a["outcome"] for a in stage.attempts(asked.job_id)] == ["stopped"]
    job = stage.job(asked.job_id)
    assert (job["cancel_actor"], job["cancel_reason"]) == ("ana", "closed")
    stage.assert_in_step()


@pytest.mark.parametrize(("name", "state"), [("succeed", "succeeded"), ("fail", "failed")])
def test_a_cancel_request_does_not_undo_an_ending(stage: Stage, name: str, state: str) -> None:
    (claim,) = stage.running()
    stage.cancel(claim.job_id)
    assert settle(stage, name, [claim]) == [state]


def test_stop_needs_a_request(stage: Stage) -> None:
    asked, other = stage.running(2)
    stage.cancel(asked.job_id)
    answers = edges.stop(stage.conn, [asked, other], messages=["two of three sent", None])
    assert next((a.attempt_id, a.status, a.state) for a in answers) == (
        asked.attempt_id,
        "settled",
        "cancelled",
    )
    assert stage.state(other.job_id) == ("running", None)
    (attempt,) = stage.attempts(asked.job_id)
    assert (attempt["outcome"], attempt["message"]) == ("stopped", "two of three sent")


@pytest.mark.parametrize("name", ["succeed", "retry", "throttle", "snooze", "fail", "stop", "release"])
def test_the_row_of_the_attempt_is_the_receipt_of_a_lost_answer(stage: Stage, name: str) -> None:
    claims = stage.running(2)
    if name == "stop":
        stage.cancel(*[c.job_id for c in claims])
    states = settle(stage, name, claims[:1])
    # The answer was lost: the same ending is sent again, in a batch with one that is new.
    assert settle(stage, name, claims) == states * 2
    assert len(stage.attempts(claims[0].job_id)) == 1
    if name == "succeed":
        again = edges.succeed(stage.conn, claims)
        assert [(a.status, a.state) for a in again] == [("already", "succeeded")] * 2


def test_another_ending_of_the_attempt_is_a_lost_lease(stage: Stage, clock: Clock) -> None:
    (claim,) = stage.running()
    clock.advance(timedelta(minutes=2))
    edges.recover(stage.conn, limit=10, randoms=[0.5])
    (answer,) = edges.succeed(stage.conn, [claim])
    assert (answer.status, answer.state) == ("lost", "ready")
    again = stage.again(claim.job_id)
    assert [a.status for a in edges.succeed(stage.conn, [claim, again])] == ["lost", "settled"]


def test_a_batch_may_hold_an_attempt_and_its_successor(stage: Stage) -> None:
    (older,) = stage.running()
    edges.release(stage.conn, [older])
    newer = stage.again(older.job_id)
    answers = edges.succeed(stage.conn, [older, newer])
    assert [(a.attempt_id, a.status) for a in answers] == [
        (older.attempt_id, "already"),
        (newer.attempt_id, "settled"),
    ]
    assert [a["outcome"] for a in stage.attempts(older.job_id)] == ["released", "succeeded"]


def test_a_made_up_token_is_lost_and_harms_no_neighbour(stage: Stage) -> None:
    mine, other = stage.running(2)
    forged = mine._replace(token=uuid4(), attempt_id=uuid4())
    nobody = mine._replace(job_id=uuid4(), token=uuid4(), attempt_id=uuid4())
    answers = {a.attempt_id: (a.status, a.state) for a in edges.succeed(stage.conn, [forged, nobody, other])}
    assert answers == {
        forged.attempt_id: ("lost", "running"),
        nobody.attempt_id: ("lost", None),
        other.attempt_id: ("settled", "succeeded"),
    }
    assert stage.state(mine.job_id) == ("running", None)


def test_the_number_grows_for_life_and_every_attempt_leaves_one_row(stage: Stage) -> None:
    (claim,) = stage.running()
    edges.release(stage.conn, [claim])
    stage.fail([stage.again(claim.job_id)])
    assert stage.redrive(claim.job_id) == ["redriven"]
    last = stage.again(claim.job_id)
    assert (last.attempt, last.generation, last.attempts_used) == (3, 2, 0)
    edges.succeed(stage.conn, [last])
    rows = [(a["number"], a["generation"], a["outcome"]) for a in stage.attempts(claim.job_id)]
    assert rows == [(1, 1, "released"), (2, 1, "failed"), (3, 2, "succeeded")]


def test_an_empty_batch_is_answered_by_nothing(stage: Stage) -> None:
    for name in ("succeed", "retry", "throttle", "snooze", "fail", "stop", "release"):
        assert settle(stage, name, []) == []
    assert edges.heartbeat(stage.conn, []) == []
