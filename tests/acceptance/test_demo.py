"""`make demo` as a person runs it: it kills, recovers, adds up, and leaves nothing running behind it."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bellwire_testkit.processes import Processes
from bellwire_testkit.servers import PostgresServer
from bellwire_testkit.waiting import wait_until
from tests.acceptance.demo_stage import QUIET, ROOT, running, told_table

pytestmark = pytest.mark.slow

SMALL = ("--requests", "60", "--accounts", "300")


@pytest.fixture
def demo(processes: Processes, postgres: PostgresServer, tmp_path: Path) -> Iterator[list[str]]:
    """The command line; it makes its database on the run's server, and must take it away again."""
    yield ["python", "-m", "examples.statements.demo", "--folder", str(tmp_path / "demo"), *SMALL]
    with psycopg.connect(postgres.url) as conn:
        left = conn.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'statements_demo%'"
        ).fetchall()
    assert left == []


@pytest.mark.timeout(300)
def test_the_demo_kills_a_consumer_and_everything_adds_up(
    processes: Processes, demo: list[str], tmp_path: Path
) -> None:
    process = processes.start(*demo, env=QUIET, cwd=ROOT)  # without an address: on a private server
    code = process.wait_exit(within=280)
    text = process.output
    assert code == 0, text
    killed = re.search(r"killed consumer-1 \(SIGKILL\); it held (\d+) leases, among them: (.*)", text)
    assert killed is not None, text
    assert int(killed[1]) >= 3
    for door in ("before render", "after temporary", "after promotion"):
        assert door in killed[2]
    table = told_table(text)
    assert "claims named by a hint" not in table, "nobody asked for a broker"
    assert table["submitted"] == table["succeeded"] == "60"
    recovered = int(table["recovered leases"])
    assert recovered >= 3
    assert int(table["attempts"]) == 60 + recovered
    assert int(table["duplicates prevented"]) == 1 + 10 + 10  # the first, every sixth, ten at the end
    assert int(table["conflicts refused (other paper)"]) == 2
    assert table["files whose checksum matches their row"] == "60 of 60"
    assert "WRONG" not in text
    assert re.search(r"all \d+ claims hold", text)
    assert running(tmp_path / "demo") == []
    assert len(list((tmp_path / "demo" / "artifacts" / "statements").rglob("*.pdf"))) == 60


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["interrupt", "terminate"])
def test_interrupted_it_ends_what_it_started(
    processes: Processes, postgres: PostgresServer, demo: list[str], tmp_path: Path, how: str
) -> None:
    process = processes.start(*demo, env={**QUIET, "BELLWIRE_DATABASE_URL": postgres.url}, cwd=ROOT)
    process.wait_for_output("consumer-1 is process", deadline=60)
    wait_until(lambda: len(running(tmp_path / "demo")) >= 3, describe="web, relay and consumer to run")
    getattr(process, how)()
    assert process.wait_exit(within=60) == 130
    assert "interrupted" in process.output
    assert "Traceback" not in process.output
    assert running(tmp_path / "demo") == []


@pytest.mark.timeout(120)
def test_a_daemon_that_dies_ends_the_demo_with_its_last_words(
    processes: Processes, postgres: PostgresServer, demo: list[str], tmp_path: Path
) -> None:
    process = processes.start(*demo, env={**QUIET, "BELLWIRE_DATABASE_URL": postgres.url}, cwd=ROOT)
    found = process.wait_for_output(r"consumer-1 is process (\d+)", deadline=60)
    os.kill(int(found[1]), signal.SIGKILL)
    assert process.wait_exit(within=60) == 1
    assert "consumer-1 ended with -9" in process.output
    assert "Traceback" not in process.output
    assert running(tmp_path / "demo") == []


def test_without_a_database_it_says_so_in_one_line(processes: Processes, tmp_path: Path) -> None:
    process = processes.start(
        *("python", "-m", "examples.statements.demo", "--folder", str(tmp_path), *SMALL),
        env={**QUIET, "BELLWIRE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"},
        cwd=ROOT,
    )
    assert process.wait_exit(within=60) == 1
    assert process.output.startswith("demo: no database: ")
    assert "Traceback" not in process.output
