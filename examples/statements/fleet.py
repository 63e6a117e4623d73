"""What the demo starts, it ends: by process id, in reverse order, on success, failure and Ctrl-C alike.

The database is one that the demo makes for itself, also on a server it was given, so nothing of a developer's
is read or changed. Server and processes come from the test kit, which starts the real programs.
"""

import contextlib
import os
import secrets
import sys
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
    """The running processes. `env` is what all of them are told; their output goes to files in `logs`."""

    def __init__(self, *, logs: Path, env: Mapping[str, str]) -> None:
        self._logs = logs
        # `examples` is imported from the repository, wherever the demo was started.
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        self._env = {**env, "PYTHONPATH": path}
        self._running: dict[str, Process] = {}

    def start(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> Process:
        process = Process(*argv, folder=self._logs, env={**self._env, **(env or {})}, name=name)
        self._running[name] = process
        return process

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


def web_address(process: Process) -> str:
    """Where uvicorn listens, once it does: the port is the system's choice."""
    found = process.wait_for_output(r"Uvicorn running on (http://[0-9.:]+)", deadline=30)
    return found[1]


def python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)
