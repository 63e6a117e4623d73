"""A hundred thousand publishes leave nothing behind in the relay or at the broker."""

from __future__ import annotations

import time

import pytest

from tests.faults.app import Quick
from tests.faults.stage import Stage
from tests.integration.relay_stage import Muscle

PUBLISHES, ROUND = 100_000, 5_000
WARM = 20_000
"""Publishes until every pool and buffer has the size it keeps."""
GROWTH = 20 * 2**20
"""Bytes. A hundred bytes kept of each hint would be eight million."""


@pytest.mark.slow
def test_memory_and_channels_stay_as_they_are(stage: Stage) -> None:
    """B36, its publishing half."""
    relay = stage.relay().wait_ready()
    # The smallest consumer has one slot, so each hint names one job.
    small = Muscle(stage.conn, slots=1, lines=[("quick", 1)])
    large = Muscle(stage.conn, slots=2 * ROUND, lines=[("quick", 1)])
    sizes: list[int] = []
    began = time.monotonic()
    published = 0
    while published < PUBLISHES:
        for _ in range(ROUND // 1000):
            stage.submit(*[Quick() for _ in range(1000)])
            small.beat()
            large.beat()
        published += ROUND
        relay.process.wait_for(
            lambda: relay.metric("bellwire_hint_published_total", result="confirmed") >= published,  # noqa: B023
            deadline=60,
            describe=f"{published} hints to be confirmed",
        )
        while claims := large.claim(1000):
            large.succeed(claims)
        stage.admin.purge(stage.queue())
        assert [int(one["channels"]) for one in stage.admin.connections()] == [1]
        sizes.append(relay.rss)
    took = time.monotonic() - began
    warm = sizes[WARM // ROUND - 1]
    print(
        f"{published} publishes in {took:.0f} s: {warm / 2**20:.1f} MiB after {WARM},"
        f" {sizes[-1] / 2**20:.1f} at the end, {max(sizes) / 2**20:.1f} at the most"
    )
    assert max(sizes[WARM // ROUND :]) - warm < GROWTH
    assert relay.connects == 1
    assert relay.metric("bellwire_hint_published_total", result="timed_out") == 0
    small.leave()
    large.leave()
    stage.finish()
