"""Thirty faults in a row, of every sort, on the same processes: after each the right number of consumers is
listed and hints bring jobs, within ten seconds; at the end every job has run once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from bellwire_testkit.proxy import Direction, Proxy
from bellwire_testkit.rabbitmq import RabbitServer
from tests.faults.app import Quick
from tests.faults.stage import Stage

BOUND = 10.0
ROUNDS = 3
FROZEN_S = 5.0
ENV = {"BELLWIRE_AMQP_HEARTBEAT": "1s", "BELLWIRE_AMQP_TIMEOUT": "3s"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thirty_mixed_cycles(
    own_stage: Stage, own_rabbitmq: RabbitServer, own_amqp_proxy: Proxy, own_amqp_proxy_url: str
) -> None:
    stage, proxy = own_stage, own_amqp_proxy
    relay = stage.relay(amqp=own_amqp_proxy_url, env=ENV)
    consumers = [stage.consumer(amqp=own_amqp_proxy_url, env=ENV) for _ in range(2)]
    stage.up(relay, *consumers)

    faults = _faults(stage, own_rabbitmq, proxy)
    names = list(faults) * ROUNDS
    random.Random(27).shuffle(names)
    worst: dict[str, float] = {}
    for number, name in enumerate(names):
        before = [one.connects for one in consumers]
        ids = stage.submit(*[Quick(n=number) for _ in range(20)])
        faults[name]()
        since = time.monotonic()
        if not any(word in name for word in ("frozen", "deleted")):
            # A count that is a second old must not pass for a recovery. Of the others some are survived: a
            # connection that freezes for a moment, a queue that the next proof has declared again.
            for one, was in zip(consumers, before, strict=True):
                one.wait_connects(was + 1, deadline=BOUND)
        for kind in ("quick", "nap"):
            left = since + BOUND - time.monotonic()
            stage.admin.wait_for_consumers(stage.queue(kind), 2, deadline=left)
        stage.run_from_hint(*consumers, deadline=max(0.5, since + BOUND - time.monotonic()))
        worst[name] = max(worst.get(name, 0.0), time.monotonic() - since)
        stage.wait_done(ids, deadline=10)
    for name, took in sorted(worst.items()):
        stage.measured(f"healed from {name}, the slowest of {ROUNDS}", took, bound=BOUND)
    for one in (relay, *consumers):
        # A loss and a return each, and nothing that repeats.
        stage.measured(f"log lines of {one.process.argv[1]}", len(one.lines()), bound=150, unit="lines")
    stage.finish()


def _faults(stage: Stage, node: RabbitServer, proxy: Proxy) -> dict[str, Callable[[], None]]:
    def cut_twice() -> None:
        proxy.cut()
        time.sleep(0.7)
        proxy.cut()

    def frozen(direction: Direction | None) -> Callable[[], None]:
        def freeze() -> None:
            proxy.freeze(direction)
            time.sleep(FROZEN_S)
            proxy.thaw()

        return freeze

    def again(end: Callable[[], None]) -> Callable[[], None]:
        def restart() -> None:
            end()
            node.start()

        return restart

    def delete(kind: str) -> Callable[[], None]:
        return lambda: stage.admin.delete_queue(stage.queue(kind))

    return {
        "cut": proxy.cut,
        "cut twice": cut_twice,
        "frozen": frozen(None),
        "frozen towards the broker": frozen("to_server"),
        "frozen towards us": frozen("to_client"),
        "restarted": again(node.stop),
        "killed": again(node.kill),
        "closed by the broker": lambda: stage.close_connections(3),
        "queue deleted": delete("quick"),
        "another queue deleted": delete("nap"),
    }
