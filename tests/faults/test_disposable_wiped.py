"""RabbitMQ deleted in mid-run, data and all: every job runs, with one attempt, and a new one brings hints."""

from __future__ import annotations

import random
import time

import pytest

from bellwire_testkit.rabbitmq import RabbitServer
from tests.faults.app import Nap, Quick
from tests.faults.load import Load, slowest_start
from tests.faults.stage import Stage

BEFORE, GONE, AFTER = 2.0, 5.0, 2.0
"""Seconds of load before it is deleted, while there is none, and after the new one is up."""
START = 2.0
"""Seconds from submit to start while there is none, and of what was on its way when it went."""
BACK = 10.0
"""Seconds from the new broker's first moment until a hint brings a job."""
ALL_BACK = 20.0
"""Seconds until each process has found it: a new broker makes its queues slowly while it starts, so that one
try may time out (5 s), and the pause behind it is up to 4 s."""
WRITERS, SLOTS, TIMES = 3, 50, 2


@pytest.fixture
def root_stage(request: pytest.FixtureRequest, own_rabbitmq: RabbitServer) -> Stage:
    """At the virtual host that a new broker has by itself."""
    stage: Stage = request.getfixturevalue("own_stage")
    stage.amqp, stage.admin = own_rabbitmq.url, own_rabbitmq.admin
    return stage


@pytest.mark.slow
def test_deleted_twice_under_a_load(root_stage: Stage, own_rabbitmq: RabbitServer) -> None:
    stage = root_stage
    relay = stage.relay()
    consumers = [stage.consumer(slots=SLOTS) for _ in range(2)]
    for one in (relay, *consumers):
        one.wait_ready()
    stage.run_from_hint(*consumers)

    def jobs(dice: random.Random) -> list[Quick | Nap]:
        return [Quick(), Nap(seconds=dice.uniform(0.0, 0.2))]

    with Load(stage.database, writers=WRITERS, pause=(0.0, 0.05), jobs=jobs) as load:
        flowing = []
        for _ in range(TIMES):
            time.sleep(BEFORE)
            own_rabbitmq.wipe()
            time.sleep(GONE)
            before = stage.claimed_by("hint", *consumers)
            own_rabbitmq.start()
            up = time.monotonic()
            consumers[0].process.wait_for(
                lambda: stage.claimed_by("hint", *consumers) > before,  # noqa: B023
                deadline=BACK,
                describe="a hint to bring a job",
            )
            flowing.append(time.monotonic() - up)
            for one in (relay, *consumers):
                one.wait_ready(deadline=ALL_BACK)
        time.sleep(AFTER)
        committed = load.stop()
    stage.wait_done(committed)
    slowest = slowest_start(stage, committed)
    hinted, polled = (stage.claimed_by(source, *consumers) for source in ("hint", "poll"))
    print(
        f"{len(committed)} jobs, {hinted} by hints, {polled} polled; slowest start {slowest:.2f} s;"
        f" hints flow {max(flowing):.1f} s after"
    )
    assert slowest < START
    for one in (relay, *consumers):
        assert one.connects >= 1 + TIMES
    stage.finish()
