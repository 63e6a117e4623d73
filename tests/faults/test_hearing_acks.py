"""What the broker thinks of our acknowledgements: no handler, however slow, holds one back, and no consumer,
however often it dies, loses a job by hints that came back too often.
"""

from __future__ import annotations

import asyncio
import time

import aio_pika
import pytest

from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import RabbitServer
from bellwire_testkit.waiting import kill_at, wait_until
from tests.faults.app import Nap, Quick
from tests.faults.stage import Stage
from tests.faults.wire import AckWatch

ACK_TIMEOUT = 10.0
HANDLER_S = 60.0
DEATHS = 25


@pytest.mark.slow
def test_handlers_that_outlast_the_ack_timeout(own_stage: Stage, own_rabbitmq: RabbitServer) -> None:
    """Ten seconds for an acknowledgement, ten handlers of a minute: one attempt each, nothing is closed."""
    stage = own_stage
    own_rabbitmq.set_consumer_timeout(int(ACK_TIMEOUT * 1000))
    relay, consumer = stage.relay(), stage.consumer(slots=12)
    stage.up(relay, consumer)
    ids = stage.submit(*[Nap(seconds=HANDLER_S) for _ in range(10)])
    stage.wait_running(ids)
    stage.admin.wait_for_queue(stage.queue("nap"), depth=0, unacked=0)
    # The limit is real: who holds a message for longer loses its channel.
    stage.admin.declare_queue("held", {"x-queue-type": "quorum"})
    assert stage.admin.publish("held", b"kept")
    assert asyncio.run(_hold(stage.amqp, "held")) < 3 * ACK_TIMEOUT
    while stage.state(ids)["running"]:
        assert stage.admin.queue(stage.queue("nap")).unacked == 0  # type: ignore[union-attr]
        stage.run_one()
        time.sleep(1)
    stage.wait_done(ids)
    assert consumer.connects == 1
    assert consumer.reds() == {}
    assert consumer.lines("broker lost") == []
    stage.finish()


async def _hold(url: str, queue: str) -> float:
    """Take a message and keep it; answers after how many seconds the broker closed the channel."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    closed = asyncio.Event()
    channel.close_callbacks.add(lambda *_: closed.set())
    began = time.monotonic()
    await (await channel.get_queue(queue)).get(no_ack=False)
    await asyncio.wait_for(closed.wait(), 4 * ACK_TIMEOUT)
    await connection.close()
    return time.monotonic() - began


@pytest.mark.slow
def test_consumers_killed_as_they_hold_hints(stage: Stage) -> None:
    """More often than a quorum queue brings a message back; then the queue is emptied as well."""
    relay = stage.relay()
    first = stage.consumer()
    stage.up(relay, first)
    first.kill()
    ids = stage.submit(*[Quick(n=n) for n in range(50)])
    dropped = False
    for death in range(DEATHS):
        state = stage.admin.queue(stage.queue())
        if death and (state is None or state.depth == 0):
            dropped = True
            stage.hint(ids[:10])
        doomed = stage.consumer("quick", env={"BELLWIRE_CONSUMER_POLL": "false", **kill_at("consumer.heard")})
        doomed.hurt = True
        if not death:
            # The relay admits for a consumer that lives, so the first one has to be seen.
            doomed.process.wait_for_output("consumer started", deadline=60)
        assert doomed.process.wait_exit(within=90) == -9
    assert stage.state(ids) == {"ready": 50}
    stage.admin.purge(stage.queue())
    good = stage.consumer()
    since = time.monotonic()
    stage.wait_done(ids, deadline=60)
    stage.measured(f"50 jobs done after {DEATHS} deaths and a purge", time.monotonic() - since, bound=30)
    good.wait_ready()
    print(f"hints were dropped by the broker: {dropped}")
    stage.finish()


def test_acknowledged_within_a_second_claimed_or_not(
    stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str
) -> None:
    """Seen on the wire, with every slot taken and with free ones, in a flood and alone."""
    watch = AckWatch()
    amqp_proxy.arm(watch)
    relay, consumer = stage.relay(), stage.consumer(amqp=amqp_proxy_url, slots=4)
    stage.up(relay, consumer)
    stage.wait_done(stage.submit(*[Quick(n=n) for n in range(500)]))
    naps = stage.submit(*[Nap(seconds=8) for _ in range(4)])
    stage.wait_running(naps)
    waiting = stage.submit(*[Quick(n=n) for n in range(20)])
    heard = len(watch.deliveries)
    for _ in range(5):
        stage.hint(waiting)
    wait_until(lambda: len(watch.deliveries) >= heard + 1, describe="a hint to be delivered")
    stage.wait_done([*naps, *waiting])
    wait_until(lambda: watch.unacked == 0, describe="every delivery to be acknowledged")
    stage.measured("from delivery to ack, the slowest", max(watch.delays()), bound=1.1)
    stage.measured(
        "from delivery to ack, the median", sorted(watch.delays())[len(watch.delays()) // 2], bound=0.5
    )
    assert len(watch.deliveries) > 20
    assert consumer.connects == 1
    stage.finish()
