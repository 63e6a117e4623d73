"""`make demo` through RabbitMQ: its hints suffice, nearly all claims come from them, and nothing needs them.

Numbers are those of the database and of the daemons' metrics, not what the demo says of itself.
"""

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bellwire_runtime.broker import node
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.servers import PostgresServer
from examples.statements import broker, demo
from tests.acceptance.demo_stage import QUIET, ROOT, Witness, claims, counted, running, told_table

DEMO = ("python", "-m", "examples.statements.demo")
SMALL = ("--requests", "60", "--accounts", "300")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "demo"


def start(
    processes: Processes, postgres: PostgresServer, folder: Path, *options: str, amqp_url: str = ""
) -> Process:
    return processes.start(
        *(*DEMO, "--folder", str(folder), *options),
        env={**QUIET, "BELLWIRE_DATABASE_URL": postgres.url, "BELLWIRE_AMQP_URL": amqp_url},
        cwd=ROOT,
    )


def adds_up(process: Process) -> None:
    assert process.code == 0, process.output
    assert re.search(r"all \d+ claims hold", process.output)
    assert "WRONG" not in process.output


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_with_polling_switched_off_hints_alone_complete_it(
    processes: Processes, postgres: PostgresServer, amqp_url: str, folder: Path
) -> None:
    with Witness(postgres.url) as witness:
        process = start(processes, postgres, folder, *SMALL, "--no-poll", amqp_url=amqp_url)
        process.wait_exit(within=400)
    adds_up(process)
    seen, found = witness.seen, claims(folder)
    assert (seen.jobs, seen.succeeded, seen.wake_ups) == (60, 60, 0)
    assert seen.recovered >= 3
    assert found["poll"] == 0
    assert found["hint"] >= seen.attempts - 2, "the killed consumer may have claimed after it was asked"
    assert "guest:guest" not in process.output


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_while_the_broker_is_up_hints_name_what_is_claimed(
    processes: Processes, postgres: PostgresServer, folder: Path
) -> None:
    with Witness(postgres.url) as witness:
        process = start(processes, postgres, folder, "--broker", "rabbitmq", "--leave-broker")
        process.wait_exit(within=400)
    adds_up(process)
    seen, found = witness.seen, claims(folder)
    assert (seen.jobs, seen.succeeded) == (240, 240)
    # Claims that nobody told of count against it.
    assert found["hint"] >= 0.99 * seen.attempts, (found, seen)
    assert counted(folder, "relay", "bellwire_hint_published_total", "result")["dropped"] == 0


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_with_the_broker_deleted_in_mid_run_every_job_completes(
    processes: Processes, postgres: PostgresServer, folder: Path
) -> None:
    with Witness(postgres.url) as witness:
        process = start(processes, postgres, folder, *SMALL, "--broker", "rabbitmq")
        process.wait_exit(within=400)
    adds_up(process)
    told = process.output
    seen, found = witness.seen, claims(folder)
    assert (seen.jobs, seen.succeeded, seen.wake_ups) == (60, 60, 0)
    assert False in seen.publishing[seen.publishing.index(True) :], "it was there, and away"
    assert counted(folder, "relay", "bellwire_broker_connects", "connection")["relay"] == 2
    assert counted(folder, "consumer-[23]", "bellwire_broker_connects", "connection")["consumer"] == 4
    assert found["hint"] > 0
    assert found["poll"] > 0
    table = told_table(told)
    assert int(table["claims named by a hint"]) == found["hint"]
    assert int(table["claims found by polling"]) == found["poll"]
    assert 3 <= int(table["jobs started while the broker was away"]) <= seen.attempts
    assert float(table["longest wait of those asked for meanwhile"].removesuffix(" s")) < 2
    pid = re.search(r"hints go through RabbitMQ: a private node, process (\d+)", told)
    assert pid is not None, told
    assert "killed RabbitMQ (SIGKILL) and removed all its data" in told
    assert running(folder) == []
    assert not Path(f"/proc/{pid[1]}").exists()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_interrupted_it_ends_its_node(processes: Processes, postgres: PostgresServer, folder: Path) -> None:
    process = start(processes, postgres, folder, *SMALL, "--broker", "rabbitmq")
    found = process.wait_for_output(r"a private node, process (\d+)", deadline=100)
    process.interrupt()
    assert process.wait_exit(within=60) == 130
    assert "Traceback" not in process.output
    assert not Path(f"/proc/{found[1]}").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--no-poll"], "--no-poll needs a broker that stays"),
        (["--no-poll", "--broker", "rabbitmq"], "--no-poll needs a broker that stays"),
        (["--broker", "kafka"], "BROKER is 'kafka': the only one is 'rabbitmq'"),
    ],
)
def test_what_cannot_work_is_refused(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BROKER", raising=False)
    with pytest.raises(SystemExit) as refused:
        demo.main(options)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def _signals() -> Iterator[None]:
    """The demo takes the signals of its process, which here is the test's."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signals")
def test_without_the_programs_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(**_: object) -> None:
        raise node.NodeMissing(node.INSTALL)

    monkeypatch.setattr(broker, "RabbitNode", missing)
    assert demo.main(["--broker", "rabbitmq", "--folder", str(folder), *SMALL]) == 1
    assert capsys.readouterr().out == (
        "demo: no broker: No RabbitMQ server was found. Install one: apt-get install rabbitmq-server\n"
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="runs make")
def test_make_hands_the_broker_on(processes: Processes) -> None:
    process = processes.start("make", "--assume-old=setup", "demo", "BROKER=kafka", cwd=ROOT)
    assert process.wait_exit(within=60) == 2
    assert "BROKER is 'kafka'" in process.output
