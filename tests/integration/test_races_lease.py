"""One current lease, one recorded ending: attempts, their stale selves, recovery and cancels meet each other.

Endings, heartbeats and recovery skip what is locked and say so (`busy`): locked is not stale. Whoever comes
by with a token that is no longer the job's changes nothing.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from bellwire_schema import transitions as edges
from bellwire_schema.statements import Claimed
from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.edge_stage import Conn, Stage, race


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind()
    return made


def expired(stage: Stage, clock: Clock, count: int = 1) -> list[Claimed]:
    claims = stage.running(count)
    clock.advance(claims[0].lease * 2)
    return claims


def recover(stage: Stage) -> list[str]:
    return [r.state for r in edges.recover(stage.conn, limit=10, randoms=[0.5])]


def succeed(stage: Stage, claim: Claimed) -> str:
    (answer,) = edges.succeed(stage.conn, [claim])
    return answer.status


def test_recovery_meets_a_settle(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    (claim,) = expired(stage, clock)
    with race(database, conn) as run:
        assert succeed(run.first, claim) == "settled"
        assert recover(stage) == [], "busy: somebody is writing its ending"
        run.commit()
    assert recover(stage) == []
    assert stage.state(claim.job_id)[0] == "succeeded"
    assert [a["outcome"] for a in stage.attempts(claim.job_id)] == ["succeeded"]


def test_recovery_by_what_it_saw_reopens_a_success(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    """Without skipping and without the token: it waits, and writes over what it waited for."""
    (claim,) = expired(stage, clock)
    naive = (
        "UPDATE bellwire.job SET state = 'ready', token = NULL, attempt_id = NULL, consumer = NULL,"
        " started_at = NULL, heartbeat_at = NULL, lease_expires_at = NULL, lease = NULL, finished_at = NULL"
        " WHERE id IN (SELECT id FROM bellwire.job WHERE state = 'running'"
        " AND lease_expires_at <= bellwire.now())"
    )
    with race(database, conn) as run:
        assert succeed(run.first, claim) == "settled"
        second = run.waits(lambda s: s.conn.execute(naive))
        run.commit()
        second.result()
    assert stage.state(claim.job_id)[0] == "ready", "it will run again although it succeeded"


def test_a_settle_meets_recovery(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    (claim,) = expired(stage, clock)
    with race(database, conn) as run:
        assert recover(run.first) == ["ready"]
        assert succeed(stage, claim) == "busy"
        run.commit()
        assert succeed(stage, claim) == "lost"
    assert [a["outcome"] for a in stage.attempts(claim.job_id)] == ["recovered"]


def test_a_settle_meets_a_recovery_that_is_rolled_back(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    (claim,) = expired(stage, clock)
    with race(database, conn) as run:
        assert recover(run.first) == ["ready"]
        assert succeed(stage, claim) == "busy"
        run.rollback()
        assert succeed(stage, claim) == "settled", "the token is still the job's: past the expiry, too"


def test_completion_meets_recovery(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    """Inside a handler's transaction the ending waits, since there is no next batch."""
    (claim,) = expired(stage, clock)
    with race(database, conn) as run:
        assert recover(run.first) == ["ready"]
        second = run.waits(lambda s: edges.complete(s.conn, claim))
        run.commit()
        assert second.result() == "lost"
    assert stage.state(claim.job_id)[0] == "ready"


def test_completion_meets_a_heartbeat(database: Database, conn: Conn, stage: Stage) -> None:
    (claim,) = stage.running()
    with race(database, conn) as run:
        assert [b.status for b in edges.heartbeat(run.first.conn, [claim], progress=[5])] == ["alive"]
        second = run.waits(lambda s: edges.complete(s.conn, claim, result="1"))
        run.commit()
        assert second.result() == "settled"
    (attempt,) = stage.attempts(claim.job_id)
    assert attempt["progress"] == 5, "what the heartbeat had just written is in the row of the attempt"


@pytest.mark.parametrize("naive", [False, True])
def test_a_stale_attempt_meets_its_successor(
    database: Database, conn: Conn, stage: Stage, clock: Clock, naive: bool
) -> None:
    """The state alone guards nothing: by now it is another attempt that runs."""
    (stale,) = expired(stage, clock)
    recover(stage)
    stage.admit([stale.job_id])
    by_state = "UPDATE bellwire.job SET checkpoint = '{\"stale\": true}' WHERE id = %s AND state = 'running'"
    with race(database, conn) as run:
        (successor,) = run.first.claim([stale.job_id])
        edges.checkpoint(run.first.conn, successor, value='{"mine": true}')
        assert edges.succeed(conn, [stale])[0].status == "lost"
        run.commit()
    if naive:
        assert conn.execute(by_state, (stale.job_id,)).rowcount == 1
        assert stage.job(stale.job_id)["checkpoint"] == {"stale": True}
    else:
        assert edges.checkpoint(conn, stale, value='{"stale": true}') is False
        assert edges.complete(conn, stale) == "lost"
        assert succeed(stage, stale) == "lost"
        assert stage.job(stale.job_id)["checkpoint"] == {"mine": True}
        assert succeed(stage, successor) == "settled"
    assert stage.attempts(stale.job_id)[0]["id"] == stale.attempt_id


def test_an_ending_meets_itself(database: Database, conn: Conn, stage: Stage) -> None:
    """Its answer was lost and it is sent again while the first may still be under way."""
    first, second = stage.running(2)
    with race(database, conn) as run:
        assert succeed(run.first, first) == "settled"
        assert succeed(run.first, second) == "settled"
        assert [a.status for a in edges.succeed(conn, [first, second])] == ["busy", "busy"]
        run.commit()
        answers = edges.succeed(conn, [first, second])
        assert [(a.status, a.state) for a in answers] == [("already", "succeeded")] * 2
    assert len(stage.attempts(first.job_id)) == 1


def test_an_ending_that_was_rolled_back_is_written_by_its_repetition(
    database: Database, conn: Conn, stage: Stage
) -> None:
    (claim,) = stage.running()
    with race(database, conn) as run:
        assert succeed(run.first, claim) == "settled"
        assert succeed(stage, claim) == "busy"
        run.rollback()
        assert succeed(stage, claim) == "settled"
    assert len(stage.attempts(claim.job_id)) == 1


def test_a_heartbeat_meets_recovery(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    one, two = expired(stage, clock, 2)
    with race(database, conn) as run:
        assert recover(run.first) == ["ready", "ready"]
        beats = edges.heartbeat(conn, [one, two])
        assert {b.status for b in beats} == {"busy"}
        run.commit()
        assert {b.status for b in edges.heartbeat(conn, [one, two])} == {"lost"}


def test_recovery_meets_a_heartbeat(database: Database, conn: Conn, stage: Stage, clock: Clock) -> None:
    (claim,) = expired(stage, clock)
    with race(database, conn) as run:
        assert [b.status for b in edges.heartbeat(run.first.conn, [claim])] == ["alive"]
        assert recover(stage) == []
        run.commit()
    assert recover(stage) == [], "renewed"


# --- a fence for what an attempt writes elsewhere


@pytest.mark.parametrize("naive", [False, True])
def test_a_look_at_the_token_is_no_fence(
    database: Database, conn: Conn, stage: Stage, clock: Clock, naive: bool
) -> None:
    """What commits under a token must not commit after somebody else took the job."""
    conn.execute("CREATE TABLE note (attempt bigint)")
    (claim,) = expired(stage, clock)
    with race(database, conn) as run:
        if naive:
            looked = "SELECT FROM bellwire.job WHERE id = %s AND token = %s"
            assert run.first.conn.execute(looked, (claim.job_id, claim.token)).rowcount == 1
        else:
            assert edges.hold_token(run.first.conn, claim)
        assert recover(stage) == (["ready"] if naive else [])
        run.first.conn.execute("INSERT INTO note VALUES (%s)", (claim.attempt,))
        run.commit()
    assert stage.rows("SELECT attempt FROM note") == [{"attempt": 1}]
    assert recover(stage) == ([] if naive else ["ready"])


@pytest.mark.parametrize("edge", ["cancel", "complete", "checkpoint"])
def test_what_writes_the_job_waits_for_the_fence(
    database: Database, conn: Conn, stage: Stage, edge: str
) -> None:
    (claim,) = stage.running()
    with race(database, conn) as run:
        assert edges.hold_token(run.first.conn, claim)
        assert [b.status for b in edges.heartbeat(conn, [claim])] == ["busy"]
        match edge:
            case "cancel":
                second = run.waits(lambda s: s.cancel(claim.job_id))
            case "complete":
                second = run.waits(lambda s: edges.complete(s.conn, claim))
            case _:
                second = run.waits(lambda s: edges.checkpoint(s.conn, claim, value="1"))
        run.commit()
        assert second.result() in (["requested"], "settled", True)


# --- cancel requests


def test_a_request_meets_the_ending_it_comes_too_late_for(
    database: Database, conn: Conn, stage: Stage
) -> None:
    """The job is scheduled by the time the request can be written, so it is cancelled outright."""
    (claim,) = stage.running()
    with race(database, conn) as run:
        run.first.retry([claim])
        second = run.waits(lambda s: s.cancel(claim.job_id))
        run.commit()
        assert second.result() == ["cancelled"]
    assert stage.state(claim.job_id) == ("cancelled", "cancelled")
    stage.assert_in_step()


def test_a_request_by_what_it_saw_is_never_heard(database: Database, conn: Conn, stage: Stage) -> None:
    (claim,) = stage.running()
    naive = (
        "UPDATE bellwire.job SET cancel_requested_at = now()"
        " WHERE id IN (SELECT id FROM bellwire.job WHERE id = %s AND state = 'running')"
    )
    with race(database, conn) as run:
        run.first.retry([claim])
        second = run.waits(lambda s: s.conn.execute(naive, (claim.job_id,)))
        run.commit()
        second.result()
    job = stage.job(claim.job_id)
    assert (job["state"], job["cancel_requested_at"] is None) == ("scheduled", False)


@pytest.mark.parametrize("edge", ["retry", "throttle", "snooze", "release", "recover"])
def test_an_ending_meets_a_request(
    database: Database, conn: Conn, stage: Stage, clock: Clock, edge: str
) -> None:
    """A request outlives nothing: whatever would go on ends as cancelled."""
    (claim,) = stage.running()
    endings: dict[str, Any] = {
        "retry": lambda: stage.retry([claim]),
        "throttle": lambda: stage.throttle([claim]),
        "snooze": lambda: stage.snooze([claim]),
        "release": lambda: edges.release(conn, [claim]),
        "recover": lambda: recover(stage),
    }
    if edge == "recover":
        clock.advance(claim.lease * 2)
    with race(database, conn) as run:
        assert run.first.cancel(claim.job_id) == ["requested"]
        endings[edge]()
        assert stage.state(claim.job_id)[0] == "running", "busy"
        run.commit()
        endings[edge]()
    assert stage.state(claim.job_id) == ("cancelled", "cancelled")
    stage.assert_in_step()


# --- a storm


def test_living_tokens_are_never_lost_in_a_storm(database: Database, stage: Stage) -> None:
    """Rows change between a statement's snapshot and its lock: what was re-read must still be recognised."""
    claims = stage.running(120)
    statuses: set[str] = set()
    errors: list[BaseException] = []
    over = threading.Event()

    def storm(run: Any) -> None:
        try:
            with database.connect() as own:
                while not over.is_set():
                    run(own)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    def beat(own: Conn) -> None:
        statuses.update(b.status for b in edges.heartbeat(own, claims[20:], progress=list(range(100))))

    def ask(own: Conn) -> None:
        edges.cancel(own, [c.job_id for c in reversed(claims[20:])], actor="ana", reason="storm")

    threads = [threading.Thread(target=storm, args=(run,)) for run in (beat, beat, ask)]
    for thread in threads:
        thread.start()
    left = list(claims)
    deadline = time.monotonic() + 20
    while left and time.monotonic() < deadline:
        batch = left[:8]
        answers = {a.attempt_id: a.status for a in edges.succeed(stage.conn, batch)}
        assert set(answers.values()) <= {"settled", "busy"}
        left = [c for c in left if answers.get(c.attempt_id) != "settled"]
        left = left[8:] + left[:8]
    over.set()
    for thread in threads:
        thread.join(10)
    assert not errors
    assert not left, "a settle never got its turn"
    assert stage.rows("SELECT DISTINCT state FROM bellwire.job") == [{"state": "succeeded"}]
    assert statuses <= {"alive", "busy", "lost"}, "lost, once they are settled"
