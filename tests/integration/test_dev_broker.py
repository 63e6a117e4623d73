"""`bellwire dev` with a RabbitMQ of its own: used by its daemons, needed by nothing, gone with `dev`."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bellwire_console.cli.run import run
from bellwire_runtime.broker import node
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.waiting import wait_until

SHOP = """
from bellwire_consumer import App, Attempt, Retry
from bellwire_outbox import Job, JobConfig
class Greet(Job):
    job_config = JobConfig(kind="greet", version=1, key=None)
app = App("dev_shop")
@app.handler(Greet, retry=Retry(max_attempts=1))
def greet(job: Greet, attempt: Attempt) -> None:
    print("good day", flush=True)
"""
SUBMIT = ("submit", "greet", "--app", "dev_shop:app", "--payload", "{}")
NODE = r"RabbitMQ \(process (\d+)\); for other bellwire commands: export BELLWIRE_AMQP_URL='([^']+)'"

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def start(processes: Processes, folder: Path, *options: str, env: dict[str, str] | None = None) -> Process:
    (folder / "dev_shop.py").write_text(SHOP)
    dev = processes.start(
        *("bellwire", "dev", "--app", "dev_shop:app", *options), cwd=folder, env={"BROKER": "", **(env or {})}
    )
    dev.wait_for_output("running; Ctrl-C ends it all", deadline=100)
    return dev


def hears(conn: psycopg.Connection[Any]) -> bool:
    """Whether a relay publishes and a consumer hears, as both wrote themselves."""
    return conn.execute(
        "SELECT (SELECT bool_or(broker_well) FROM bellwire.relay), "
        "(SELECT bool_or(hears) FROM bellwire.consumer)"
    ).fetchone() == (True, True)


def done(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("SELECT count(*) FROM bellwire.job WHERE state = 'succeeded'").fetchone()
    return int(row[0]) if row else 0


def at_home(folder: Path) -> list[int]:
    """Processes of a node that lives in the folder: Erlang, its helpers, its port mapper."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"HOME={folder / '.bellwire' / node.PREFIX}".encode() in told:
            found.append(int(process.name))
    return found


def nothing_is_left(folder: Path) -> bool:
    return not at_home(folder) and not list((folder / ".bellwire").glob(f"{node.PREFIX}*"))


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_private_node_serves_dev_and_goes_with_it(
    database: Database, conn: psycopg.Connection[Any], processes: Processes, tmp_path: Path
) -> None:
    dev = start(processes, tmp_path, "--broker", "rabbitmq")
    told = re.search(NODE, dev.output)
    assert told is not None, dev.output
    dev.wait_for(lambda: hears(conn), deadline=60, describe="both daemons to reach the broker")
    assert len(at_home(tmp_path)) >= 2

    # A second dev on the folder serves the same installation, so by the same node.
    second = start(processes, tmp_path, env={"BROKER": "rabbitmq"})
    assert "RabbitMQ (the other dev's on this folder); for other bellwire commands: export" in second.output
    assert f"export BELLWIRE_AMQP_URL='{told[2]}'" in second.output
    second.interrupt()
    assert second.wait_exit(within=60) == 130
    assert len(at_home(tmp_path)) >= 2, "the node is the first one's"

    # The node's end ends nothing else.
    os.kill(int(told[1]), signal.SIGKILL)
    dev.wait_for_output("RabbitMQ has ended; jobs are found by polling", deadline=30)
    assert processes.start("bellwire", *SUBMIT, cwd=tmp_path).wait_exit(within=60) == 0
    dev.wait_for(lambda: done(conn) == 1, deadline=30, describe="a job to be done without the broker")
    dev.interrupt()
    assert dev.wait_exit(within=60) == 130
    assert "Traceback" not in dev.output
    assert nothing_is_left(tmp_path)

    # In a shell that took over the printed address, that is a node to start anew; it ends with a killed dev.
    again = start(processes, tmp_path, env={"BELLWIRE_AMQP_URL": told[2]})
    assert re.search(NODE, again.output), again.output
    again.kill()
    wait_until(lambda: nothing_is_left(tmp_path), deadline=30, describe="the node to end with its dev")


@pytest.mark.slow
def test_at_an_address_it_is_a_guest(
    database: Database, conn: psycopg.Connection[Any], amqp_url: str, processes: Processes, tmp_path: Path
) -> None:
    dev = start(processes, tmp_path, "--broker", "rabbitmq", "--amqp-url", amqp_url)
    dev.wait_for(lambda: hears(conn), deadline=60, describe="both daemons to reach the broker")
    assert "RabbitMQ at " in dev.output
    assert "guest:guest" not in dev.output
    assert not (tmp_path / ".bellwire").exists()
    dev.interrupt()
    assert dev.wait_exit(within=60) == 130


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    for name in ("BROKER", "BELLWIRE_AMQP_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BELLWIRE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")


@pytest.mark.usefixtures("shop", "signals")
def test_without_the_programs_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Path:
        raise node.NodeMissing(node.INSTALL)

    monkeypatch.setattr(node, "find_bin_dir", missing)
    assert run(["dev", "--app", "dev_shop:app", "--broker", "rabbitmq"]) == 2
    assert capsys.readouterr().err == (
        "bellwire: No RabbitMQ server was found. Install one: apt-get install rabbitmq-server; or give the "
        "address of one with --amqp-url\n"
    )


@pytest.mark.usefixtures("shop", "signals")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--broker", "kafka"], "--broker (BROKER) is 'kafka': the only one is 'rabbitmq'"),
        (["--amqp-url", "http://guest:secret@here"], "BELLWIRE_AMQP_URL: is no RabbitMQ address: write amqp"),
        (["--amqp-url", "amqp://guest:secret@"], "BELLWIRE_AMQP_URL: is no RabbitMQ address: write amqp"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dev", "--app", "dev_shop:app", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bellwire: {said}")
    assert "secret" not in error


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`dev` takes the signals of its process, which here is the test's, and writes to its environment."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
