"""AMQPS with certificates on both sides. What is refused is said once, without a secret, while jobs run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest

from bellwire_testkit.certificates import Certificates, openssl_is_there
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Processes
from bellwire_testkit.rabbitmq import NodeTls, RabbitServer
from bellwire_testkit.waiting import wait_until
from tests.faults.app import Quick
from tests.faults.stage import Daemon, Stage

SENTINEL = "s3ntinel-p@ss/w%rd"
needs_openssl = pytest.mark.skipif(not openssl_is_there(), reason="needs the openssl command")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_rabbitmq(certificates: Certificates) -> Iterator[RabbitServer]:
    """One that lets nobody in without a certificate that its authority signed."""
    server = certificates.server
    tls = NodeTls(
        ca_file=certificates.ca_file,
        cert_file=server.cert_file,
        key_file=server.key_file,
        client_required=True,
    )
    with RabbitServer(source="binaries", tls=tls) as node:
        yield node


@pytest.fixture
def tls_stage(
    request: pytest.FixtureRequest, database: Database, processes: Processes, tls_rabbitmq: RabbitServer
) -> Iterator[Stage]:
    made = Stage(
        database=database,
        processes=processes,
        amqp=tls_rabbitmq.tls_url,
        admin=tls_rabbitmq.admin,
        figures=request.node.user_properties,
    )
    yield made
    made.close()
    processes.close()


def _files(certificates: Certificates, **changes: Path) -> dict[str, str]:
    files = {
        "ca_file": certificates.ca_file,
        "cert_file": certificates.client.cert_file,
        "key_file": certificates.client.key_file,
        **changes,
    }
    return {f"BELLWIRE_AMQP_{name.upper()}": str(path) for name, path in files.items()}


@needs_openssl
def test_certificates_on_both_sides(tls_stage: Stage, certificates: Certificates) -> None:
    stage, files = tls_stage, _files(certificates)
    relay, consumer = stage.relay(env=files), stage.consumer(env=files)
    stage.up(relay, consumer)
    stage.wait_done(stage.submit(*[Quick(n=n) for n in range(100)]))
    assert {row.get("peer_cert_subject") for row in stage.admin.connections()} == {"CN=bellwire test client"}
    stage.finish()


@needs_openssl
@pytest.mark.parametrize("what", ["the server's authority", "our certificate", "no certificate"])
def test_certificates_that_do_not_fit(tls_stage: Stage, certificates: Certificates, what: str) -> None:
    """A server nobody vouches for, or one that refuses us: said once, and jobs run by polling."""
    stage, stranger = tls_stage, certificates.stranger
    files = _files(certificates)
    if what == "the server's authority":
        files = _files(certificates, ca_file=stranger.cert_file)
    elif what == "our certificate":
        files = _files(certificates, cert_file=stranger.cert_file, key_file=stranger.key_file)
    else:
        del files["BELLWIRE_AMQP_CERT_FILE"], files["BELLWIRE_AMQP_KEY_FILE"]
    relay, consumer = stage.relay(env=files), stage.consumer(env=files)
    for one in (relay, consumer):
        one.process.wait_for_output("broker lost", deadline=60)
    ids = stage.submit(*[Quick(n=n) for n in range(20)])
    stage.wait_done(ids)
    for one in (relay, consumer):
        _said_once(one)
        reason = (one.reds() or {}).get("broker", "")
        # A server that refuses a client's certificate may hang up before it says so.
        expected = "certificate" if what == "the server's authority" else "certificate|ssl|reset"
        assert re.search(expected, reason, re.IGNORECASE), reason
    assert stage.claimed_by("hint", consumer) == 0
    stage.finish()


def test_no_secret_is_ever_written(stage: Stage, database: Database) -> None:
    """At the most talkative level, with a password that is refused, then one that is not."""
    user = f"shy-{uuid4().hex[:8]}"
    port = urlsplit(stage.amqp).port
    url = f"amqp://{user}:{quote(SENTINEL, safe='')}@127.0.0.1:{port}/{stage.admin.vhost}"
    stage.admin.call("PUT", "users", user, body={"password": "another", "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    stage.admin.call("PUT", "permissions", stage.admin.vhost, user, body=everything)
    try:
        talkative = {"BELLWIRE_LOG_LEVEL": "debug", "PYTHONASYNCIODEBUG": "1"}
        relay, consumer = stage.relay(amqp=url, env=talkative), stage.consumer(amqp=url, env=talkative)
        for one in (relay, consumer):
            one.process.wait_for_output("broker lost", deadline=60)
        stage.wait_done(stage.submit(*[Quick(n=n) for n in range(20)]))
        for one in (relay, consumer):
            _said_once(one)
            assert "refuses" in (one.reds() or {}).get("broker", "").lower()
        _nowhere(stage, database)
        stage.admin.call("PUT", "users", user, body={"password": SENTINEL, "tags": ""})
        stage.run_from_hint(consumer, deadline=15)
        stage.close_connections(2)
        for one in (relay, consumer):
            one.wait_connects(2)
        _nowhere(stage, database)
        stage.finish()
        _nowhere(stage, database)
    finally:
        stage.admin.call("DELETE", "users", user)


def _said_once(one: Daemon) -> None:
    wait_until(lambda: "broker" in (one.reds() or {}), describe="/ready to tell of it")
    assert len(one.lines("broker lost")) == 1, one.process.tail()


def _nowhere(stage: Stage, database: Database) -> None:
    """Neither in a log, nor at the health port, nor in any table."""
    texts: dict[str, str] = {}
    for one in stage.daemons:
        texts[one.process.log.name] = one.process.output
        for path in ("/ready", "/live", "/metrics"):
            texts[f"{one.process.log.name} {path}"] = one.get(path)[1]
    texts["database"] = _dumped(database)
    for where, text in texts.items():
        for secret in (SENTINEL, quote(SENTINEL, safe=""), "s3ntinel"):
            assert secret not in text, where


def _dumped(database: Database) -> str:
    with database.connect() as conn:
        tables = conn.execute(
            "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables"
            " WHERE table_schema IN ('bellwire', 'public')"
        ).fetchall()
        rows: list[Any] = []
        for (table,) in tables:
            rows += conn.execute(f"SELECT t::text FROM {table} t".encode()).fetchall()
        queries = conn.execute("SELECT query, application_name FROM pg_stat_activity").fetchall()
    return repr((rows, queries))
