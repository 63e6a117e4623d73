"""A private PostgreSQL from local binaries, in a temporary folder on a port of its own.

It never meets another server: its own data folder, its own port outside the range the kernel hands to
outgoing connections (so that a restart finds it free again), TCP on 127.0.0.1 only, no port 5432.
PostgreSQL refuses to run as root, so as root the server runs as an unprivileged user.

With `durable=False` fsync is off. That is safe against the death of the server's processes (what they
wrote is in the kernel's page cache), not against the death of the machine, which no test plays.
"""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psycopg

from bellwire_testkit import leftovers

StopMode = Literal["smart", "fast", "immediate"]

INSTALL = "No PostgreSQL server was found. Install one: apt-get install postgresql"
START_DEADLINE_S = 60.0
STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_PORTS = range(20000, 32000)


class ServerMissing(RuntimeError):
    """No server could be brought up; the text is one sentence that says what to install."""


class ServerFailed(RuntimeError):
    """The server was there and did not do as told; the text ends with the tail of its log."""


def find_bin_dir() -> Path:
    """The folder of the newest local server binaries, else `ServerMissing`."""
    given = os.environ.get("BELLWIRE_TEST_POSTGRES_BIN")
    if given:
        if not (Path(given) / "initdb").exists():
            raise ServerMissing(f"BELLWIRE_TEST_POSTGRES_BIN is {given}, but there is no initdb in it")
        return Path(given)
    versioned = [
        (int(found.group(1)), path.parent)
        for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")
        if (found := re.fullmatch(r"(\d+)", path.parent.parent.name))
    ]
    if versioned:
        return max(versioned)[1]
    on_path = shutil.which("initdb")
    if on_path and (Path(on_path).resolve().parent / "postgres").exists():
        return Path(on_path).resolve().parent
    raise ServerMissing(INSTALL)


def free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class BinariesServer:
    """One data folder and the server process on it; data outlive `stop` and `kill`, not `close`."""

    source = "binaries"
    controllable = True

    def __init__(self, *, bin_dir: Path | None, durable: bool, settings: Mapping[str, str]) -> None:
        self._bin = bin_dir or find_bin_dir()
        self._durable = durable
        self._settings = dict(settings)
        self._account = self._unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX))
        self.port = free_port()
        self.log = self.folder / "server.log"
        self._data = self.folder / "data"
        leftovers.mark(self.folder)
        try:
            if self._account:
                os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
            self._initdb()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers.

        The first start takes another port where this one was taken meanwhile. A start after `kill` is
        tried again while orphaned backends still hold the shared memory.
        """
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            self._spawn()
            if self._answers(deadline):
                return
            said = self._tail()
            fresh = not (self._data / "global" / "pg_internal.init").exists()
            if "in use" not in said or time.monotonic() > deadline:
                raise ServerFailed(f"PostgreSQL did not start:\n{said}")
            if "Address already in use" in said and fresh:
                self.port = free_port()
                self._configure()
            time.sleep(0.05)

    def stop(self, mode: StopMode = "fast") -> None:
        self._end(STOP_SIGNALS[mode])

    def kill(self) -> None:
        """SIGKILL the postmaster; its children notice and leave by themselves."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop without ceremony and remove the folder; safe to call twice."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(START_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerFailed(f"PostgreSQL did not stop on {number.name}; it was killed") from None

    def _unprivileged(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise ServerMissing("PostgreSQL may not run as root and there is no user postgres or nobody")

    def _popen(self, *argv: str | Path) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal is for the tests, not for their server.
        with self.log.open("ab") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder), "LC_ALL": "C"},
                start_new_session=True,
                user=self._account.pw_uid if self._account else None,
                group=self._account.pw_gid if self._account else None,
                extra_groups=[] if self._account else None,
            )

    def _initdb(self) -> None:
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        code = self._popen(self._bin / "initdb", "-D", self._data, *options).wait()
        if code != 0:
            raise ServerFailed(f"initdb ended with {code}:\n{self._tail()}")
        self._configure()

    def _configure(self) -> None:
        on_off = "on" if self._durable else "off"
        socket_folder = str(self.folder) if len(str(self.folder)) < 80 else ""  # the kernel allows 107
        conf = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": socket_folder,
            "max_connections": "200",
            "shared_buffers": "128MB",
            "fsync": on_off,
            "full_page_writes": on_off,
            "synchronous_commit": "on",
            "track_activities": "on",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "max_wal_size": "2GB",
        }
        if self._has("pg_stat_statements"):
            conf["shared_preload_libraries"] = "pg_stat_statements"
        conf.update(self._settings)
        lines = [f"{name} = '{value}'" for name, value in conf.items()]
        (self._data / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")

    def _has(self, extension: str) -> bool:
        sharedir = subprocess.run(
            [self._bin / "pg_config", "--sharedir"], capture_output=True, text=True, check=False
        )
        return (Path(sharedir.stdout.strip()) / "extension" / f"{extension}.control").exists()

    def _spawn(self) -> None:
        if self._process is not None and self._process.poll() is None:
            raise ServerFailed("the server is running already")
        self._process = self._popen(self._bin / "postgres", "-D", self._data)

    def _answers(self, deadline: float) -> bool:
        assert self._process is not None
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._process = None
                return False
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        self._end(signal.SIGQUIT)
        return False

    def _tail(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
        except OSError:
            return "(no log)"
