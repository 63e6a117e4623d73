"""What every test may ask for: a real server per run (and per xdist worker), a migrated database of its own.

`postgres` and the template are made at the first request, so a run of unit tests starts no server. Nothing
of the developer's environment reaches a test: a password in PGPASSWORD must not make one pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database, Template
from bellwire_testkit.processes import Processes
from bellwire_testkit.proxy import Proxy
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


@pytest.fixture
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    """Starts real processes and kills what is left of them, before the database is taken away."""
    env = {}
    if "database" in request.fixturenames:
        env["BELLWIRE_DATABASE_URL"] = request.getfixturevalue("database").url
    started = Processes(tmp_path / "processes", env)
    yield started
    started.close()
