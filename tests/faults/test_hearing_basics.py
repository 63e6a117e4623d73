"""Hints are heard at all: the ground on which every fault below stands."""

from tests.faults.app import Quick
from tests.faults.stage import Stage


def test_a_hint_brings_a_job_and_idle_stays_green(stage: Stage) -> None:
    relay, consumer = stage.relay(), stage.consumer()
    relay.wait_ready()
    consumer.wait_ready()
    stage.run_from_hint(consumer)
    ids = stage.submit(*[Quick(n=n) for n in range(100)])
    stage.wait_done(ids)
    assert consumer.reds() == {}
    stage.admin.wait_for_consumers(stage.queue(), 1)
    stage.admin.wait_for_queue(stage.queue(), depth=0)
    stage.finish()
