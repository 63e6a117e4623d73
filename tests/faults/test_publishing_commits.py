"""Only what is committed is hinted, in whatever order commits come; a hint of anything else is harmless."""

from __future__ import annotations

import time
from uuid import UUID

from bellwire_outbox import submit
from bellwire_testkit.waiting import wait_until
from tests.faults.app import Quick
from tests.faults.load import Deaf, Load, hinted
from tests.faults.stage import Stage

POLL = 2.0
"""Seconds in which a commit that nobody announced is found: the poll floor (0.5 s), on a loaded machine."""
HINTS = 20
WRITERS, EACH = 32, 20


def test_a_hint_of_a_job_that_is_not_committed_does_nothing(stage: Stage) -> None:
    """B01, B02."""
    relay, consumer = stage.relay(), stage.consumer()
    relay.wait_ready()
    consumer.wait_ready()
    stage.run_from_hint(consumer)
    stale = consumer.metric("bellwire_hint_heard_total", result="stale")
    with stage.database.connect(autocommit=False) as other:
        early = submit(other, Quick()).job_id
        with stage.database.connect(autocommit=False) as third:
            never = submit(third, Quick()).job_id
            for _ in range(HINTS // 2):
                stage.hint([early, never])
            third.rollback()
        for _ in range(HINTS // 2):
            stage.hint([early, never])
        consumer.process.wait_for(
            lambda: consumer.metric("bellwire_hint_heard_total", result="stale") >= stale + 2 * HINTS,
            describe="all hints to be heard as stale",
        )
        stage.admin.wait_for_queue(stage.queue(), depth=0)
        assert stage.state([early, never]) == {}
        assert stage.conn.execute("SELECT FROM bellwire.attempt WHERE job_id = %s", (early,)).rowcount == 0
        assert [one for one in stage.doctor(data=True) if one.level == "wrong"] == []
        assert consumer.reds() == {}
        other.commit()
    assert stage.wait_done([early]) < POLL
    assert stage.state([never]) == {}
    stage.finish()


def test_a_commit_that_comes_late_with_an_earlier_id_is_hinted(stage: Stage) -> None:
    """B09, by hand: the lower id is committed after the higher one was published."""
    stage.relay().wait_ready()
    with Deaf(stage.database, 100):
        for _ in range(5):
            with stage.database.connect(autocommit=False) as other:
                late = submit(other, Quick()).job_id
                (early,) = stage.submit(Quick())
                assert late < early
                assert _heard(stage, early) == {early}
                other.commit()
                assert _heard(stage, late) - {early} == {late}
    _run_all(stage)


def test_what_32_writers_committed_is_hinted_and_nothing_else(stage: Stage) -> None:
    """B09, at random: as many transactions as like, in any order, a quarter of them rolled back."""
    stage.relay().wait_ready()
    seen: set[str] = set()
    with Deaf(stage.database, 5000):
        load = Load(
            stage.database,
            writers=WRITERS,
            most=EACH,
            linger=(0.0, 0.05),
            rollback=0.25,
            jobs=lambda dice: [Quick() for _ in range(dice.randint(1, 3))],
        )
        with load:
            while len(load.latencies) < WRITERS * EACH and not load.errors:
                seen |= {job for ids in hinted(stage) for job in ids}
                time.sleep(0.1)
            committed = {job.hex for job in load.join()}

        def all_seen() -> bool:
            nonlocal seen
            seen |= {job for ids in hinted(stage) for job in ids}
            return committed <= seen

        wait_until(all_seen, deadline=POLL, describe=lambda: f"hints of {len(committed - seen)} jobs")
    assert load.rolled_back
    assert seen == committed
    _run_all(stage)


def _heard(stage: Stage, wanted: UUID) -> set[UUID]:
    """What was hinted until this one was."""
    seen: set[UUID] = set()

    def come() -> bool:
        nonlocal seen
        seen |= {UUID(job) for ids in hinted(stage) for job in ids}
        return wanted in seen

    wait_until(come, deadline=POLL, describe=f"a hint of {wanted}; there were {seen}")
    return seen


def _run_all(stage: Stage) -> None:
    consumer = stage.consumer()
    consumer.wait_ready()
    stage.finish()
