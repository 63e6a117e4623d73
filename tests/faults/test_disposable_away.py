"""While the broker is away, in whatever way, jobs start within two seconds of their submit; ten seconds after
it is back hints flow again. Nobody restarts anything.
"""

from __future__ import annotations

import socket
import time
from uuid import uuid4

import pytest

from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import RabbitServer
from tests.conftest import vhost_of
from tests.faults.app import Quick
from tests.faults.load import slowest_start
from tests.faults.stage import Daemon, Stage, free_port

START = 2.0
"""Seconds from submit to start, of the slowest."""
BACK = 10.0
"""Seconds from the broker's return until a hint brings a job."""
JOBS, APART = 60, 0.03
SLOTS = 100
"""As many as a consumer has by default."""


def away(stage: Stage, what: str, *consumers: Daemon) -> None:
    """Jobs come one by one, each starts in time, and none by a hint."""
    by_hint = stage.claimed_by("hint", *consumers)
    ids = []
    for _ in range(JOBS):
        ids += stage.submit(Quick())
        time.sleep(APART)
    stage.wait_done(ids)
    slowest = slowest_start(stage, ids)
    print(f"{what}: slowest start of {JOBS} {slowest:.2f} s")
    assert slowest < START
    assert stage.claimed_by("hint", *consumers) == by_hint


def back(stage: Stage, what: str, *consumers: Daemon) -> None:
    since = time.monotonic()
    stage.run_from_hint(*consumers, deadline=BACK)
    print(f"{what}: hints flow {time.monotonic() - since:.1f} s after")
    for one in stage.daemons:
        one.wait_ready(deadline=BACK)


@pytest.mark.parametrize("where", ["nobody", "postgres", "silent"])
def test_never_there(stage: Stage, where: str) -> None:
    """No broker where the address says: nobody listens, or somebody who speaks no AMQP, or says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = {
            "nobody": free_port(),
            "postgres": stage.database.server.port,
            "silent": silent.getsockname()[1],
        }[where]
        address = f"amqp://guest:guest@127.0.0.1:{port}/"
        relay = stage.relay(amqp=address)
        consumer = stage.consumer(amqp=address, slots=SLOTS)
        for one in (relay, consumer):
            one.wait_red("broker", deadline=30)
        stage.run_one(deadline=20)
        away(stage, where, consumer)
        assert [one.level for one in stage.doctor("broker")] == ["note", "note"]
        assert all("poll" in one.text for one in stage.doctor("broker"))
        stage.finish()


@pytest.mark.parametrize("how", ["refused", "frozen"])
def test_goes_and_comes(stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str, how: str) -> None:
    """From the moment it goes, noticed or not."""
    relay = stage.relay(amqp=amqp_proxy_url)
    consumer = stage.consumer(amqp=amqp_proxy_url, slots=SLOTS)
    for one in (relay, consumer):
        one.wait_ready()
    stage.run_from_hint(consumer)
    (amqp_proxy.refuse if how == "refused" else amqp_proxy.freeze)()
    away(stage, how, consumer)
    for one in (relay, consumer):
        one.wait_red("broker")
    away(stage, f"{how}, and noticed", consumer)
    (amqp_proxy.serve if how == "refused" else amqp_proxy.thaw)()
    back(stage, how, consumer)
    stage.finish()


@pytest.mark.parametrize("what", ["password", "virtual host", "rights"])
def test_refuses(stage: Stage, rabbitmq: RabbitServer, what: str) -> None:
    """403, 530, 403: it is there and lets nobody in, until somebody mends that."""
    vhost, user = vhost_of(stage.amqp), f"late-{uuid4().hex[:8]}"
    admin = rabbitmq.admin
    password = "other" if what == "password" else "secret"
    admin.call("PUT", "users", user, body={"password": password, "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    if what != "virtual host":
        rights = everything if what == "password" else {"configure": "^$", "write": "^$", "read": "^$"}
        admin.call("PUT", "permissions", vhost, user, body=rights)
    address = stage.amqp.replace("guest:guest@", f"{user}:secret@")
    relay = stage.relay(amqp=address)
    consumer = stage.consumer(amqp=address, slots=SLOTS)
    for one in (relay, consumer):
        one.wait_red("broker", deadline=30)
    stage.run_one(deadline=20)
    away(stage, what, consumer)
    for one in (relay, consumer):
        assert "secret" not in one.process.output
    admin.call("PUT", "users", user, body={"password": "secret", "tags": ""})
    admin.call("PUT", "permissions", vhost, user, body=everything)
    back(stage, what, consumer)
    stage.finish()
    admin.call("DELETE", "users", user)
