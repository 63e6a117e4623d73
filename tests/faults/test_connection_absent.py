"""A broker that is away for minutes, then a database: a few lines in the log, jobs within two seconds of
their commit while it lasts, and all back by itself.
"""

from __future__ import annotations

import time

import pytest

from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import RabbitServer
from tests.faults.app import Quick
from tests.faults.stage import Stage

AWAY_S = 300.0
DATABASE_AWAY_S = 45.0
LINES = 100
START_BOUND = 2.0
RETURN_BOUND = 10.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_minutes_without_a_broker_then_without_a_database(
    own_stage: Stage, own_rabbitmq: RabbitServer, proxy: Proxy
) -> None:
    stage = own_stage
    host = stage.database.server
    urls = {
        role: host.dsn(stage.database.name, user=f"bellwire_{role}", port=proxy.port)
        for role in ("relay", "consumer")
    }
    relay = stage.relay(BELLWIRE_DATABASE_URL=urls["relay"])
    consumer = stage.consumer(BELLWIRE_DATABASE_URL=urls["consumer"])
    stage.up(relay, consumer)
    own_rabbitmq.stop()
    ends = time.monotonic() + AWAY_S
    starts: list[float] = []
    consumer.wait_red("broker", deadline=10)
    relay.wait_red("broker", deadline=10)
    while time.monotonic() < ends:
        starts.append(stage.start_delay(stage.submit(Quick())[0]))
        for one in (relay, consumer):
            assert set(one.reds() or {"": ""}) == {"broker"}
        time.sleep(3)
    for one in (relay, consumer):
        name = one.process.argv[1]
        lost = len(one.lines())
        stage.measured(f"lines of the {name}, broker away for {AWAY_S:g} s", lost, bound=LINES, unit="lines")
    stage.measured("from commit to start, the slowest of all", max(starts), bound=START_BOUND)
    own_rabbitmq.start()
    since = time.monotonic()
    stage.run_from_hint(consumer, deadline=RETURN_BOUND)
    stage.measured("hints after the broker's return", time.monotonic() - since, bound=RETURN_BOUND)
    for one in (relay, consumer):
        one.wait_ready(deadline=10)

    before = {one.port: len(one.lines()) for one in (relay, consumer)}
    proxy.refuse()
    time.sleep(DATABASE_AWAY_S)
    for one in (relay, consumer):
        assert "database" in (one.reds() or {})
        assert "broker" not in (one.reds() or {}), "the broker is as well as it was"
    proxy.serve()
    since = time.monotonic()
    stage.run_from_hint(consumer, deadline=3 * RETURN_BOUND)
    stage.measured("hints after the database's return", time.monotonic() - since, bound=3 * RETURN_BOUND)
    for one in (relay, consumer):
        added = len(one.lines()) - before[one.port]
        stage.measured(
            f"lines of the {one.process.argv[1]}, database away for {DATABASE_AWAY_S:g} s",
            added,
            bound=LINES,
            unit="lines",
        )
        one.wait_ready()
    stage.finish()


def test_started_before_the_broker(own_stage: Stage, own_rabbitmq: RabbitServer) -> None:
    """No order of starting is needed: jobs run at once, hints when there is a broker."""
    stage = own_stage
    own_rabbitmq.stop()
    relay, consumer = stage.relay(), stage.consumer()
    consumer.process.wait_for_output("consumer started", deadline=60)
    stage.run_one(deadline=30)
    assert "broker" in (consumer.reds() or {})
    own_rabbitmq.start()
    since = time.monotonic()
    stage.run_from_hint(consumer, deadline=RETURN_BOUND)
    stage.measured("hints after the broker came", time.monotonic() - since, bound=RETURN_BOUND)
    relay.wait_ready(deadline=10)
    stage.finish()
