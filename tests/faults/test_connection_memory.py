"""Two hundred reconnects of one process leave nothing behind: not in its memory, not at the broker."""

from __future__ import annotations

import time

import pytest

from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import RabbitServer
from bellwire_testkit.waiting import wait_until
from tests.faults.stage import Daemon, Stage

RECONNECTS = 200
WARM = 30
MIB = 1024 * 1024


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_hundred_reconnects(
    stage: Stage, rabbitmq: RabbitServer, amqp_proxy: Proxy, amqp_proxy_url: str
) -> None:
    """Each process behind a proxy of its own, cut whenever it is back."""
    with Proxy(rabbitmq.host, rabbitmq.port, postgres=False) as other:
        relay = stage.relay(amqp=rabbitmq.vhost_url(stage.admin.vhost, port=other.port))
        consumer = stage.consumer(amqp=amqp_proxy_url)
        daemons = {relay: other, consumer: amqp_proxy}
        stage.up(*daemons)
        cuts = dict.fromkeys(daemons, 0)
        warm: dict[Daemon, int] = {}
        moved = time.monotonic()
        while min(cuts.values()) < RECONNECTS:
            for one, proxy in daemons.items():
                # Its start was the first time that it came to stand.
                if cuts[one] < RECONNECTS and one.connects == cuts[one] + 1:
                    proxy.cut()
                    cuts[one] += 1
                    moved = time.monotonic()
                    if cuts[one] == WARM:
                        warm[one] = one.rss
            assert time.monotonic() - moved < 20, f"no reconnect any more: {cuts.values()}"
            time.sleep(0.1)
        for one in daemons:
            one.wait_connects(RECONNECTS + 1)
        _nothing_is_left(stage, warm)
        stage.run_from_hint(consumer)
        stage.finish()


def _nothing_is_left(stage: Stage, warm: dict[Daemon, int]) -> None:
    wait_until(
        lambda: (len(stage.admin.connections()), stage.admin.channel_count()) == (2, 2),
        describe=lambda: (
            f"two connections and channels; there are {len(stage.admin.connections())}, "
            f"{stage.admin.channel_count()}"
        ),
    )
    for one, before in warm.items():
        grown = (one.rss - before) / MIB
        name = one.process.argv[1]
        stage.measured(
            f"growth of the {name} over {RECONNECTS - WARM} reconnects", grown, bound=20, unit="MiB"
        )
        stage.measured(f"lines of the {name}", len(one.lines()), bound=2.2 * RECONNECTS, unit="lines")
        assert len(one.lines("broker lost")) <= RECONNECTS
