"""`bellwire relay` with a broker, as it is shipped: its start, its stops, and kills in the middle."""

from __future__ import annotations

import json
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import pytest

from bellwire_runtime.broker.topology import ARGUMENTS, queue_name
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin, RabbitServer
from bellwire_testkit.waiting import wait_until
from tests.conftest import vhost_of
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit

SECRET = "s3ntinel"


def start(processes: Processes, database: Database, amqp: str, **env: str) -> Process:
    return processes.start(
        "bellwire",
        "relay",
        env={
            "BELLWIRE_DATABASE_URL": database.url_as("bellwire_relay"),
            "BELLWIRE_AMQP_URL": amqp,
            "BELLWIRE_LOG_FORMAT": "json",
            **env,
        },
    )


def queue_of(conn: Conn, kind: str = "work", version: int = 1) -> str:
    row = conn.execute("SELECT id FROM bellwire.installation").fetchone()
    assert row is not None
    return queue_name(row[0], kind, version)


def heard(admin: Admin, queue: str) -> list[UUID]:
    """Ids in all hints that are in the queue, removed from it."""
    if admin.queue(queue) is None:
        return []
    return [UUID(job) for body in admin.take(queue, 1000) for job in json.loads(body)["ids"]]


def wait_heard(relay: Process, admin: Admin, queue: str, jobs: list[UUID]) -> list[UUID]:
    got: list[UUID] = []

    def all_heard() -> bool:
        got.extend(heard(admin, queue))
        return set(jobs) <= set(got)

    relay.wait_for(all_heard, deadline=25, describe=f"hints of {len(jobs)} jobs")
    return got


def with_password(url: str, secret: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"guest:{secret}@{parts.hostname}:{parts.port}"))


def test_a_queue_with_other_arguments_ends_the_start(
    database: Database, conn: Conn, processes: Processes, amqp_url: str, amqp_admin: Admin
) -> None:
    """In words that name the queue, the argument, what is wanted, what was found, and the mend."""
    add_kind(conn, versions=[1, 2])
    add_kind(conn, "retired", versions=[1], retired_at="2026-01-01")
    queue = queue_of(conn, version=2)
    amqp_admin.declare_queue(queue, {**ARGUMENTS, "x-message-ttl": 60_000})
    amqp_admin.declare_queue(queue_of(conn, "retired"), {})
    jobs = submit(conn, count=2, version=2)
    relay = start(processes, database, amqp_url)
    assert relay.wait_exit() == 2
    said = relay.output.strip().splitlines()[-1]
    for words in (queue, "x-message-ttl", "is 60000", "wanted is 120000", f"delete_queue {queue}"):
        assert words in said
    assert "Traceback" not in relay.output
    assert conn.execute("SELECT count(*) FROM bellwire.kind_owner").fetchone() == (0,)
    # The mend that it names works, and what retired kinds left behind is nobody's obstacle.
    amqp_admin.delete_queue(queue)
    Muscle(conn, slots=10, lines=(("work", 2),)).beat()
    relay = start(processes, database, amqp_url)
    assert set(wait_heard(relay, amqp_admin, queue, jobs)) == set(jobs)


def test_a_broker_that_is_away_keeps_no_relay_from_starting(
    database: Database,
    conn: Conn,
    processes: Processes,
    amqp_proxy_url: str,
    amqp_proxy: Proxy,
    amqp_admin: Admin,
) -> None:
    add_kind(conn, versions=[1])
    muscle = Muscle(conn, slots=10).beat()
    amqp_proxy.refuse()
    relay = start(processes, database, amqp_proxy_url)
    relay.wait_for_output("relay started")
    jobs = submit(conn)
    relay.wait_for(lambda: admitted(conn) == jobs, describe="an admission")
    lines = [json.loads(line) for line in relay.output.splitlines()]
    assert [line["event"] for line in lines if line["level"] == "warning"] == [
        "broker lost; jobs are found by polling meanwhile"
    ]
    amqp_proxy.serve()
    muscle.beat()
    wait_heard(relay, amqp_admin, queue_of(conn), jobs)
    relay.terminate()
    assert relay.wait_exit(within=10) == 0


@pytest.mark.parametrize("how", ["blocked", "frozen", "connecting"])
def test_term_while_the_broker_does_not_answer(
    database: Database,
    conn: Conn,
    processes: Processes,
    own_rabbitmq: RabbitServer,
    own_amqp_url: str,
    how: str,
) -> None:
    """The longest deadline that can be set is no obstacle to a stop."""
    admin = own_rabbitmq.admin.at(vhost_of(own_amqp_url))
    add_kind(conn, versions=[1])
    Muscle(conn, slots=100).beat()
    with Proxy(own_rabbitmq.host, own_rabbitmq.port, postgres=False) as proxy:
        if how == "connecting":
            proxy.freeze()
        url = own_rabbitmq.vhost_url(admin.vhost, port=proxy.port)
        relay = start(processes, database, url, BELLWIRE_AMQP_TIMEOUT="60s", BELLWIRE_SHUTDOWN_GRACE="9s")
        relay.wait_for_output("relay started")
        if how != "connecting":
            wait_heard(relay, admin, queue_of(conn), submit(conn))
        if how == "frozen":
            proxy.freeze()
        elif how == "blocked":
            own_rabbitmq.alarm(True)
        submit(conn, count=20)
        if how == "blocked":
            relay.wait_for_output("broker blocks us")
        relay.wait_for(lambda: len(admitted(conn)) >= 20, describe="the admissions")
        relay.terminate()
        assert relay.wait_exit(within=9) == 0
        assert "Traceback" not in relay.output
        assert conn.execute("SELECT count(*) FROM bellwire.kind_owner").fetchone() == (0,)


@pytest.mark.parametrize("place", ["relay.admitted", "relay.published"])
def test_killed_around_a_publish_another_relay_publishes_all_of_it(
    database: Database, conn: Conn, processes: Processes, amqp_url: str, amqp_admin: Admin, place: str
) -> None:
    add_kind(conn, versions=[1])
    muscle = Muscle(conn, slots=30).beat()
    doomed = start(processes, database, amqp_url, BELLWIRE_TEST_FAULTPOINT=f"{place}:kill")
    doomed.wait_for_output("serving")
    jobs = submit(conn, count=30)
    assert doomed.wait_exit(within=15) == -9
    out = admitted(conn)
    assert out, "the admission had committed"
    heir = start(processes, database, amqp_url)
    muscle.beat()
    got = wait_heard(heir, amqp_admin, queue_of(conn), jobs)
    assert max(got.count(job) for job in jobs) <= (2 if place == "relay.published" else 1) + 1
    assert len(muscle.claim(100)) == 30
    assert muscle.claim(100) == [], "a hint too many starts nothing"


def test_no_password_of_the_broker_is_ever_written(
    database: Database, conn: Conn, processes: Processes, amqp_url: str
) -> None:
    """A login that the broker refuses, at the most talkative level; the relay runs on without it."""
    add_kind(conn, versions=[1])
    Muscle(conn, slots=10).beat()
    relay = start(processes, database, with_password(amqp_url, SECRET), BELLWIRE_LOG_LEVEL="debug")
    relay.wait_for_output("broker lost")
    relay.wait_for_output("relay started")
    jobs = submit(conn)
    relay.wait_for(lambda: admitted(conn) == jobs, describe="an admission")

    def told() -> str:
        row = conn.execute("SELECT broker_error FROM bellwire.relay").fetchone()
        return "" if row is None or row[0] is None else str(row[0])

    wait_until(lambda: "refuses the login" in told(), describe="its row to say why")
    relay.terminate()
    assert relay.wait_exit(within=10) == 0
    assert SECRET not in relay.output
    assert SECRET not in told()
    assert "Traceback" not in relay.output
