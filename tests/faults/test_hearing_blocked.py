"""A handler that blocks the event loop starves the broker's heartbeats, and costs a connection, not a job."""

from __future__ import annotations

import time

from bellwire_testkit.waiting import wait_until
from tests.faults.app import Block, Quick, ThreadNap
from tests.faults.stage import Stage

BLOCKED_S = 15.0
BOUND = 10.0


def test_a_blocked_event_loop(stage: Stage) -> None:
    """Longer than three heartbeats and than the lease, which a thread of its own renews meanwhile."""
    relay = stage.relay()
    consumer = stage.consumer(BELLWIRE_AMQP_HEARTBEAT="2s")
    stage.up(relay, consumer)
    ids = stage.submit(Block(seconds=BLOCKED_S))
    stage.wait_running(ids)
    began = time.monotonic()
    assert "blocked" in consumer.wait_red("event_loop", deadline=BLOCKED_S)
    stage.measured("red after the loop was blocked", time.monotonic() - began, bound=12.5)
    stage.admin.wait_for_consumers(stage.queue(), 0)
    stage.wait_done(ids, deadline=30)
    since = time.monotonic()
    consumer.wait_connects(2, deadline=BOUND)
    stage.run_from_hint(consumer, deadline=since + BOUND - time.monotonic())
    stage.measured("hints after a blocked loop", time.monotonic() - since, bound=BOUND)
    consumer.wait_ready(deadline=5)
    assert consumer.connects == 2
    stage.finish()


def test_every_slot_and_thread_taken(stage: Stage) -> None:
    """Hints that find no slot are let go; the jobs they named start when one is free; it stays green."""
    relay, consumer = stage.relay(), stage.consumer(slots=3)
    stage.up(relay, consumer)
    busy = stage.submit(*[ThreadNap(seconds=12) for _ in range(3)])
    stage.wait_running(busy)
    waiting = stage.submit(*[Quick(n=n) for n in range(30)])
    ends = time.monotonic() + 8
    while time.monotonic() < ends:
        assert consumer.reds() == {}
        time.sleep(0.25)
    wait_until(
        lambda: all((queue := stage.admin.queue(stage.queue(kind))) and queue.unacked == 0
                    for kind in ("quick", "thread_nap")),
        describe="nothing to be unacknowledged",
    )  # fmt: skip
    assert stage.state(waiting) == {"ready": 30}
    stage.wait_done([*busy, *waiting], deadline=30)
    assert consumer.connects == 1
    stage.finish()
