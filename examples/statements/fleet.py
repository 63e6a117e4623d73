"""What the demo starts, it ends: by process id, in reverse order, on success, failure and Ctrl-C alike.

The database is one that the demo makes for itself, also on a server it was given, so nothing of a developer's
is read or changed. Server and processes come from the test kit, which starts the real programs.
"""

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from bellwire_testkit.processes import Process
from bellwire_testkit.servers import PostgresServer

_GRACE_S = 15.0


class Died(Exception):
    """A process that should run has ended, or did not do in time what it was waited for."""


@contextmanager
def own_database(given: str | None) -> Iterator[str]:
    """The address of a fresh database: on the server at `given`, else on a private one started for it.

    The private server keeps its promises (fsync on): what the demo shows must not depend on a fast lie.
    """
    with ExitStack() as stack:
        server = given or stack.enter_context(PostgresServer(durable=True)).url
        name = f"statements_demo_{secrets.token_hex(4)}"
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


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

    def run(self, name: str, *argv: str) -> None:
        """Run a command to its end. Raises `Died` with its last lines if it fails."""
        process = self.start(name, *argv)
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


def seconds_since(start: float) -> str:
    return f"{time.monotonic() - start:.1f} s"
