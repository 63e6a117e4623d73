"""Answers lost, servers restarted, processes killed and stopped: every job still ends once."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bellwire_consumer import App, AsyncAttempt
from bellwire_schema.migrate import upgrade
from bellwire_testkit.databases import Database, Template
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.servers import PostgresServer
from bellwire_testkit.waiting import kill_at, wait_until
from tests.integration.consumer_app import APP, LINES, Nap, ThreadNap
from tests.integration.consumer_app import app as naps
from tests.integration.consumer_stage import (
    SECOND,
    Work,
    admit,
    apply_policy,
    history,
    job,
    running,
    states,
    submit_jobs,
    turn,
    until,
)

Conn = psycopg.Connection[Any]
ROOT = Path(__file__).parents[2]


def counting_app(runs: Counter[int], **options: Any) -> App:
    app = App("counting")

    @app.handler(Work, **options)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        runs[job.n] += 1

    return app


@pytest.mark.parametrize("fault", ["lose_answer", "cut_before"])
@pytest.mark.parametrize("call", ["bellwire.claim", "bellwire.succeed"])
async def test_a_broken_call_runs_nothing_twice(
    database: Database, conn: Conn, proxy: Proxy, fault: str, call: str
) -> None:
    runs: Counter[int] = Counter()
    app = counting_app(runs, lease=3 * SECOND)
    apply_policy(database, app)
    url = database.url_through(proxy.port)
    async with running(database, app, policy=False, database_url=url, slots=10) as consumer:
        submit_jobs(conn, Work(n=-1))
        admit(conn)
        await until(lambda: states(conn) == {"succeeded": 1}, "the first to succeed")
        getattr(proxy, fault)(call)
        submit_jobs(conn, *[Work(n=n) for n in range(40)])

        def all_done() -> bool:
            admit(conn)
            return states(conn) == {"succeeded": 41}

        await until(all_done, "all to succeed", deadline=30)
        await until(lambda: consumer.slots.free == 10, "the slots to be free")
    assert proxy.cuts == 1
    assert set(runs.values()) == {1}
    outcomes = Counter(row[0] for row in conn.execute("SELECT outcome FROM bellwire.attempt").fetchall())
    # A claim whose answer was lost had committed: what it brought was handed back, using up nothing.
    handed_back = 5 if (fault, call) == ("lose_answer", "bellwire.claim") else 0
    assert outcomes["succeeded"] == 41
    assert outcomes["released"] == handed_back
    assert set(outcomes) <= {"succeeded", "released"}
    assert conn.execute("SELECT max(attempts_used) FROM bellwire.job").fetchone() == (1,)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(source="binaries") as server:
        yield server


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_postgresql_restarted_under_load(own_server: PostgresServer, mode: Any) -> None:
    template = Template(own_server, upgrade)
    database = template.clone()
    runs: Counter[int] = Counter()
    app = App("load")

    @app.handler(Work)
    async def work(job: Work, attempt: AsyncAttempt) -> None:
        await asyncio.sleep(0.01)
        runs[job.n] += 1

    total = 400
    with database.connect() as conn:
        apply_policy(database, app)
        submit_jobs(conn, *[Work(n=n) for n in range(total)])
        admit(conn)
    async with running(database, app, slots=20) as consumer:
        await until(lambda: len(runs) > 60, "load")
        await asyncio.to_thread(own_server.restart, mode)
        with database.connect() as conn:

            def all_done() -> bool:
                # What an unanswered claim brought is handed back, and has to be admitted anew.
                turn(conn)
                return states(conn) == {"succeeded": total}

            await until(all_done, "all to succeed after the restart", deadline=60)
            # No lease was outlived, so nobody else's time was used up.
            assert conn.execute("SELECT max(attempts_used) FROM bellwire.job").fetchone() == (1,)
            extra = conn.execute(
                "SELECT count(*) FROM bellwire.attempt WHERE outcome <> 'succeeded'"
            ).fetchone()
            assert extra is not None
            assert extra[0] <= consumer.slots.total
        await until(lambda: consumer.slots.free == 20, "the slots to be free")
    assert set(runs.values()) == {1}
    database.drop()
    template.drop()


def start(processes: Processes, tmp_path: Path, *argv: str, env: dict[str, str] | None = None) -> Process:
    environment = {LINES: str(tmp_path / "lines"), "PYTHONPATH": str(ROOT), **(env or {})}
    return processes.start("bellwire", "consumer", "--app", APP, *argv, env=environment, cwd=ROOT)


def lines(tmp_path: Path, word: str) -> list[list[str]]:
    path = tmp_path / "lines"
    if not path.exists():
        return []
    return [line.split() for line in path.read_text().splitlines() if line.startswith(word)]


@pytest.mark.parametrize("barrier", ["consumer.claimed", "consumer.settling", "consumer.settled"])
def test_killed_at_a_barrier(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path, barrier: str
) -> None:
    apply_policy(database, naps)
    ids = submit_jobs(conn, *[Nap() for _ in range(5)])
    admit(conn)
    first = start(processes, tmp_path, env=kill_at(barrier))
    assert first.wait_exit() == -signal.SIGKILL
    settled = barrier == "consumer.settled"
    assert states(conn) == ({"succeeded": 5} if settled else {"running": 5})
    start(processes, tmp_path)

    def all_done() -> bool:
        turn(conn)
        return states(conn) == {"succeeded": 5}

    wait_until(all_done, deadline=30, describe="another consumer to finish what the killed one held")
    for job_id in ids:
        outcomes = [past.outcome for past in history(conn, job_id)]
        assert outcomes == (["succeeded"] if settled else ["recovered", "succeeded"])
    attempts = Counter(words[1] for words in lines(tmp_path, "end"))
    # Killed before it settled, the work had been done and is done again: at least once, with a new number.
    assert set(attempts.values()) == {2 if barrier == "consumer.settling" else 1}


@pytest.mark.parametrize("kind", [Nap, ThreadNap])
def test_sigterm_drains_what_can_end_and_hands_the_rest_back(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path, kind: Any
) -> None:
    apply_policy(database, naps)
    short, long = submit_jobs(conn, kind(seconds=1.5), kind(seconds=60))
    admit(conn)
    consumer = start(
        processes, tmp_path, env={"BELLWIRE_CONSUMER_DRAIN": "4s", "BELLWIRE_SHUTDOWN_GRACE": "10s"}
    )
    consumer.wait_for(lambda: len(lines(tmp_path, "start")) == 2, describe="both to run")
    consumer.terminate()
    wait_until(
        lambda: conn.execute("SELECT stopping FROM bellwire.consumer").fetchone() == (True,),
        describe="the registry to say that it stops",
    )
    (waiting,) = submit_jobs(conn, kind())
    admit(conn)
    assert consumer.wait_exit(within=12) == 0
    assert "Traceback" not in consumer.output
    assert job(conn, short).state == "succeeded"
    row = job(conn, long)
    assert (row.state, row.attempts_used, row.releases) == ("ready", 0, 1)
    assert [past.outcome for past in history(conn, long)] == ["released"]
    assert job(conn, waiting).state == "ready"
    assert conn.execute("SELECT count(*) FROM bellwire.consumer").fetchone() == (0,)


def test_a_second_signal_leaves_at_once(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path
) -> None:
    apply_policy(database, naps)
    submit_jobs(conn, Nap(seconds=60))
    admit(conn)
    consumer = start(processes, tmp_path)
    consumer.wait_for(lambda: lines(tmp_path, "start"), describe="the job to run")
    consumer.terminate()
    consumer.wait_for_output("stopping")
    consumer.terminate()
    assert consumer.wait_exit(within=3) == 128 + signal.SIGTERM
    assert states(conn) == {"running": 1}


def test_sigterm_while_the_database_is_frozen_ends_within_the_grace(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path, proxy: Proxy
) -> None:
    apply_policy(database, naps)
    submit_jobs(conn, Nap(seconds=60))
    admit(conn)
    url = {"BELLWIRE_DATABASE_URL": database.url_through(proxy.port), "BELLWIRE_SHUTDOWN_GRACE": "5s"}
    consumer = start(processes, tmp_path, env=url)
    consumer.wait_for(lambda: lines(tmp_path, "start"), describe="the job to run")
    proxy.freeze()
    consumer.terminate()
    assert consumer.wait_exit(within=8) in {0, 1}
    proxy.thaw()


def test_at_most_three_connections(
    database: Database, conn: Conn, processes: Processes, tmp_path: Path
) -> None:
    apply_policy(database, naps)
    consumer = start(processes, tmp_path)
    submit_jobs(conn, *[Nap() for _ in range(20)])
    admit(conn)
    consumer.wait_for(lambda: states(conn) == {"succeeded": 20}, describe="all to succeed")
    sessions = [name for name in database.sessions() if "bellwire consumer" in name]
    assert len(sessions) == 3
    assert os.getpid() != consumer.pid
