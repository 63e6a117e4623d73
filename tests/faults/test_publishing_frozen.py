"""A broker that stops answering, or whose connection is cut anywhere: the relay gives the connection up, says
so, and hints everything again when it is back; nobody restarts it.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import get_args
from uuid import UUID

import pytest

from bellwire_testkit.faults import AfterBytes, Direction
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import RabbitServer
from bellwire_testkit.waiting import wait_until
from tests.faults.app import Quick
from tests.faults.load import Deaf, Load, hinted, said_of
from tests.faults.stage import Daemon, Stage

RED = 8.0
"""Seconds until /ready says it: the deadline of a confirm (5 s), and what a loaded machine adds."""
BACK = 10.0
"""Seconds from the end of the fault until hints flow."""
IN_FLIGHT, PENDING = 50, 500
CUTS, OFFSET = 200, 2000
"""A handshake is some 1,500 bytes one way and 900 the other, so some cuts fall into it and most behind it."""
RELAYS, CONSUMERS = 4, 4
"""Each waits up to four seconds between tries, so the more there are, the sooner 200 are cut."""
WAYS: tuple[Direction, ...] = get_args(Direction)
LINES_A_CUT = 3
"""Of a relay or consumer: that it lost the broker and that it is back, and what was going on."""


class CutAt(AfterBytes):
    """A cut that need not come to pass."""

    def disarm(self) -> None:
        self._left = 1 << 60


@pytest.mark.parametrize("direction", ["to_client", None])
def test_publishes_that_are_never_confirmed(
    stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str, direction: Direction | None
) -> None:
    """B10: frozen with 50 publishes on the wire and 500 jobs behind them."""
    relay = stage.relay(amqp=amqp_proxy_url).wait_ready()
    # The smallest consumer has one slot, so a hint names one job.
    with Deaf(stage.database, 1, 2000):
        stage.submit(Quick())
        wait_until(lambda: hinted(stage), deadline=BACK, describe="the first hint")
        confirmed = relay.metric("bellwire_hint_published_total", result="confirmed")
        amqp_proxy.freeze(direction)
        frozen = time.monotonic()
        ids = [stage.submit(Quick())[0] for _ in range(IN_FLIGHT)]
        if direction == "to_client":
            stage.admin.wait_for_queue(stage.queue(), depth=IN_FLIGHT)
        ids += stage.submit(*[Quick() for _ in range(PENDING)])
        relay.process.wait_for(
            lambda: "no confirm within 5 s" in (relay.reds() or {}).get("broker", ""),
            deadline=frozen + RED - time.monotonic(),
            describe="/ready to say what is wrong",
        )
        assert relay.get("/live")[0] == 200
        assert relay.metric("bellwire_broker_connected", connection="relay") == 0
        assert relay.metric("bellwire_hint_published_total", result="timed_out") >= IN_FLIGHT
        _trouble_is_said(stage, "timed out", at_least=IN_FLIGHT, job=ids[0])
        if direction == "to_client":
            hinted(stage)
        amqp_proxy.thaw()
        thawed = time.monotonic()
        seen: set[str] = set()

        def all_seen() -> bool:
            nonlocal seen
            seen |= {job for one in hinted(stage) for job in one}
            return {job.hex for job in ids} <= seen

        wait_until(all_seen, deadline=BACK, describe=lambda: f"hints of all jobs; there were {len(seen)}")
        print(f"{direction or 'both ways'}: all hinted {time.monotonic() - thawed:.1f} s after")
        relay.wait_ready(deadline=BACK)
        # What was on the wire when the connection was given up never counts, whoever answers it later.
        assert relay.metric("bellwire_hint_published_total", result="confirmed") >= confirmed + len(ids)
        assert relay.connects == 2
    stage.consumer().wait_ready()
    stage.finish()


@pytest.mark.slow
def test_cut_at_200_random_bytes(stage: Stage, rabbitmq: RabbitServer) -> None:
    """B10: anywhere in a handshake, a publish, a confirm, a delivery, an acknowledgement, both ways.

    Each process is behind a proxy of its own, and cut again as soon as it says something.
    """
    dice = random.Random(10)
    with ExitStack() as open_:
        proxies = [
            open_.enter_context(Proxy(rabbitmq.host, rabbitmq.port, postgres=False))
            for _ in range(RELAYS + CONSUMERS)
        ]
        urls = [rabbitmq.vhost_url(stage.admin.vhost, port=proxy.port) for proxy in proxies]
        relays = [stage.relay(amqp=url) for url in urls[:RELAYS]]
        consumers = [stage.consumer(amqp=url) for url in urls[RELAYS:]]
        for one in stage.daemons:
            one.wait_ready()
        armed: dict[Proxy, list[CutAt]] = {proxy: [] for proxy in proxies}
        moved = time.monotonic()
        with Load(stage.database, pause=(0.0, 0.1)) as load:
            while sum(proxy.cuts for proxy in proxies) < CUTS:
                for proxy, rules in armed.items():
                    if proxy.cuts == len(rules):
                        rules.append(CutAt(dice.choice(WAYS), dice.randint(1, OFFSET)))
                        proxy.arm(rules[-1])
                        moved = time.monotonic()
                assert time.monotonic() - moved < 30, f"nothing is cut any more: {armed}"
                time.sleep(0.05)
            for rules in armed.values():
                rules[-1].disarm()
            cut = time.monotonic()
            committed = load.stop()
        _all_is_well(stage, relays, consumers, committed, since=cut)


def _all_is_well(
    stage: Stage, relays: list[Daemon], consumers: list[Daemon], committed: list[UUID], *, since: float
) -> None:
    stage.wait_done(committed, deadline=BACK)
    stage.run_from_hint(*consumers, deadline=BACK - (time.monotonic() - since))
    for one in stage.daemons:
        one.wait_ready(deadline=BACK)
    lines = sum(len(one.lines()) for one in stage.daemons)
    connects = sum(one.connects for one in stage.daemons)
    by_hint, by_poll = (stage.claimed_by(source, *consumers) for source in ("hint", "poll"))
    print(f"{len(committed)} jobs, {by_hint} by hints, {by_poll} polled; {connects} connects, {lines} lines")
    assert connects > RELAYS + CONSUMERS
    assert lines < LINES_A_CUT * CUTS
    assert [one.process.code for one in relays] == [None] * RELAYS
    stage.finish()


def _trouble_is_said(stage: Stage, trouble: str, *, at_least: int, job: object) -> None:
    """By doctor, how many; by explain, of one of them."""

    def count() -> int:
        told = [one.text for one in stage.doctor("hints") if one.level == "note" and trouble in one.text]
        return sum(int(text.split()[1].replace(",", "")) for text in told)

    wait_until(
        lambda: count() >= at_least,
        deadline=5.0,
        describe=lambda: f"{at_least} of {trouble}; doctor says {stage.doctor('hints')}",
    )
    assert trouble in said_of(stage, job)
