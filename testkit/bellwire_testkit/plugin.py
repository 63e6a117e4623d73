"""The pytest plugin: loaded by every pytest run where Bellwire is installed, so it imports little.

Each test gets a database of its own, cloned from a template that `bellwire migrate` and then
`bellwire_prepare` (the user's own tables) have filled once. Who has a database already overrides
`bellwire_url`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bellwire_testkit.databases import Template
    from bellwire_testkit.harness import Harness


@pytest.fixture(scope="session")
def bellwire_prepare() -> Callable[[str], None]:
    """Override to create your own tables: a function that takes the template's address, called once a run."""
    return lambda url: None  # noqa: ARG005 - the signature is what an override needs to know


@pytest.fixture(scope="session")
def bellwire_template(bellwire_prepare: Callable[[str], None]) -> Iterator[Template]:
    """The migrated database that each test's is a clone of, and the server beneath it."""
    from bellwire_schema.migrate import upgrade
    from bellwire_testkit.databases import Template
    from bellwire_testkit.servers import PostgresServer, ServerMissing

    def fill(url: str) -> None:
        upgrade(url)
        bellwire_prepare(url)

    server = PostgresServer()
    try:
        server.start()
    except ServerMissing as missing:
        pytest.fail(f"{missing}; or set BELLWIRE_TEST_DATABASE_URL", pytrace=False)
    try:
        template = Template(server, fill)
        yield template
        template.drop()
    finally:
        server.close()


@pytest.fixture
def bellwire_url(bellwire_template: Template) -> Iterator[str]:
    """The address (`postgresql://…`) of this test's own, migrated database; dropped when the test is over."""
    database = bellwire_template.clone()
    yield database.url
    database.drop()


@pytest.fixture
def bellwire(bellwire_url: str) -> Iterator[Harness]:
    """What your application submitted, and a relay and a consumer that run it when you say so."""
    from bellwire_testkit.harness import Harness

    with Harness(bellwire_url) as harness:
        yield harness
