"""What a submit answers, and that a refusal writes nothing: the function all clients call, called plainly."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from bellwire_schema import transitions as edges
from bellwire_schema.statements import Receipt
from bellwire_testkit.clock import Clock
from tests.integration.edge_stage import MINUTE, Conn, Stage, submission


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind()
    return made


def submit(stage: Stage, *jobs: dict[str, Any]) -> list[Receipt]:
    return edges.submit(stage.conn, jobs)


def test_ready_now_or_scheduled_for_later(stage: Stage) -> None:
    now, later = submit(stage, submission(), submission(run_in="1 hour"))
    assert (now.outcome, now.state) == ("created", "ready")
    assert (later.outcome, later.state) == ("created", "scheduled")
    assert now.job_id is not None
    assert later.job_id is not None
    job = stage.job(later.job_id)
    assert (job["reason"], job["eligible_at"]) == ("run_at", None)
    assert later.run_at == job["run_at"]
    wakeup = stage.wakeup(now.job_id)
    assert wakeup is not None
    assert wakeup["admitted_at"] is None
    assert stage.wakeup(later.job_id) is None
    stage.assert_in_step()


def test_ids_ascend_in_the_order_given(stage: Stage) -> None:
    ids = stage.submit(300) + stage.submit(300)
    assert ids == sorted(ids)
    assert {each.version for each in ids} == {7}


def test_a_set_is_written_as_a_whole_or_not_at_all(stage: Stage) -> None:
    submit(stage, submission("taken", payload={"n": 1}))
    receipts = submit(
        stage,
        submission("new"),
        submission("taken", payload={"n": 2}),
        submission(),
        submission("taken", payload={"n": 1}),
    )
    assert [r.code for r in receipts] == ["not_submitted", "key_conflict", "not_submitted", "not_submitted"]
    assert len(stage.rows("SELECT FROM bellwire.job")) == 1
    assert len(stage.rows("SELECT FROM bellwire.outbox")) == 1


def test_what_is_alike_in_a_set_is_one_job(stage: Stage) -> None:
    receipts = submit(stage, submission("a"), submission("b"), submission("a"))
    assert [r.outcome for r in receipts] == ["created", "created", "existing"]
    assert receipts[0].job_id == receipts[2].job_id


BAD: list[tuple[dict[str, Any], str]] = [
    ({"kind": "No Kind"}, "kind"),
    ({"version": 0}, "version"),
    ({"payload": [1]}, "payload"),
    ({"priority": 101}, "priority"),
    ({"unique_until": "finished"}, "unique_until"),
    ({"key": "k", "unique_until": "never"}, "unique_until"),
    ({"run_in": "1 hour", "run_at": "2026-05-01T00:00:00Z"}, "run_in"),
    ({"max_age": "-1 hour"}, "max_age"),
    ({"on_duplicate": "replace"}, "on_duplicate"),
    ({"payload": {"text": "x" * 70_000}}, "payload"),
]


@pytest.mark.parametrize(("fields", "field"), BAD, ids=[f"{field}-{n}" for n, (_, field) in enumerate(BAD)])
def test_a_refusal_is_a_row_and_writes_nothing(stage: Stage, fields: dict[str, Any], field: str) -> None:
    with stage.conn.transaction():
        (receipt,) = submit(stage, submission() | fields)
        assert (receipt.code, receipt.detail["field"]) == ("payload_invalid", field)
        (fine,) = submit(stage, submission())
    assert {row["id"] for row in stage.rows("SELECT id FROM bellwire.job")} == {fine.job_id}


def test_submit_by_plain_sql_raises(stage: Stage) -> None:
    call = "SELECT job_id FROM bellwire.submit(kind => 'work', version => %s, payload => '{}')"
    assert isinstance(stage.rows(call, 1)[0]["job_id"], UUID)
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        stage.rows(call, 0)
    assert '"field": "version"' in (caught.value.diag.message_detail or "")


def test_payloads_of_two_versions_are_not_compared(stage: Stage) -> None:
    (first,) = submit(stage, submission("k", payload={"n": 1}))
    (second,) = submit(stage, submission("k", payload={"m": 1}, version=2))
    assert (second.outcome, second.job_id) == ("existing", first.job_id)


def test_a_purged_payload_is_compared_by_its_digest(stage: Stage) -> None:
    digest = "00ff"
    (first,) = submit(stage, submission("k", payload={"n": 1}, args_digest=digest))
    stage.conn.execute("UPDATE bellwire.job SET payload = NULL")
    (same,) = submit(stage, submission("k", payload={"n": 1}, args_digest=digest))
    assert (same.outcome, same.job_id) == ("existing", first.job_id)
    (other,) = submit(stage, submission("k", payload={"n": 2}, args_digest="00fe"))
    assert (other.code, other.detail) == ("key_conflict", {"fields": [], "digest_only": True})


def test_an_id_made_before_the_first_try_makes_repeating_safe(stage: Stage) -> None:
    mine = str(uuid4())
    job = submission("k", unique_until="started", job_id=mine)
    (first,) = submit(stage, job)
    assert (first.outcome, str(first.job_id)) == ("created", mine)
    stage.admit([UUID(mine)])
    edges.succeed(stage.conn, stage.claim([UUID(mine)]))
    submit(stage, submission("k", unique_until="started"))
    (again,) = submit(stage, job)
    assert (again.outcome, str(again.job_id), again.state) == ("existing", mine, "succeeded")


def test_capacity_is_compared_with_a_number_that_was_measured_lately(stage: Stage, clock: Clock) -> None:
    stage.kind(backlog=10)
    (known,) = submit(stage, submission("known"))
    stage.conn.execute(
        "INSERT INTO bellwire.measure"
        " (kind, measured_at, ready, scheduled, running, failed, finished_per_second)"
        " VALUES ('work', bellwire.now(), 8, 2, 0, 0, 2)"
    )
    (refused,) = submit(stage, submission())
    assert (refused.code, refused.detail) == ("over_capacity", {"backlog": 10, "drain_seconds": 5})
    (again,) = submit(stage, submission("known"))
    assert (again.outcome, again.job_id) == ("existing", known.job_id), "a repeat is no new work"
    clock.advance(MINUTE)
    (taken,) = submit(stage, submission())
    assert taken.outcome == "created", "an old measure refuses nobody"
    stage.kind(when_full="accept")
    stage.conn.execute("UPDATE bellwire.measure SET measured_at = bellwire.now()")
    assert submit(stage, submission())[0].outcome == "created"


def test_a_kind_that_nobody_applied_is_accepted(stage: Stage) -> None:
    (receipt,) = submit(stage, submission(kind="unheard_of", priority=2))
    assert receipt.state == "ready"
    assert receipt.job_id is not None
    wakeup = stage.wakeup(receipt.job_id)
    assert wakeup is not None
    assert wakeup["rank"] == wakeup["eligible_at"] - 2 * MINUTE


def test_a_sleeping_relay_is_woken_and_one_awake_is_not(stage: Stage, conn: Conn) -> None:
    relay = UUID(int=5)
    conn.execute(f"LISTEN bellwire_relay_{relay.hex}".encode())
    conn.execute(
        "INSERT INTO bellwire.kind_owner (kind, relay, token, expires_at)"
        " VALUES ('work', %s, %s, now() + interval '1 minute')",
        (relay, relay),
    )
    submit(stage, submission())
    conn.execute("UPDATE bellwire.kind_owner SET asleep_until = now() + interval '1 minute'")
    submit(stage, submission(run_in="1 hour"))
    submit(stage, submission(wake=False))
    assert list(conn.notifies(timeout=0)) == []
    submit(stage, submission())
    assert [n.channel for n in conn.notifies(timeout=5, stop_after=1)] == [f"bellwire_relay_{relay.hex}"]
