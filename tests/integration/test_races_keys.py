"""Who gets a key when two want it at once; what a submit makes of a job that changes while it waits."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest

from bellwire_schema import transitions as edges
from bellwire_schema.statements import Receipt
from bellwire_testkit.databases import Database
from bellwire_testkit.waiting import wait_for_lock
from tests.integration.edge_stage import Conn, Second, Stage, race, submission


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


def test_two_submits_of_one_key_get_one_job(database: Database, conn: Conn, stage: Stage) -> None:
    with race(database, conn) as run:
        winner = submit(run.first)
        second = run.waits(submit)
        run.commit()
        loser = second.result()
    assert (winner.outcome, loser.outcome) == ("created", "existing")
    assert (loser.job_id, loser.state) == (winner.job_id, "ready")


def test_insert_and_look_up_in_one_statement_answer_nothing(
    database: Database, conn: Conn, stage: Stage
) -> None:
    """The winner that the insert waited for is not in the statement's snapshot."""
    naive = (
        "WITH fresh AS (INSERT INTO bellwire.job (id, kind, version, key, unique_until, payload, state,"
        " run_at, created_at)"
        " VALUES (gen_random_uuid(), 'work', 1, 'k', 'finished', '{}', 'ready', now(), now())"
        " ON CONFLICT DO NOTHING RETURNING id)"
        " SELECT id FROM fresh UNION ALL SELECT id FROM bellwire.job WHERE kind = 'work' AND key = 'k'"
    )
    with race(database, conn) as run:
        submit(run.first)
        second = run.waits(lambda s: s.conn.execute(naive).fetchall())
        run.commit()
        assert second.result() == []


def test_the_second_submit_goes_on_where_the_first_is_rolled_back(
    database: Database, conn: Conn, stage: Stage
) -> None:
    with race(database, conn) as run:
        winner = submit(run.first)
        second = run.waits(submit)
        run.rollback()
        other = second.result()
    assert other.outcome == "created"
    assert other.job_id != winner.job_id


def test_sameness_is_judged_when_the_winner_is_known(database: Database, conn: Conn, stage: Stage) -> None:
    with race(database, conn) as run:
        winner = submit(run.first, payload={"n": 1, "same": True})
        second = run.waits(lambda s: submit(s, payload={"n": 2.0, "same": True}))
        run.commit()
        loser = second.result()
    assert (loser.code, loser.job_id, loser.detail["fields"]) == ("key_conflict", winner.job_id, ["n"])
    assert submit(stage, payload={"same": True, "n": 1.0}).outcome == "existing", "numbers count by value"


@pytest.mark.parametrize("committed", [True, False])
def test_a_submit_meets_the_ending_that_frees_its_key(
    database: Database, conn: Conn, stage: Stage, committed: bool
) -> None:
    holder = start(stage, submit(stage).job_id)
    with race(database, conn) as run:
        assert [a.status for a in edges.succeed(run.first.conn, [holder])] == ["settled"]
        second = run.waits(submit)
        if committed:
            run.commit()
        else:
            run.rollback()
        receipt = second.result()
    expected = ("created", "ready") if committed else ("existing", "running")
    assert (receipt.outcome, receipt.state) == expected
    assert (receipt.job_id == holder.job_id) is not committed


def test_a_submit_that_keeps_a_job_takes_no_lock_on_it(database: Database, conn: Conn, stage: Stage) -> None:
    first = submit(stage)
    with database.connect(autocommit=False) as other:
        other.execute("SELECT FROM bellwire.job WHERE id = %s FOR UPDATE", (first.job_id,))
        assert submit(stage).outcome == "existing"
    with database.connect(autocommit=False) as other:
        assert submit(Stage(other)).outcome == "existing"
        (claim,) = [start(stage, first.job_id)]
        assert [b.status for b in edges.heartbeat(conn, [claim])] == ["alive"]


def test_sets_take_their_keys_in_one_order(database: Database, conn: Conn, stage: Stage) -> None:
    """Given in opposite orders, they wait for each other once and never in a circle."""
    forth, back = [submission(k) for k in "abcd"], [submission(k) for k in "dcba"]
    with race(database, conn) as run:
        receipts = edges.submit(run.first.conn, forth)
        second = run.waits(lambda s: edges.submit(s.conn, back))
        run.commit()
        again = second.result()
    assert [r.outcome for r in again] == ["existing"] * 4
    assert [r.job_id for r in again] == [r.job_id for r in reversed(receipts)], "answered in the order given"


def test_single_submits_in_opposite_order_can_deadlock(database: Database, conn: Conn, stage: Stage) -> None:
    """Documented: PostgreSQL ends one of the two, whose transaction is repeated."""
    with database.connect(autocommit=False) as one, database.connect(autocommit=False) as two:
        two.execute("SET deadlock_timeout = '10ms'")  # it closes the circle, so it finds it
        submit(Stage(one), "a")
        submit(Stage(two), "b")
        waiting = Second(lambda s: submit(s, "b"), one)
        wait_for_lock(conn, one.info.backend_pid)
        with pytest.raises(psycopg.errors.DeadlockDetected):
            submit(Stage(two), "a")
        two.rollback()
        assert waiting.result().outcome == "created"
        one.commit()
        assert submit(Stage(two), "b").outcome == "existing"
        two.commit()


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_above_read_committed_the_loser_is_told_to_repeat(
    database: Database, conn: Conn, stage: Stage, level: str
) -> None:
    with race(database, conn, isolation=psycopg.IsolationLevel[level]) as run:
        run.second.autocommit = False
        run.second.execute("SELECT FROM bellwire.job")
        winner = submit(run.first)
        second = run.waits(submit)
        run.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            second.result()
        run.second.rollback()
        again = submit(Stage(run.second))
        run.second.commit()
    assert (again.outcome, again.job_id) == ("existing", winner.job_id)


# --- what means to do something about the holder


@pytest.mark.parametrize("same", [True, False])
def test_replace_meets_claim(database: Database, conn: Conn, stage: Stage, same: bool) -> None:
    """Claimed meanwhile: kept if it is the same, refused if not, and never rewritten under the handler."""
    first = submit(stage, payload={"n": 1})
    assert first.job_id is not None
    stage.admit([first.job_id])
    with race(database, conn) as run:
        assert len(run.first.claim([first.job_id])) == 1
        second = run.waits(lambda s: submit(s, payload={"n": 1 if same else 2}, on_duplicate="replace"))
        run.commit()
        receipt = second.result()
    assert receipt.job_id == first.job_id
    expected = ("existing", "running", None) if same else (None, "running", "key_conflict")
    assert (receipt.outcome, receipt.state, receipt.code) == expected
    assert stage.job(first.job_id)["payload"] == {"n": 1}


def test_replace_meets_a_claim_that_frees_the_key(database: Database, conn: Conn, stage: Stage) -> None:
    first = submit(stage, unique_until="started")
    assert first.job_id is not None
    stage.admit([first.job_id])
    with race(database, conn) as run:
        assert len(run.first.claim([first.job_id])) == 1
        second = run.waits(
            lambda s: submit(s, unique_until="started", payload={"n": 2}, on_duplicate="replace")
        )
        run.commit()
        receipt = second.result()
    assert receipt.outcome == "created"
    assert receipt.job_id != first.job_id
    stage.assert_in_step()


def test_supersede_meets_claim(database: Database, conn: Conn, stage: Stage) -> None:
    first = submit(stage)
    assert first.job_id is not None
    stage.admit([first.job_id])
    with race(database, conn) as run:
        (claim,) = run.first.claim([first.job_id])
        second = run.waits(lambda s: submit(s, payload={"n": 2}, on_duplicate="supersede"))
        run.commit()
        receipt = second.result()
    assert receipt.outcome == "created"
    assert [b.cancel_reason for b in edges.heartbeat(conn, [claim])] == ["superseded"]
    assert stage.job(claim.job_id)["superseded_by"] == receipt.job_id
    stage.assert_in_step()


def test_supersede_meets_success(database: Database, conn: Conn, stage: Stage) -> None:
    """Too late: a finished job is left in peace, and its freed key goes to the new one."""
    claim = start(stage, submit(stage).job_id)
    with race(database, conn) as run:
        edges.succeed(run.first.conn, [claim])
        second = run.waits(lambda s: submit(s, payload={"n": 2}, on_duplicate="supersede"))
        run.commit()
        assert second.result().outcome == "created"
    job = stage.job(claim.job_id)
    assert (job["state"], job["superseded_by"]) == ("succeeded", None)


def test_two_that_supersede_leave_one_holder(database: Database, conn: Conn, stage: Stage) -> None:
    first = submit(stage)
    with race(database, conn) as run:
        newer = submit(run.first, payload={"n": 2}, on_duplicate="supersede")
        second = run.waits(lambda s: submit(s, payload={"n": 3}, on_duplicate="supersede"))
        run.commit()
        newest = second.result()
    assert (newer.outcome, newest.outcome) == ("created", "created")
    assert [stage.job(each)["superseded_by"] for each in (first.job_id, newer.job_id) if each] == [
        newer.job_id,
        newest.job_id,
    ]
    assert submit(stage, payload={"n": 3}).job_id == newest.job_id
    stage.assert_in_step()


@pytest.mark.parametrize("committed", [True, False])
def test_redrive_meets_a_submit_that_takes_the_key(
    database: Database, conn: Conn, stage: Stage, committed: bool
) -> None:
    """Only the one whose key is taken is refused, and each is answered once."""
    claims = [start(stage, submit(stage, key).job_id) for key in ("a", "b", "c")]
    stage.fail(claims)
    ids = [c.job_id for c in claims]
    with race(database, conn) as run:
        holder = submit(run.first, "b")
        second = run.waits(lambda s: edges.redrive(s.conn, ids, actor="ana", reason="mended"))
        if committed:
            run.commit()
        else:
            run.rollback()
        answers = second.result()
    taken = ("key_taken", holder.job_id) if committed else ("redriven", None)
    assert [(a.job_id, a.outcome, a.holder) for a in answers] == [
        (ids[0], "redriven", None),
        (ids[1], *taken),
        (ids[2], "redriven", None),
    ]
    assert len(stage.rows("SELECT FROM bellwire.audit WHERE action = 'redrive'")) == (2 if committed else 3)
    stage.assert_in_step()


def test_two_that_redrive_make_one_generation(database: Database, conn: Conn, stage: Stage) -> None:
    claim = start(stage, submit(stage).job_id)
    stage.fail([claim])
    with race(database, conn) as run:
        assert run.first.redrive(claim.job_id) == ["redriven"]
        second = run.waits(lambda s: s.redrive(claim.job_id))
        run.commit()
        assert second.result() == ["not_redrivable"]
    assert stage.job(claim.job_id)["generation"] == 2


def test_a_submit_meets_the_prune_of_the_holder(database: Database, conn: Conn, stage: Stage) -> None:
    claim = start(stage, submit(stage, unique_until="pruned").job_id)
    edges.succeed(conn, [claim])
    conn.execute("UPDATE bellwire.job SET finished_at = now() - interval '1 year'")
    with race(database, conn) as run:
        assert edges.prune(run.first.conn, limit=10) == 1
        second = run.waits(lambda s: submit(s, unique_until="pruned"))
        run.commit()
        assert second.result().outcome == "created"
