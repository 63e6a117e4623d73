"""`bellwire relay` as it is shipped: signals, kills, outages, and what it says about them."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from bellwire_schema.migrate import upgrade
from bellwire_testkit.databases import Database, Template
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.servers import PostgresServer
from bellwire_testkit.waiting import wait_until
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit


def start(processes: Processes, url: str, **env: str) -> Process:
    return processes.start(
        "bellwire", "relay", env={"BELLWIRE_DATABASE_URL": url, "BELLWIRE_LOG_FORMAT": "json", **env}
    )


def serving(conn: Conn) -> bool:
    row = conn.execute("SELECT count(*) > 0 FROM bellwire.kind_owner WHERE expires_at > now()").fetchone()
    return bool(row and row[0])


def owners(conn: Conn) -> int:
    row = conn.execute("SELECT count(*) FROM bellwire.kind_owner").fetchone()
    assert row is not None
    return int(row[0])


def wait_serving(process: Process, conn: Conn) -> None:
    process.wait_for(lambda: serving(conn), describe="the relay to serve")


def test_term_gives_the_kinds_back_and_exits_with_0(
    database: Database, conn: Conn, processes: Processes
) -> None:
    add_kind(conn)
    relay = start(processes, database.url_as("bellwire_relay"))
    wait_serving(relay, conn)
    relay.terminate()
    assert relay.wait_exit(within=10) == 0
    assert owners(conn) == 0
    assert "Traceback" not in relay.output
    row = conn.execute("SELECT count(*) FROM bellwire.relay").fetchone()
    assert row == (0,)


def test_at_most_three_connections_and_nothing_idle_in_a_transaction(
    database: Database, conn: Conn, processes: Processes
) -> None:
    add_kind(conn)
    relay = start(processes, database.url_as("bellwire_relay"))
    wait_serving(relay, conn)
    query = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'bellwire_relay' AND datname = %s"

    def sessions() -> int:
        row = conn.execute(query.encode(), (database.name,)).fetchone()
        assert row is not None
        return int(row[0])

    relay.wait_for(lambda: sessions() == 3, describe="three sessions")
    submit(conn, count=20)
    for _ in range(20):
        assert sessions() <= 3
        time.sleep(0.02)
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state LIKE 'idle in transaction%%'",
        (database.name,),
    ).fetchone()
    assert row == (0,)


def test_killed_right_after_an_admission_another_relay_goes_on(
    database: Database, conn: Conn, processes: Processes
) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=2).beat()
    doomed = start(
        processes, database.url_as("bellwire_relay"), BELLWIRE_TEST_FAULTPOINT="relay.admitted:kill"
    )
    wait_serving(doomed, conn)
    submit(conn, count=6)
    assert doomed.wait_exit(within=10) == -9
    assert len(admitted(conn)) == 2, "the admission had committed"
    heir = start(processes, database.url_as("bellwire_relay"))
    done: set[object] = set()

    def drained() -> bool:
        muscle.beat()
        claims = muscle.claim(2)
        muscle.succeed(claims)
        done.update(c.job_id for c in claims)
        return len(done) == 6

    heir.wait_for(drained, deadline=15, describe="all six jobs to be taken")


def test_a_second_relay_takes_over_within_seconds_of_a_kill(
    database: Database, conn: Conn, processes: Processes
) -> None:
    add_kind(conn)
    Muscle(conn, slots=5).beat()
    first = start(processes, database.url_as("bellwire_relay"))
    wait_serving(first, conn)
    second = start(processes, database.url_as("bellwire_relay"))
    second.wait_for_output("relay started")
    first.kill()
    died = time.monotonic()
    submit(conn)
    second.wait_for(lambda: admitted(conn), deadline=15, describe="the job to be admitted")
    assert time.monotonic() - died < 10, "the ownership's 6 s, and a renewal's beat"


def test_a_frozen_database_does_not_keep_it_from_stopping(
    database: Database, conn: Conn, processes: Processes, proxy: Proxy
) -> None:
    add_kind(conn)
    url = database.url_through(proxy.port)
    relay = start(processes, url, BELLWIRE_SHUTDOWN_GRACE="12s")
    wait_serving(relay, conn)
    proxy.freeze()
    relay.terminate()
    asked = time.monotonic()
    assert relay.wait_exit(within=14) in {0, 1}
    assert time.monotonic() - asked < 13.5
    assert "Traceback" not in relay.output
    proxy.thaw()


def test_a_second_signal_ends_it_at_once(
    database: Database, conn: Conn, processes: Processes, proxy: Proxy
) -> None:
    add_kind(conn)
    relay = start(processes, database.url_through(proxy.port))
    wait_serving(relay, conn)
    proxy.freeze()
    relay.terminate()
    relay.wait_for_output("stopping")
    relay.interrupt()
    assert relay.wait_exit(within=2) == 130
    proxy.thaw()


def test_a_frozen_connection_is_given_up_and_made_anew(
    database: Database, conn: Conn, processes: Processes, proxy: Proxy
) -> None:
    """The proxy keeps the sockets open and acknowledges: no keepalive notices, only a deadline does."""
    add_kind(conn)
    Muscle(conn, slots=5).beat()
    relay = start(processes, database.url_through(proxy.port), BELLWIRE_CALL_TIMEOUT="2s")
    wait_serving(relay, conn)
    relay.wait_for(lambda: proxy.connections >= 3, describe="its connections")
    proxy.freeze()
    relay.wait_for_output("database lost", deadline=15)
    proxy.thaw()
    relay.wait_for_output("database back", deadline=20)
    submit(conn)
    Muscle(conn, slots=5).beat()
    relay.wait_for(lambda: admitted(conn), describe="an admission")


def test_an_outage_is_said_in_a_few_lines_and_survived(
    database: Database, conn: Conn, processes: Processes, proxy: Proxy
) -> None:
    add_kind(conn)
    relay = start(processes, database.url_through(proxy.port))
    wait_serving(relay, conn)
    relay.wait_for(lambda: proxy.connections >= 3, describe="its connections")
    before = len(relay.output.splitlines())
    tries = proxy.accepted
    proxy.refuse()
    wait_until(lambda: proxy.accepted >= tries + 15, deadline=60, describe="many tries to reconnect")
    proxy.serve()
    lines = relay.output.splitlines()[before:]
    assert len(lines) <= 6, lines
    submit(conn)
    Muscle(conn, slots=5).beat()
    relay.wait_for(lambda: admitted(conn), describe="an admission")
    assert "Traceback" not in relay.output


def test_a_live_relay_that_cannot_reach_the_database_loses_its_kinds(
    database: Database, conn: Conn, processes: Processes, proxy: Proxy
) -> None:
    """Ownership is a short lease, whatever its owner's health; and a thawed owner finds itself replaced."""
    add_kind(conn, running=3)
    stuck = start(processes, database.url_through(proxy.port))
    wait_serving(stuck, conn)
    proxy.freeze()
    other = start(processes, database.url_as("bellwire_relay"))
    submit(conn, count=10)

    def go_on() -> bool:
        Muscle(conn, slots=10).beat()
        return bool(admitted(conn))

    other.wait_for(go_on, deadline=20, describe="the other relay to admit")
    proxy.thaw()
    stuck.wait_for_output("database back", deadline=30)
    for _ in range(20):
        assert len(admitted(conn)) <= 3
        time.sleep(0.05)
    for relay in (stuck, other):
        relay.terminate()
        assert relay.wait_exit(within=15) == 0


def test_sessions_ended_again_and_again_stop_no_loop_for_good(
    database: Database, conn: Conn, processes: Processes
) -> None:
    add_kind(conn)
    port = _free_port()
    relay = start(processes, database.url_as("bellwire_relay"), BELLWIRE_HEALTH_PORT=str(port))
    wait_serving(relay, conn)
    for _ in range(15):
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = %s AND usename = 'bellwire_relay'",
            (database.name,),
        )
        time.sleep(0.2)
    _wait_all_loops(relay, port)
    Muscle(conn, slots=5).beat()
    submit(conn)
    relay.wait_for(lambda: admitted(conn), describe="an admission")
    assert "Traceback" not in relay.output


@pytest.fixture
def own_server() -> Iterator[Database]:
    """A server that this test may stop."""
    with PostgresServer(source="binaries") as server:
        template = Template(server, upgrade)
        database = template.clone()
        yield database
        database.drop()
        template.drop()


def test_a_restart_of_postgres_is_survived_by_every_loop(own_server: Database, processes: Processes) -> None:
    with own_server.connect() as conn:
        add_kind(conn)
    port = _free_port()
    relay = start(
        processes,
        own_server.url_as("bellwire_relay"),
        BELLWIRE_HEALTH_PORT=str(port),
        BELLWIRE_RELAY_RECOVER_WAIT="1s",
    )
    with own_server.connect() as conn:
        wait_serving(relay, conn)
    own_server.server.stop("immediate")
    relay.wait_for_output("database lost")
    status, body = _get(port, "/ready")
    assert status == 503
    assert "database" in json.loads(body)["reasons"]
    assert _get(port, "/live")[0] == 200, "a restart of the relay would mend nothing"
    own_server.server.start()
    _wait_all_loops(relay, port)
    relay.wait_for(lambda: _get(port, "/ready")[0] == 200, describe="/ready")
    with own_server.connect() as conn:
        Muscle(conn, slots=5).beat()
        submit(conn)
        relay.wait_for(lambda: admitted(conn), describe="an admission")
    relay.terminate()
    assert relay.wait_exit() == 0
    assert "Traceback" not in relay.output


def test_no_password_is_ever_written(database: Database, conn: Conn, processes: Processes) -> None:
    """A login that is refused, at the most talkative level: the exit code, and the secret nowhere."""
    url = f"postgresql://nobody:s3ntinel%20x@{database.server.host}:{database.server.port}/{database.name}"
    relay = start(processes, url, BELLWIRE_LOG_LEVEL="debug", BELLWIRE_STARTUP_TIMEOUT="0")
    assert relay.wait_exit() == 2
    assert "s3ntinel" not in relay.output
    assert "Traceback" not in relay.output


def test_a_database_that_comes_late_is_waited_for(
    database: Database, conn: Conn, processes: Processes, proxy: Proxy
) -> None:
    add_kind(conn)
    proxy.refuse()
    relay = start(processes, database.url_through(proxy.port))
    relay.wait_for_output("waiting for the database")
    proxy.serve()
    wait_serving(relay, conn)
    relay.terminate()
    assert relay.wait_exit(within=10) == 0


@pytest.mark.parametrize(("port", "code"), [("closed", 3), ("unmigrated", 4)])
def test_what_cannot_work_is_said_in_one_line(
    postgres: PostgresServer, processes: Processes, port: str, code: int
) -> None:
    url = postgres.url if port == "unmigrated" else f"postgresql://postgres@127.0.0.1:{_free_port()}/x"
    relay = start(processes, url, BELLWIRE_STARTUP_TIMEOUT="0")
    assert relay.wait_exit() == code
    assert len(relay.output.splitlines()) == 1, relay.output


def _wait_all_loops(relay: Process, port: int) -> None:
    """Until every loop has had a successful pass since now."""
    now = time.monotonic()

    def went() -> bool:
        ages = [
            float(line.rpartition(" ")[2])
            for line in _get(port, "/metrics")[1].splitlines()
            if line.startswith("bellwire_loop_success_age_seconds{") and "listen" not in line
        ]
        return len(ages) >= 7 and max(ages) < time.monotonic() - now

    relay.wait_for(went, deadline=30, describe="a pass of every loop")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
