"""Everything at once, for a while: consumers killed, stopped, cut off and frozen under a real relay. It
converges.

The faults are drawn from a seed, their effects are not: what is asserted holds whatever the machine makes
of them.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.waiting import wait_until
from tests.integration.consumer_app import APP, LINES, Nap, ThreadNap
from tests.integration.consumer_app import app as naps
from tests.integration.consumer_stage import apply_policy, states, submit_jobs

Conn = psycopg.Connection[Any]
ROOT = Path(__file__).parents[2]
SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_job_ends_once_whatever_happens_to_its_consumers(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path, proxy: Proxy
) -> None:
    chance = random.Random(20260501)
    apply_policy(database, naps)
    common = {LINES: str(tmp_path / "lines"), "PYTHONPATH": str(ROOT)}
    processes.start(
        "bellwire", "relay", env={**common, "BELLWIRE_DATABASE_URL": database.url_as("bellwire_relay")}
    )

    def start() -> Process:
        environment = {
            **common,
            "BELLWIRE_DATABASE_URL": database.url_through(proxy.port),
            "BELLWIRE_CALL_TIMEOUT": "3s",
            "BELLWIRE_SHUTDOWN_GRACE": "6s",
            "BELLWIRE_CONSUMER_DRAIN": "500ms",
        }
        return processes.start(
            "bellwire", "consumer", "--app", APP, "--slots", "20", env=environment, cwd=ROOT
        )

    consumers = [start() for _ in range(3)]
    wait_until(
        lambda: conn.execute("SELECT count(*) FROM bellwire.consumer").fetchone() == (3,),
        describe="three consumers",
        deadline=30,
    )

    def kill(at: int) -> None:
        consumers[at].kill()
        consumers[at] = start()

    def terminate(at: int) -> None:
        consumers[at].wait_for_output("consumer started", deadline=30)
        consumers[at].terminate()
        assert consumers[at].wait_exit(within=12) == 0
        consumers[at] = start()

    def pause(at: int) -> None:
        consumers[at].stop()
        time.sleep(chance.uniform(0.5, 2.5))
        consumers[at].cont()

    def freeze(_at: int) -> None:
        proxy.freeze()
        time.sleep(chance.uniform(0.5, 2.5))
        proxy.thaw()

    def end_sessions(_at: int) -> None:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'bellwire consumer%'"
            "   AND random() < 0.4"
        )

    faults: list[Callable[[int], None]] = [
        kill, terminate, pause, freeze, end_sessions, lambda _: proxy.cut(),
    ]  # fmt: skip
    total = 0
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        jobs = [chance.choice([Nap, ThreadNap])(seconds=chance.choice([0, 0, 0.05, 1.2])) for _ in range(40)]
        total += len(submit_jobs(conn, *jobs))
        time.sleep(chance.uniform(0.1, 0.5))
        if chance.random() < 0.7:
            chance.choice(faults)(chance.randrange(3))

    wait_until(
        lambda: states(conn) == {"succeeded": total},
        deadline=90,
        describe=lambda: f"{total} jobs to succeed: {states(conn)}",
    )
    twice = (
        "SELECT job_id FROM bellwire.attempt WHERE outcome = 'succeeded' GROUP BY job_id HAVING count(*) <> 1"
    )
    assert conn.execute(twice.encode()).fetchall() == []
    assert conn.execute("SELECT count(*) FROM bellwire.outbox").fetchone() == (0,)
    # Nobody was charged for what was done to its consumer but by a death or a release.
    outcomes = {row[0] for row in conn.execute("SELECT DISTINCT outcome FROM bellwire.attempt").fetchall()}
    assert outcomes <= {"succeeded", "recovered", "released"}
    assert not [consumer.tail() for consumer in consumers if "Traceback" in consumer.output]
