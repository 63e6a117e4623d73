"""An installation for each test, on the run's broker or on one to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin, RabbitServer
from tests.conftest import vhost_of
from tests.faults.stage import Stage

LONG = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A fault takes the time it takes. The longest tests begin first, so that the others run beside them."""
    here = [item for item in items if "tests/faults/" in item.path.as_posix()]
    for item in here:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was measured, beside its bound."""
    told = sorted(
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == "figure"
    )
    if told:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(told))


@pytest.fixture
def stage(
    request: pytest.FixtureRequest,
    database: Database,
    processes: Processes,
    amqp_url: str,
    amqp_admin: Admin,
) -> Iterator[Stage]:
    """On a virtual host of its own of the run's broker, which must not be stopped or alarmed."""
    made = Stage(
        database=database,
        processes=processes,
        amqp=amqp_url,
        admin=amqp_admin,
        figures=request.node.user_properties,
    )
    yield made
    made.close()
    processes.close()


@pytest.fixture
def own_stage(
    request: pytest.FixtureRequest,
    database: Database,
    processes: Processes,
    own_rabbitmq: RabbitServer,
    own_amqp_url: str,
) -> Iterator[Stage]:
    """On `own_rabbitmq`, which may be stopped, killed, wiped and alarmed."""
    admin = own_rabbitmq.admin.at(vhost_of(own_amqp_url))
    made = Stage(
        database=database,
        processes=processes,
        amqp=own_amqp_url,
        admin=admin,
        figures=request.node.user_properties,
    )
    yield made
    made.close()
    processes.close()


@pytest.fixture
def own_amqp_proxy(own_rabbitmq: RabbitServer) -> Iterator[Proxy]:
    """A proxy to `own_rabbitmq`, which is told of it by `own_amqp_proxy_url`."""
    with Proxy(own_rabbitmq.host, own_rabbitmq.port, postgres=False) as running:
        yield running


@pytest.fixture
def own_amqp_proxy_url(own_rabbitmq: RabbitServer, own_amqp_url: str, own_amqp_proxy: Proxy) -> str:
    """`own_amqp_url`, through the proxy."""
    return own_rabbitmq.vhost_url(vhost_of(own_amqp_url), port=own_amqp_proxy.port)
