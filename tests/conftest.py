"""What every test may ask for: real servers per run (and per xdist worker), a migrated database and a virtual
host of RabbitMQ of its own.

Servers and the template are made at the first request, so a run of unit tests starts none. Nothing of the
developer's environment reaches a test: a password in PGPASSWORD must not make one pass.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database, Template
from bellwire_testkit.processes import Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin, RabbitServer
from bellwire_testkit.servers import PostgresServer


def pytest_configure() -> None:
    for name in list(os.environ):
        if name.startswith(("BELLWIRE_", "PG")) and not name.startswith("BELLWIRE_TEST_"):
            del os.environ[name]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The run's server, shared by its tests: don't stop it; a test that must starts its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> Iterator[Template]:
    """The database that was migrated once."""
    from bellwire_schema.migrate import upgrade

    made = Template(postgres, upgrade)
    yield made
    made.drop()


@pytest.fixture
def database(template: Template) -> Iterator[Database]:
    """A fresh, migrated database; a session still open on it at the end fails the test."""
    made = template.clone()
    yield made
    made.drop_unused()


@pytest.fixture
def bellwire_url(database: Database) -> str:
    """The harness works on the test's `database`."""
    return database.url


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection to `database`, in autocommit."""
    with database.connect() as opened:
        yield opened


@pytest.fixture
def clock(database: Database) -> Iterator[Clock]:
    """The database's clock, made controllable for this test."""
    with Clock(database.url) as shifted:
        yield shifted


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    """A proxy to the server; `database.url_through(proxy.port)` goes through it."""
    with Proxy(database.server.host, database.server.port) as running:
        yield running


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitServer]:
    """The run's broker, shared: don't stop or alarm it; a test that must asks for `own_rabbitmq`."""
    with RabbitServer() as server:
        yield server


@pytest.fixture
def amqp_url(rabbitmq: RabbitServer) -> Iterator[str]:
    """The address of a fresh virtual host; what is in it and connected to it at the end goes with it."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    rabbitmq.admin.create_vhost(name)
    yield rabbitmq.vhost_url(name)
    rabbitmq.admin.delete_vhost(name)


@pytest.fixture
def amqp_admin(rabbitmq: RabbitServer, amqp_url: str) -> Admin:
    """The broker's own view of `amqp_url`, and what may be done to it."""
    return rabbitmq.admin.at(vhost_of(amqp_url))


@pytest.fixture
def amqp_proxy(rabbitmq: RabbitServer) -> Iterator[Proxy]:
    """A proxy to the broker of `amqp_url`; the address through it is `amqp_proxy_url`."""
    with Proxy(rabbitmq.host, rabbitmq.port, postgres=False) as running:
        yield running


@pytest.fixture
def amqp_proxy_url(rabbitmq: RabbitServer, amqp_url: str, amqp_proxy: Proxy) -> str:
    """`amqp_url`, through the proxy."""
    return rabbitmq.vhost_url(vhost_of(amqp_url), port=amqp_proxy.port)


@pytest.fixture(scope="session")
def spare_rabbitmq() -> Iterator[RabbitServer]:
    """A second, private node per run; asked for by `own_rabbitmq` alone."""
    with RabbitServer(source="binaries") as server:
        yield server


@pytest.fixture
def own_rabbitmq(spare_rabbitmq: RabbitServer) -> RabbitServer:
    """A node to stop, kill, wipe and alarm: up, calm and empty at the start, whatever was done to it."""
    spare_rabbitmq.restore()
    return spare_rabbitmq


@pytest.fixture
def own_amqp_url(own_rabbitmq: RabbitServer) -> str:
    """The address of a fresh virtual host on it; gone after a `wipe`, like everything else there."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    own_rabbitmq.admin.create_vhost(name)
    return own_rabbitmq.vhost_url(name)


def vhost_of(url: str) -> str:
    return unquote(urlsplit(url).path.removeprefix("/")) or "/"


@pytest.fixture
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    """Starts real processes and kills what is left of them, before the database is taken away."""
    env = {}
    if "database" in request.fixturenames:
        env["BELLWIRE_DATABASE_URL"] = request.getfixturevalue("database").url
    started = Processes(tmp_path / "processes", env)
    yield started
    started.close()
