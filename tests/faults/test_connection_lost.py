"""A connection that froze, was cut, was closed, or lost its broker: hints flow again within ten seconds, by
themselves, and until then jobs run by polling and /ready says what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import RabbitServer
from tests.faults.app import Nap, Quick
from tests.faults.stage import Daemon, Stage

BOUND = 10.0
"""Seconds from the end of the fault to hints that bring jobs."""
QUICK = {"BELLWIRE_AMQP_HEARTBEAT": "1s", "BELLWIRE_AMQP_TIMEOUT": "2s"}


def healed(stage: Stage, *consumers: Daemon, since: float, what: str, connects: int = 2) -> None:
    """Within the bound all have connected anew, the broker lists as many consumers as there are, and a job
    came by a hint.
    """
    for one in consumers:
        one.wait_connects(connects, deadline=since + BOUND - time.monotonic())
    left = since + BOUND - time.monotonic()
    stage.admin.wait_for_consumers(stage.queue(), len(consumers), deadline=left)
    stage.run_from_hint(*consumers, deadline=max(0.5, since + BOUND - time.monotonic()))
    stage.measured(f"healed from {what}", time.monotonic() - since, bound=BOUND)


@pytest.mark.parametrize("direction", [None, "to_server", "to_client"])
def test_frozen_for_four_heartbeats(
    own_stage: Stage, own_amqp_proxy: Proxy, own_amqp_proxy_url: str, direction: str | None
) -> None:
    stage, proxy = own_stage, own_amqp_proxy
    relay = stage.relay(amqp=own_amqp_proxy_url, env=QUICK)
    consumers = [stage.consumer(amqp=own_amqp_proxy_url, env=QUICK) for _ in range(2)]
    stage.up(relay, *consumers)
    frozen = time.monotonic()
    proxy.freeze(direction)  # type: ignore[arg-type]
    # A look every four seconds and a fifth, and a deadline on its answer.
    for one in consumers:
        one.wait_red("broker", deadline=frozen + 8.0 - time.monotonic())
    assert stage.run_one() < 4.0, "polling goes on"
    time.sleep(max(0.0, frozen + 4.0 - time.monotonic()))
    proxy.thaw()
    healed(stage, *consumers, since=time.monotonic(), what=f"frozen {direction or 'both ways'}")
    for one in (relay, *consumers):
        one.wait_ready(deadline=10)
    stage.finish()


@pytest.mark.parametrize("how", ["cut", "close", "restart", "kill"])
def test_lost_and_back(
    own_stage: Stage, own_rabbitmq: RabbitServer, own_amqp_proxy: Proxy, own_amqp_proxy_url: str, how: str
) -> None:
    stage = own_stage
    relay = stage.relay(amqp=own_amqp_proxy_url, env=QUICK)
    consumers = [stage.consumer(amqp=own_amqp_proxy_url, env=QUICK) for _ in range(2)]
    stage.up(relay, *consumers)

    def close() -> None:
        stage.close_connections(3)

    def restart() -> None:
        own_rabbitmq.stop()
        for one in consumers:
            one.wait_red("broker", deadline=5)
        assert stage.run_one() < 2.5, "while the broker is away jobs start within two seconds"
        own_rabbitmq.start()

    def kill() -> None:
        own_rabbitmq.kill()
        stage.run_one()
        own_rabbitmq.start()

    faults: dict[str, Callable[[], None]] = {
        "cut": own_amqp_proxy.cut, "close": close, "restart": restart, "kill": kill
    }  # fmt: skip
    faults[how]()
    healed(stage, *consumers, since=time.monotonic(), what=how)
    for one in consumers:
        one.wait_ready(deadline=10)
        assert len(one.lines("broker lost")) == 1
        assert len(one.lines("broker back")) == 1
    stage.finish()


def test_a_process_that_stood_still_reconnects_once(stage: Stage) -> None:
    """Stopped for more than three heartbeats: the broker has given the connection up meanwhile."""
    heartbeat = {"BELLWIRE_AMQP_HEARTBEAT": "2s"}
    relay, consumer = stage.relay(env=heartbeat), stage.consumer(env=heartbeat)
    stage.up(relay, consumer)
    assert consumer.connects == 1
    consumer.process.stop()
    stage.admin.wait_for_consumers(stage.queue(), 0, deadline=20)
    consumer.process.cont()
    healed(stage, consumer, since=time.monotonic(), what="standing still")
    consumer.wait_ready()
    assert consumer.connects == 2
    stage.finish()


def test_a_stop_during_a_long_job_keeps_it(stage: Stage) -> None:
    """Heartbeats go on until the last handler ends: one attempt, though every limit is far shorter."""
    relay = stage.relay()
    consumer = stage.consumer(BELLWIRE_AMQP_HEARTBEAT="1s", BELLWIRE_SHUTDOWN_GRACE="40s")
    relay.wait_ready()
    consumer.wait_ready()
    other = stage.consumer()
    job = stage.submit(Nap(seconds=15))
    stage.wait_running(job)
    row = stage.conn.execute("SELECT consumer FROM bellwire.job WHERE id = %s", (job[0],)).fetchone()
    assert row is not None
    runs_here = bool(consumer.lines(str(row[0])))
    stopped, stays = (consumer, other) if runs_here else (other, consumer)
    stopped.process.terminate()
    stays.wait_ready()
    stage.submit(*[Quick(n=n) for n in range(20)])
    stage.wait_done(job, deadline=40)
    stopped.hurt = True
    assert stopped.process.wait_exit(within=20) == 0
    stage.finish()


def test_garbage_collection_takes_no_subscription(own_stage: Stage, own_rabbitmq: RabbitServer) -> None:
    stage = own_stage
    relay = stage.relay()
    consumer = stage.consumer(BELLWIRE_TEST_COLLECT="0.05")
    stage.up(relay, consumer)
    for connects in (2, 3):
        own_rabbitmq.restart()
        began = time.monotonic()
        healed(stage, consumer, since=began, what="a restart, with garbage collected", connects=connects)
    stage.finish()
