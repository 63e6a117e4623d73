"""What is not due is in the database and nowhere else: neither the broker nor a process holds it."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from bellwire_testkit.waiting import wait_until
from tests.faults.app import Quick
from tests.faults.stage import Stage

TOMORROW = 200_000
BATCH = 10_000
NOW = 100
MIB = 1024 * 1024


@pytest.mark.slow
def test_two_hundred_thousand_due_tomorrow(stage: Stage) -> None:
    relay, consumer = stage.relay(), stage.consumer()
    stage.up(relay, consumer)
    stage.wait_done(stage.submit(*[Quick(n=n) for n in range(500)]))
    before = {one.port: one.rss for one in (relay, consumer)}
    due = timedelta(days=1)
    for _ in range(TOMORROW // BATCH):
        stage.submit(*[Quick(n=n) for n in range(BATCH)], run_in=due)
    ids = stage.submit(*[Quick(n=n) for n in range(NOW)])
    took = stage.wait_done(ids)
    stage.measured(f"{NOW} due now beside {TOMORROW} due tomorrow", took, bound=5)
    since = time.monotonic()
    while time.monotonic() - since < 5:
        queue = stage.admin.queue(stage.queue())
        assert queue is not None
        assert queue.depth < 10
        time.sleep(0.5)
    for one in (relay, consumer):
        grown = (one.rss - before[one.port]) / MIB
        stage.measured(f"growth of the {one.process.argv[1]}", grown, bound=20, unit="MiB")
    row = stage.conn.execute("SELECT count(*) FROM bellwire.job WHERE state = 'scheduled'").fetchone()
    assert row == (TOMORROW,)
    wait_until(
        lambda: stage.conn.execute("SELECT count(*) FROM bellwire.outbox").fetchone() == (0,),
        describe="no wake-up to be left",
    )
    stage.conn.execute("DELETE FROM bellwire.job WHERE state = 'scheduled'")
    stage.finish()
