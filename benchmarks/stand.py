"""Where the measurements are taken: a private PostgreSQL that waits for its disk, relays and consumers as
shipped, and where wanted a private RabbitMQ between them.

The daemons are started by the `bellwire` command with nothing said but the addresses and the app. fsync and
synchronous_commit are asked of the server itself before anything is measured.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from bellwire import submit_many
from bellwire_testkit.processes import Process
from bellwire_testkit.rabbitmq import RabbitServer
from bellwire_testkit.servers import PostgresServer
from benchmarks.app import LINES, Noop

APP = "benchmarks.app:app"
# The id, a space, at least ten digits of the clock, and the end of the line.
LINE_LEAST = 36 + 1 + 10 + 1
ROOT = Path(__file__).parent.parent


class Stand:
    """Servers, database, relay and consumers; everything is taken away at the end."""

    def __init__(self, *, broker: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bellwire-bench-")
        self.folder = Path(self._folder.name)
        self.lines_file = self.folder / "lines"
        self.server = PostgresServer(durable=True)
        self.broker = RabbitServer() if broker else None
        self._processes: list[Process] = []
        self.relay_pid = 0
        self.consumer_pids: list[int] = []

    def __enter__(self) -> Self:
        self.server.start()
        if self.broker is not None:
            self.broker.start()
        with psycopg.connect(self.server.url, autocommit=True) as conn:
            conn.execute("CREATE DATABASE bench")
        self._run("migrate")
        self._run("apply", "--app", APP)
        self.conn = self.connect(autocommit=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.close()
        self.conn.close()
        self.server.close()
        if self.broker is not None:
            self.broker.close()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        return self.server.dsn("bench")

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=autocommit)

    def durable(self) -> bool:
        """Whether the server waits for its disk, by its own word."""
        return all(
            self.one(f"SHOW {name}") == "on" for name in ("fsync", "synchronous_commit", "full_page_writes")
        )

    def start_daemons(self) -> None:
        """A relay, and a consumer that has registered."""
        self.start_relay()
        self.start_consumer()

    def start_relay(self) -> None:
        self.relay_pid = self._start("relay", user="bellwire_relay").pid
        self.wait(
            lambda: self.one("SELECT count(*) FROM bellwire.kind_owner") > 0, 30, "the relay to own the kind"
        )

    def start_consumer(self) -> None:
        """One more, that has registered, and hears the broker where there is one."""
        process = self._start("consumer", "--app", APP, user="bellwire_consumer")
        self.consumer_pids.append(process.pid)
        hears = "" if self.broker is None else " WHERE hears"
        self.wait(
            lambda: self.one(f"SELECT count(*) FROM bellwire.consumer{hears}") == len(self.consumer_pids),
            30,
            "the consumer to register",
        )

    def stop_daemons(self) -> None:
        """All of them, in order."""
        for process in self._processes:
            process.close()
        self._processes.clear()
        self.consumer_pids.clear()

    def one(self, query: str) -> Any:
        row = self.conn.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    def submit(self, count: int, *, at_once: int = 1000) -> None:
        """`count` jobs, committed `at_once` at a time."""
        with self.connect() as conn:
            for start in range(0, count, at_once):
                size = min(at_once, count - start)
                for part in range(0, size, 1000):
                    submit_many(
                        conn, [Noop(n=n) for n in range(start + part, start + min(part + 1000, size))]
                    )
                conn.commit()

    def wait_succeeded(self, total: int, seconds: float) -> None:
        """Wait until so many attempts have succeeded in all, without counting rows while they are written."""
        query = "SELECT count(*) FROM bellwire.attempt WHERE outcome = 'succeeded'"
        self.wait(lambda: self.size >= total * LINE_LEAST, seconds, f"{total} lines")
        self.wait(lambda: self.one(query) >= total, seconds, f"{total} jobs to succeed")

    @property
    def size(self) -> int:
        """Bytes of the handlers' lines so far."""
        return self.lines_file.stat().st_size if self.lines_file.exists() else 0

    def lines(self) -> list[str]:
        return self.lines_file.read_text().splitlines() if self.lines_file.exists() else []

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        ends = time.monotonic() + seconds
        while not condition():
            for process in self._processes:
                if process.code is not None:
                    raise SystemExit(f"{process.argv} ended with {process.code}:\n{process.tail()}")
            if time.monotonic() > ends:
                raise SystemExit(f"waited {seconds:.0f} s in vain for {what}\n" + self._tails())
            time.sleep(0.1)

    def _start(self, *argv: str, user: str) -> Process:
        env = {
            "BELLWIRE_DATABASE_URL": self.server.dsn("bench", user=user),
            LINES: str(self.lines_file),
            "PYTHONPATH": str(ROOT),
        }
        if self.broker is not None:
            env["BELLWIRE_AMQP_URL"] = self.broker.url
        name = f"{argv[0]}-{len(self._processes)}"
        process = Process("bellwire", *argv, folder=self.folder / "logs", env=env, cwd=ROOT, name=name)
        self._processes.append(process)
        return process

    def _run(self, *argv: str) -> None:
        command = [str(Path(sys.executable).with_name("bellwire")), *argv]
        done = subprocess.run(
            command,
            env={"PATH": "/usr/bin:/bin", "BELLWIRE_DATABASE_URL": self.url, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr}")

    def _tails(self) -> str:
        return "\n".join(process.tail(10) for process in self._processes)
