"""The connection stays, and what was built on it goes: a closed channel, a cancelled consumer, a queue or a
permission taken away. Each is an event of the first rank: /ready says so, and all is built anew.
"""

from __future__ import annotations

import time
from uuid import uuid4

from bellwire_testkit.proxy import Proxy
from bellwire_testkit.waiting import wait_until
from tests.faults.app import Quick
from tests.faults.stage import Stage
from tests.faults.wire import BogusAck

BOUND = 10.0


def test_the_broker_closes_only_the_channel(stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str) -> None:
    """An acknowledgement of what never was delivered: 406, and the connection goes on."""
    relay = stage.relay()
    consumer = stage.consumer(amqp=amqp_proxy_url)
    stage.up(relay, consumer)
    forged = BogusAck()
    amqp_proxy.refuse(cut=False)
    amqp_proxy.arm(forged)
    wait_until(lambda: stage.run_one() and forged.sent.is_set(), describe="the consumer to acknowledge")
    said = consumer.wait_red("broker", deadline=5)
    assert "unknown delivery tag" in said
    stage.run_one(deadline=5)
    amqp_proxy.serve()
    since = time.monotonic()
    consumer.wait_connects(2, deadline=BOUND)
    stage.run_from_hint(consumer, deadline=since + BOUND - time.monotonic())
    stage.measured("hints after a 406", time.monotonic() - since, bound=BOUND)
    consumer.wait_ready(deadline=5)
    assert len(consumer.lines("broker lost")) == 1
    stage.finish()


def test_the_relays_channel_is_closed(stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str) -> None:
    relay = stage.relay(amqp=amqp_proxy_url)
    consumer = stage.consumer()
    stage.up(relay, consumer)
    forged = BogusAck()
    amqp_proxy.arm(forged)
    since = time.monotonic()
    wait_until(lambda: stage.run_one() and forged.sent.is_set(), describe="the relay to publish")
    relay.wait_connects(2, deadline=BOUND)
    stage.run_from_hint(consumer, deadline=since + BOUND - time.monotonic())
    relay.wait_ready(deadline=5)
    stage.finish()


def test_a_queue_deleted_while_it_is_consumed(stage: Stage) -> None:
    relay, consumer = stage.relay(), stage.consumer()
    stage.up(relay, consumer)
    for _ in range(3):
        stage.admin.delete_queue(stage.queue())
        since = time.monotonic()
        ids = stage.submit(*[Quick(n=n) for n in range(10)])
        stage.run_from_hint(consumer, deadline=BOUND)
        stage.wait_done(ids)
        stage.measured("hints after the queue was deleted", time.monotonic() - since, bound=BOUND)
        stage.admin.wait_for_consumers(stage.queue(), 1)
    stage.finish()


def test_a_permission_taken_away(stage: Stage) -> None:
    """Nothing is lost but the right to consume, of the consumer alone; to say so is all it can do."""
    name = f"reader-{uuid4().hex[:8]}"
    stage.admin.call("PUT", "users", name, body={"password": "r3ad3r", "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    path = ("permissions", stage.admin.vhost, name)
    stage.admin.call("PUT", *path, body=everything)
    try:
        relay = stage.relay()
        consumer = stage.consumer(amqp=stage.amqp.replace("guest:guest", f"{name}:r3ad3r"))
        stage.up(relay, consumer)
        stage.admin.call("PUT", *path, body={**everything, "read": "^$"})
        stage.close_connections(2)
        since = time.monotonic()
        wait_until(
            lambda: "REFUSED" in (consumer.reds() or {}).get("broker", ""),
            describe=lambda: f"/ready to tell of the refusal; it says {consumer.reds()}",
            deadline=BOUND,
        )
        stage.measured("red after a permission was taken away", time.monotonic() - since, bound=BOUND)
        stage.run_one(deadline=5)
        stage.admin.call("PUT", *path, body=everything)
        since = time.monotonic()
        stage.run_from_hint(consumer, deadline=BOUND)
        stage.measured("hints after the permission came back", time.monotonic() - since, bound=BOUND)
        consumer.wait_ready(deadline=5)
        assert "r3ad3r" not in consumer.process.output
        stage.finish()
    finally:
        stage.admin.call("DELETE", "users", name)


def test_only_durable_queues_are_ever_declared(stage: Stage) -> None:
    """Newer brokers refuse the others. None of a reply, delay or control kind, and no exchange of ours."""
    relay, consumer = stage.relay(), stage.consumer()
    stage.up(relay, consumer)
    rows = stage.admin.call("GET", "queues", stage.admin.vhost)
    assert {row["name"] for row in rows} == {
        stage.queue(kind) for kind in ("quick", "nap", "thread_nap", "block")
    }
    for row in rows:
        assert row["durable"] is True
        assert row["auto_delete"] is False
        assert row.get("type") == "quorum"
    exchanges = stage.admin.call("GET", "exchanges", stage.admin.vhost)
    assert {row["name"] for row in exchanges if not row["name"].startswith("amq.")} == {""}
    stage.finish()


def test_idle_is_green_and_one_consumer(stage: Stage) -> None:
    """Longer than subscriptions last before they are renewed: nothing turns red, nothing reconnects."""
    relay, consumer = stage.relay(), stage.consumer()
    stage.up(relay, consumer)
    (first,) = stage.admin.consumers(stage.queue())
    ends = time.monotonic() + 90.0
    while time.monotonic() < ends:
        assert consumer.reds() == {}
        assert relay.reds() == {}
        time.sleep(0.5)
    assert consumer.connects == 1
    assert relay.connects == 1
    wait_until(
        lambda: len(tags := stage.admin.consumers(stage.queue())) == 1 and tags != [first],
        describe="one consumer, under a new tag",
    )
    stage.run_from_hint(consumer)
    stage.finish()
