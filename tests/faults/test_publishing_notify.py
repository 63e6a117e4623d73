"""NOTIFY is never in the way of a commit: not of many writers at once, not of a listener that sits in a
transaction. Hints go out from what is committed, so writers have nothing to announce.
"""

from __future__ import annotations

import time

from bellwire_testkit.databases import Database
from tests.faults.load import Load
from tests.faults.stage import Stage

SUBMITTERS = 64
LOADED, LET_SETTLE = 6.0, 1.0
"""Seconds; the relay lowers its sleep flag in the first of them."""
RUN = 10.0
"""Seconds in which what was committed has run, once the load is over."""


def test_64_submitters_wait_for_no_announcement(stage: Stage) -> None:
    """B24. That such waits would be seen is shown by submitters that do announce."""
    relay, consumer = stage.relay(), stage.consumer(slots=50)
    relay.wait_ready()
    consumer.wait_ready()
    stage.run_from_hint(consumer)
    with Load(stage.database, writers=SUBMITTERS, pause=(0.0, 0.0)) as load:
        time.sleep(LET_SETTLE)
        waits, looks = _commits_that_wait(stage.database, for_=LOADED)
        committed = list(load.stop())
    assert relay.reds() == {}
    stage.wait_done(committed, deadline=60)
    with Load(stage.database, writers=SUBMITTERS, pause=(0.0, 0.0), also="NOTIFY anything"):
        time.sleep(LET_SETTLE)
        announcing, looked = _commits_that_wait(stage.database, for_=1.0)
    print(f"{len(committed)} submits: {waits} waits in {looks} looks; announced: {announcing} in {looked}")
    assert waits == 0
    assert announcing > 0, "this would have been seen"
    stage.finish(deadline=60)


def test_a_listener_in_a_transaction(stage: Stage) -> None:
    """B25: the notification queue cannot be emptied past it; nobody waits for that, and nobody fails."""
    relay, consumer = stage.relay(), stage.consumer()
    relay.wait_ready()
    consumer.wait_ready()
    with stage.database.connect(application_name="listener") as other:
        other.execute("LISTEN anything")
        other.execute("BEGIN")
        other.execute("SELECT 1")
        # Slow enough for the relay to fall asleep in between, so that submits do notify.
        with Load(stage.database, pause=(0.0, 1.5), seed=25) as load:
            time.sleep(8.0)
            committed = load.stop()
        stage.wait_done(committed, deadline=RUN)
        usage = stage.conn.execute("SELECT pg_notification_queue_usage()").fetchone()
        print(f"{len(committed)} submits, the slowest {max(load.latencies) * 1000:.0f} ms; usage {usage}")
        assert usage is not None
        assert usage[0] < 0.01
        (finding,) = stage.doctor("notifications")
        assert finding.text.startswith("the server's queue is 0% full")
        assert f"{other.info.backend_pid} (" in finding.text
        other.execute("ROLLBACK")
    assert [one for one in stage.doctor() if one.level == "wrong"] == []
    stage.finish()


def _commits_that_wait(database: Database, *, for_: float) -> tuple[int, int]:
    """Sessions of the load seen waiting for the lock that announcing commits take, in how many looks."""
    waits = looks = 0
    ends = time.monotonic() + for_
    with database.connect(application_name="watch") as conn:
        while time.monotonic() < ends:
            row = conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'load' AND wait_event_type = 'Lock' AND wait_event = 'object'"
            ).fetchone()
            assert row is not None
            waits, looks = waits + row[0], looks + 1
            time.sleep(0.002)
    return waits, looks
