"""A whole installation of real processes, to be hurt at its broker: submit, hurt, wait, and prove the end.

`finish` asserts what every test of this folder must: all jobs reached a terminal state; each has exactly one
success and as many attempts as expected; every process left in time, with 0 and without a traceback; nothing
is left in the outbox; `doctor --data` finds no row that breaks an invariant.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
from sqlalchemy import create_engine

from bellwire_outbox import Job, submit_many
from bellwire_runtime.broker.hint import encode
from bellwire_runtime.broker.topology import queue_name
from bellwire_schema.connection import connect
from bellwire_schema.doctor import Finding, examine
from bellwire_schema.policy import apply
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Process, Processes
from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until
from tests.faults.app import APP, Quick, app

ROOT = Path(__file__).parents[2]
GRACE = 10.0
"""Seconds from SIGTERM to the end of each process."""
_SAMPLE = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Daemon:
    """One process and its health port."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port
        self.hurt = False
        """Killed, or expected to end other than with 0."""

    def get(self, path: str) -> tuple[int, str]:
        """HTTP's status and body; (0, '') where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def reds(self) -> dict[str, str] | None:
        """What /ready says is red; empty: ready; None: no answer."""
        status, body = self.get("/ready")
        return json.loads(body)["reasons"] if status else None

    def wait_ready(self, *, deadline: float = 60.0) -> Daemon:
        self.process.wait_for(lambda: self.reds() == {}, deadline=deadline, describe="/ready to be green")
        return self

    def wait_red(self, check: str, *, deadline: float = 15.0) -> str:
        """Wait until this check turns /ready red; answers its reason."""

        def reason() -> str | None:
            return (self.reds() or {}).get(check)

        return self.process.wait_for(reason, deadline=deadline, describe=f"{check} to turn red")

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all samples of that name with these labels; 0 where there is none."""
        total = 0.0
        for found in _SAMPLE.finditer(self.get("/metrics")[1]):
            if found["name"] == name:
                given = dict(_LABEL.findall(found["labels"] or ""))
                if labels.items() <= given.items():
                    total += float(found["value"])
        return total

    @property
    def connects(self) -> int:
        """How often its broker connections came to stand."""
        return int(self.metric("bellwire_broker_connects"))

    def wait_connects(self, count: int, *, deadline: float = 15.0) -> None:
        """Wait until its broker connections came to stand that often, and stand."""

        def stands() -> bool:
            return self.connects >= count and self.metric("bellwire_broker_connected") == 1

        self.process.wait_for(stands, deadline=deadline, describe=f"{count} connects")

    @property
    def rss(self) -> int:
        """Resident memory in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def lines(self, pattern: str = "") -> list[str]:
        """Its log lines that contain the regular expression."""
        return [line for line in self.process.output.splitlines() if re.search(pattern, line)]

    def kill(self) -> None:
        self.hurt = True
        self.process.kill()


class Stage:
    """`amqp` is where daemons find the broker unless told otherwise; `admin` is its own view of that."""

    def __init__(
        self,
        *,
        database: Database,
        processes: Processes,
        amqp: str,
        admin: Admin,
        figures: list[tuple[str, object]] | None = None,
    ) -> None:
        self.database = database
        self.amqp = amqp
        self.admin = admin
        self.daemons: list[Daemon] = []
        self._processes = processes
        self._figures = figures if figures is not None else []
        self.conn: psycopg.Connection[Any] = database.connect()
        row = self.conn.execute("SELECT id FROM bellwire.installation").fetchone()
        assert row is not None
        self.installation: UUID = row[0]
        engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://", 1))
        with engine.begin() as connection:
            apply(connection, app=app.name, declared=app.declared(), actor="test")
        engine.dispose()

    def close(self) -> None:
        self.conn.close()

    def measured(self, what: str, value: float, *, bound: float, unit: str = "s") -> None:
        """A figure for the run's summary, held to its bound."""
        self._figures.append(("figure", f"{what}: {value:.3g} {unit} (bound {bound:g})"))
        assert value < bound, f"{what}: {value:g} {unit}, and the bound is {bound:g}"

    # --- processes ---

    def relay(self, *, amqp: str | None = None, env: Mapping[str, str] | None = None, **more: str) -> Daemon:
        """`env` and `more` are variables of its environment."""
        url = self.database.url_as("bellwire_relay")
        return self._start("relay", "relay", amqp=amqp, url=url, env={**(env or {}), **more})

    def consumer(
        self,
        *kinds: str,
        amqp: str | None = None,
        slots: int = 10,
        env: Mapping[str, str] | None = None,
        **more: str,
    ) -> Daemon:
        argv = ("--app", APP, "--slots", str(slots), *kinds)
        url = self.database.url_as("bellwire_consumer")
        return self._start("consumer", "consumer", *argv, amqp=amqp, url=url, env={**(env or {}), **more})

    def _start(self, name: str, *argv: str, amqp: str | None, url: str, env: Mapping[str, str]) -> Daemon:
        port = free_port()
        settings = {
            "BELLWIRE_DATABASE_URL": url,
            "BELLWIRE_AMQP_URL": self.amqp if amqp is None else amqp,
            "BELLWIRE_HEALTH_PORT": str(port),
            "BELLWIRE_LOG_FORMAT": "json",
            "BELLWIRE_SHUTDOWN_GRACE": f"{GRACE:g}s",
            "BELLWIRE_RELAY_RECOVER_WAIT": "0",
            "PYTHONPATH": str(ROOT),
            **env,
        }
        process = self._processes.start("bellwire", *argv, env=settings, cwd=ROOT, name=name)
        daemon = Daemon(process, port)
        self.daemons.append(daemon)
        return daemon

    def up(self, *daemons: Daemon, kind: str = "quick") -> None:
        """Wait until all are ready, the broker shows the consumers, and a hint has brought a job."""
        consumers = [one for one in daemons if one.process.argv[1] == "consumer"]
        for one in daemons:
            one.wait_ready()
        self.admin.wait_for_consumers(self.queue(kind), len(consumers), deadline=30)
        if kind == "quick":
            self.run_from_hint(*consumers, deadline=30)

    # --- jobs ---

    def submit(self, *jobs: Job, **options: Any) -> list[UUID]:
        with self.conn.transaction():
            return [receipt.job_id for receipt in submit_many(self.conn, list(jobs), **options)]

    def state(self, ids: Iterable[UUID]) -> Counter[str]:
        rows = self.conn.execute("SELECT state FROM bellwire.job WHERE id = ANY(%s)", (list(ids),))
        return Counter(row[0] for row in rows.fetchall())

    def wait_done(self, ids: Sequence[UUID], *, deadline: float = 30.0) -> float:
        """Wait until all succeeded; answers the seconds that took."""
        began = time.monotonic()
        wait_until(
            lambda: self.state(ids)["succeeded"] == len(ids),
            deadline=deadline,
            describe=lambda: (
                f"{len(ids)} jobs to succeed; they are {dict(self.state(ids))}, {self._saying()}"
            ),
        )
        return time.monotonic() - began

    def wait_running(self, ids: Sequence[UUID], *, deadline: float = 30.0) -> None:
        wait_until(
            lambda: self.state(ids)["running"] == len(ids),
            deadline=deadline,
            describe=lambda: f"{len(ids)} jobs to run; they are {dict(self.state(ids))}",
        )

    def run_one(self, *, deadline: float = 10.0) -> float:
        """A fresh job from submit to success; answers the seconds."""
        return self.wait_done(self.submit(Quick()), deadline=deadline)

    def start_delay(self, job: UUID, *, deadline: float = 10.0) -> float:
        """Seconds from a job's commit, by its own clock, to the start of its attempt."""
        self.wait_done([job], deadline=deadline)
        row = self.conn.execute(
            "SELECT extract(epoch FROM a.started_at - j.created_at) FROM bellwire.job j"
            " JOIN bellwire.attempt a ON a.job_id = j.id WHERE j.id = %s AND a.number = 1",
            (job,),
        ).fetchone()
        assert row is not None
        return float(row[0])

    def run_from_hint(self, *consumers: Daemon, deadline: float = 10.0) -> None:
        """Fresh jobs run until a hint has brought one to each of these consumers."""
        before = [self.claimed_by("hint", one) for one in consumers]
        ends = time.monotonic() + deadline
        while True:
            self.run_one(deadline=max(0.1, ends - time.monotonic()))
            now = [self.claimed_by("hint", one) for one in consumers]
            if all(count > was for count, was in zip(now, before, strict=True)):
                return
            assert time.monotonic() < ends, (
                f"hints brought {before}, then {now} jobs within {deadline:g} s, {self._saying()}"
            )

    def claimed_by(self, source: str, *consumers: Daemon) -> int:
        """How many jobs these consumers have claimed by "hint" or "poll"."""
        return sum(int(one.metric("bellwire_job_claimed_total", source=source)) for one in consumers)

    def doctor(self, check: str | None = None, *, data: bool = False) -> list[Finding]:
        """What `bellwire doctor` says, of one check or of all."""
        with connect(self.database.url, application_name="test") as connection, connection.begin():
            return [one for one in examine(connection, data=data) if check in {None, one.check}]

    # --- the broker ---

    def queue(self, kind: str = "quick", version: int = 1) -> str:
        return queue_name(self.installation, kind, version)

    def hint(self, ids: Sequence[UUID], *, kind: str = "quick", version: int = 1) -> None:
        """Publish a hint by hand, whatever it names."""
        body = encode(self.installation, kind, version, ids)
        self.raw(body, queue=self.queue(kind, version))

    def raw(self, body: bytes, *, queue: str | None = None, **properties: Any) -> None:
        """Publish any bytes to a kind's queue."""
        where = queue or self.queue()
        assert self.admin.publish(where, body, properties), f"there is no queue {where}"

    def close_connections(self, count: int) -> None:
        """Have the broker close all, once it lists that many: it does so a moment late."""
        wait_until(
            lambda: len(self.admin.connections()) == count, describe=f"{count} connections to be listed"
        )
        self.admin.close_connections()

    # --- the end ---

    def finish(self, *, attempts: int | None = 1, deadline: float = 30.0) -> None:
        """Wait for the last jobs, stop every process, and assert. `attempts`: of each job, None: any."""
        count = "SELECT count(*) FROM bellwire.job WHERE state NOT IN ('succeeded', 'failed', 'cancelled')"
        self._until(lambda: self._number(count) == 0, deadline, "every job to end")
        self.stop()
        many = "SELECT count(*) FROM (SELECT job_id FROM bellwire.attempt GROUP BY job_id HAVING "
        once = "count(*) FILTER (WHERE outcome = 'succeeded') <> 1"
        assert self._number(f"{many}{once}) AS wrong") == 0, "a job succeeded twice, or ended without success"
        never = (
            "SELECT count(*) FROM bellwire.job j WHERE state <> 'succeeded' OR NOT EXISTS"
            " (SELECT FROM bellwire.attempt a WHERE a.job_id = j.id)"
        )
        assert self._number(never) == 0, "a job ended without an attempt that succeeded"
        if attempts is not None:
            rows = self.conn.execute(
                "SELECT job_id, array_agg(outcome ORDER BY number) FROM bellwire.attempt GROUP BY job_id"
                " HAVING count(*) <> %s LIMIT 5",
                (attempts,),
            )
            assert rows.fetchall() == []
        assert self._number("SELECT count(*) FROM bellwire.outbox") == 0
        broken = [one for one in self.doctor(data=True) if one.check.startswith("data:")]
        assert {one.level for one in broken} == {"ok"}, broken

    def stop(self) -> None:
        """SIGTERM to all that live; each leaves within the grace, with 0, and without a traceback."""
        living = [one for one in self.daemons if not one.hurt]
        for one in living:
            one.process.terminate()
        for one in living:
            assert one.process.wait_exit(within=GRACE + 2.0) == 0, one.process.tail()
        for one in self.daemons:
            # The first traceback of one that was killed is as much a bug as any.
            unwanted = one.lines(r"Traceback|never retrieved|was destroyed but it is pending|never awaited")
            assert unwanted == [], one.process.tail()

    def _until(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        wait_until(condition, deadline=deadline, describe=lambda: f"{what}, {self._saying()}")

    def _number(self, query: str) -> int:
        row = self.conn.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _saying(self) -> str:
        tails = [f"{one.process.log.name} ({one.reds()}):\n{one.process.tail(8)}" for one in self.daemons]
        return "while they say\n" + "\n".join(tails)


def free_port() -> int:
    """A port below those that outgoing connections are given, and none of a private broker's."""
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
