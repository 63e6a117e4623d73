"""What the demo starts, it ends: by process id, in reverse order, on success, failure and Ctrl-C alike.

The database is one that the demo makes for itself, also on a server it was given, so nothing of a developer's
is read or changed. Server and processes come from the test kit, which starts the real programs.
"""

import contextlib
import os
import random
import re
import secrets
import socket
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from bellwire_testkit.processes import Process
from bellwire_testkit.servers import PostgresServer
from examples.statements.load import SHOP_ROLE

_GRACE_S = 15.0


class Died(Exception):
    """A process that should run has ended, or did not do in time what it was waited for."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """One database, by the role of each part: who migrates, who relays, who consumes, and the shop itself."""

    owner: str
    relay: str
    consumer: str
    shop: str

    @property
    def roles_apart(self) -> bool:
        return self.shop != self.owner


@contextmanager
def own_database(given: str | None) -> Iterator[Addresses]:
    """A fresh database: on the server at `given`, else on a private one started for it.

    The private server keeps its promises (fsync on): what the demo shows must not depend on a fast lie. There
    each part logs in as the role made for it; a server that was given knows no passwords for those.
    """
    name = f"statements_demo_{secrets.token_hex(4)}"
    with ExitStack() as stack:
        admin, private = given, None
        if admin is None:
            private = stack.enter_context(PostgresServer(durable=True))
            admin = private.url
        own = urlunsplit(urlsplit(admin)._replace(path=f"/{name}"))
        addresses = Addresses(owner=own, relay=own, consumer=own, shop=own)
        if private is not None and private.controllable:
            addresses = Addresses(
                owner=own,
                relay=private.dsn(name, user="bellwire_relay"),
                consumer=private.dsn(name, user="bellwire_consumer"),
                shop=private.dsn(name, user=SHOP_ROLE),
            )
        _admin(admin, "CREATE DATABASE {} TEMPLATE template0", name)
        try:
            yield addresses
        finally:
            _admin(admin, "DROP DATABASE {} WITH (FORCE)", name)


def _admin(address: str, statement: str, name: str) -> None:
    with psycopg.connect(address, autocommit=True) as conn:
        conn.execute(sql.SQL(statement).format(sql.Identifier(name)))


class Fleet:
    """The running processes. `env` is what all of them are told; their output goes to files in `logs`, and
    what daemons counted to files in `metrics`."""

    def __init__(self, *, logs: Path, metrics: Path, env: Mapping[str, str]) -> None:
        self._logs = logs
        self._metrics = metrics
        self._ports: dict[str, int] = {}
        # `examples` is imported from the repository, wherever the demo was started.
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        self._env = {**env, "PYTHONPATH": path}
        self._running: dict[str, Process] = {}

    def start(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> Process:
        process = Process(*argv, folder=self._logs, env={**self._env, **(env or {})}, name=name)
        self._running[name] = process
        return process

    def start_daemon(self, name: str, *argv: str, env: Mapping[str, str]) -> Process:
        """One of Bellwire's own, with an endpoint to ask it by."""
        self._ports[name] = port = _free_port()
        return self.start(name, *argv, "--health-port", str(port), env=env)

    def pids(self, *names: str) -> list[int]:
        return [self._running[name].pid for name in names]

    def metrics(self, name: str) -> str:
        """What the daemon counted so far, in its own words; kept in the folder, too."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[name]}/metrics", timeout=10) as answer:
            text = str(answer.read().decode())
        (self._metrics / f"{name}.txt").write_text(text)
        return text

    def connected(self, *names: str) -> int:
        """How many of these daemons have the broker."""
        return sum(
            bool(re.search(r"^bellwire_broker_connected{.*} 1", self.metrics(name), re.MULTILINE))
            for name in names
        )

    def finish(self, name: str) -> None:
        """Wait for a command's end. Raises `Died` with its last lines if it fails."""
        process = self._running[name]
        code = process.wait_exit(within=60)
        del self._running[name]
        if code:
            raise Died(f"{name} ended with {code}:\n{process.tail()}")

    def verdict(self, *argv: str) -> tuple[int, str]:
        """Run a command to its end; answers exit code and output."""
        process = self.start("verify", *argv)
        return process.wait_exit(within=120), process.output

    def kill(self, name: str) -> None:
        """SIGKILL: no handler, no farewell."""
        self._running.pop(name).kill()

    def check(self) -> None:
        """Raise `Died` if anything has ended that should still run."""
        for name, process in self._running.items():
            if process.code is not None:
                raise Died(f"{name} ended with {process.code}:\n{process.tail()}")

    def stop(self) -> dict[str, int | None]:
        """SIGTERM in reverse order of starting, each waited for; answers the exit codes, None for a kill."""
        codes: dict[str, int | None] = {}
        for name, process in reversed(self._running.items()):
            with contextlib.suppress(AssertionError):  # it has ended already
                process.terminate()
            try:
                codes[name] = process.wait_exit(within=_GRACE_S)
            except AssertionError:
                codes[name] = None
            process.close()
        self._running.clear()
        return codes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running.values()):
            process.close()
        self._running.clear()


def _free_port() -> int:
    """Outside the range the kernel hands to outgoing connections, so that it is free a second later, too."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What named the jobs that consumers claimed."""

    hints: int = 0
    polls: int = 0

    @classmethod
    def counted(cls, metrics: str, *, kind: str) -> Self:
        """From a consumer's metrics."""
        found = {"hint": 0, "poll": 0}
        for labels, value in re.findall(r"^bellwire_job_claimed_total{(.*)} (\S+)$", metrics, re.MULTILINE):
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if named["kind"] == kind:
                found[named["source"]] += int(float(value))
        return cls(hints=found["hint"], polls=found["poll"])

    @property
    def total(self) -> int:
        return self.hints + self.polls

    def __add__(self, other: "Claims") -> "Claims":
        return Claims(hints=self.hints + other.hints, polls=self.polls + other.polls)


def web_address(process: Process) -> str:
    """Where uvicorn listens, once it does: the port is the system's choice."""
    found = process.wait_for_output(r"Uvicorn running on (http://[0-9.:]+)", deadline=30)
    return found[1]


def python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)
