"""Two hundred reconnects of one process leave nothing behind: not in its memory, not at the broker."""

from __future__ import annotations

import pytest

from bellwire_testkit.proxy import Proxy
from bellwire_testkit.waiting import wait_until
from tests.faults.stage import Stage

RECONNECTS = 200
WARM = 30
MIB = 1024 * 1024


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_hundred_reconnects(stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str) -> None:
    relay, consumer = stage.relay(amqp=amqp_proxy_url), stage.consumer(amqp=amqp_proxy_url)
    daemons = (relay, consumer)
    stage.up(*daemons)
    warm: dict[int, int] = {}
    done = 0
    while done < RECONNECTS:
        before = [one.connects for one in daemons]
        amqp_proxy.cut()
        for one, was in zip(daemons, before, strict=True):
            one.wait_connects(was + 1, deadline=20)
        done += 1
        if done == WARM:
            warm = {one.port: one.rss for one in daemons}
        if done % 50 == 0:
            stage.run_from_hint(consumer)
    wait_until(
        lambda: (len(stage.admin.connections()), stage.admin.channel_count()) == (2, 2),
        describe=lambda: (
            f"two connections and channels; there are {len(stage.admin.connections())}, "
            f"{stage.admin.channel_count()}"
        ),
    )
    for one in daemons:
        grown = (one.rss - warm[one.port]) / MIB
        name = one.process.argv[1]
        stage.measured(
            f"growth of the {name} over {RECONNECTS - WARM} reconnects", grown, bound=20, unit="MiB"
        )
        stage.measured(f"lines of the {name}", len(one.lines()), bound=2.2 * RECONNECTS, unit="lines")
        assert len(one.lines("broker lost")) <= RECONNECTS
    stage.finish()
