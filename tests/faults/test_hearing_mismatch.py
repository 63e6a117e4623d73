"""A queue that somebody made with other arguments: found before anything is claimed, and explained."""

from __future__ import annotations

from bellwire_runtime.broker.topology import ARGUMENTS
from bellwire_testkit.rabbitmq_admin import AdminRefused
from bellwire_testkit.waiting import wait_until
from tests.faults.app import Quick
from tests.faults.stage import Stage


def test_a_consumer_that_finds_another_queue_says_so_and_ends_with_2(stage: Stage) -> None:
    stage.admin.declare_queue(stage.queue(), {**ARGUMENTS, "x-message-ttl": 60_000})
    ids = stage.submit(*[Quick(n=n) for n in range(5)])
    consumer = stage.consumer("quick")
    assert consumer.process.wait_exit(within=30) == 2
    consumer.hurt = True
    (line,) = [line for line in consumer.process.output.splitlines() if line.startswith("bellwire:")]
    for said in (stage.queue(), "x-message-ttl is 60000, wanted is 120000", "rabbitmqctl delete_queue"):
        assert said in line, line
    assert "Traceback" not in consumer.process.output
    assert stage.state(ids)["ready"] == 5, "nothing was claimed, and submitting needs no broker"

    stage.admin.delete_queue(stage.queue())
    relay, mended = stage.relay(), stage.consumer("quick")
    stage.up(relay, mended)
    stage.wait_done(ids)
    stage.finish()


def test_one_that_runs_goes_on_by_polling_and_turns_red(stage: Stage) -> None:
    relay, consumer = stage.relay(), stage.consumer("quick")
    stage.up(relay, consumer)

    def made_otherwise() -> bool:
        # One of the daemons may be quicker; then the queue is deleted from under it again.
        stage.admin.delete_queue(stage.queue())
        try:
            stage.admin.declare_queue(stage.queue(), {**ARGUMENTS, "x-message-ttl": 60_000})
        except AdminRefused:
            return False
        return True

    def explained() -> bool:
        return "x-message-ttl is 60000, wanted is 120000" in (consumer.reds() or {}).get("broker", "")

    wait_until(made_otherwise, deadline=20, describe="the queue to be made otherwise")
    consumer.process.wait_for(explained, deadline=20, describe="the mismatch to be explained")
    stage.wait_done(stage.submit(*[Quick(n=n) for n in range(20)]))
    stage.admin.delete_queue(stage.queue())
    consumer.wait_ready(deadline=20)
    stage.run_from_hint(consumer)
    stage.finish()
