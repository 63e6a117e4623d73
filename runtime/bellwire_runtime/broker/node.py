"""A private RabbitMQ node from local binaries, in a temporary folder, on ports of its own.

It never meets another one: its own node name, Erlang cookie, home, data, and its own port mapper (epmd), so
that a RabbitMQ of the machine (5672, 15672, 4369) is neither asked nor disturbed; TCP on 127.0.0.1 only, on
ports outside the range the kernel hands to outgoing connections, so that a restart finds them free again.
Nothing of it outlives its owner: what `close` and `atexit` could not end, the next node to start does.

One scheduler thread is what tests want: Erlang loads its thousand modules half again as fast as with two (a
start takes about 3 s instead of 4 to 5 s), and the node leaves a core to those who talk to it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from bellwire_runtime import leftovers
from bellwire_runtime.broker.node_config import NodeTls, advanced_config

__all__ = ["NodeFailed", "NodeMissing", "NodeTls", "RabbitNode", "speaks_amqp"]

PREFIX = "bellwire-rabbitmq-"
INSTALL = "No RabbitMQ server was found. Install one: apt-get install rabbitmq-server"
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 30.0
_ADDRESS = "127.0.0.1"
_PORTS = range(20000, 32000)
_DEFAULT_PORTS = {25672}
_TOLD_LINES = 30


class NodeMissing(RuntimeError):
    """No node could be brought up; the text is one sentence that says what to install."""


class NodeFailed(RuntimeError):
    """The node was there and did not do as told; the text ends with its own words about it."""


def find_bin_dir() -> Path:
    """The folder of `rabbitmq-server`, else `NodeMissing`."""
    # Debian's wrappers in /usr/sbin insist on its user `rabbitmq`; the programs behind them do not.
    packaged = Path("/usr/lib/rabbitmq/bin")
    if (packaged / "rabbitmq-server").exists():
        return packaged
    found = shutil.which("rabbitmq-server")
    if found is None:
        raise NodeMissing(INSTALL)
    return Path(found).resolve().parent


def find_epmd() -> Path:
    """Erlang's port mapper, which comes with any Erlang."""
    found = shutil.which("epmd")
    erl = shutil.which("erl")
    inside = sorted(Path(erl).resolve().parents[1].glob("erts-*/bin/epmd")) if erl else []
    if erl is None or (found is None and not inside):
        raise NodeMissing("RabbitMQ's Erlang was not found. Install it: apt-get install rabbitmq-server")
    return Path(found) if found else inside[-1]


def speaks_amqp(host: str, port: int, *, within: float = 1.0) -> bool:
    """Whether an AMQP server answers there: accepting a connection is not enough, proxies do that too."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), within) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        return client.recv(1) == b"\x01"
    return False


class RabbitNode:
    """One node; `start` brings it up, `close` (or the end of the process) takes it and its data away.

    `settings` are those of RabbitMQ's application `rabbit`, as Erlang terms; times in milliseconds. `quick`
    makes its statistics so (see `advanced_config`), at some cost in CPU while it idles.
    Data outlive `stop` and `kill`; the ports stay the same from the first start on.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        quick: bool = False,
        management: bool = True,
        tls: NodeTls | None = None,
        schedulers: int = 1,
        bin_dir: Path | None = None,
    ) -> None:
        self._bin = bin_dir or find_bin_dir()
        self._epmd_program = find_epmd()
        self._settings = dict(settings or {})
        self._quick = quick
        self._tls = tls
        self._schedulers = schedulers
        self._management = management
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._started = False
        self._owner = os.getpid()
        leftovers.sweep(PREFIX, _end_strays)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.log = self.folder / "node.log"
        self.name = f"bellwire-{secrets.token_hex(4)}@localhost"
        leftovers.mark(self.folder)
        atexit.register(self.close)
        self._configure()

    @property
    def url(self) -> str:
        """The address of the default virtual host."""
        return f"amqp://guest:guest@{_ADDRESS}:{self.port}/"

    @property
    def tls_url(self) -> str:
        """The same over TLS, by the name that certificates are usually made out to."""
        if self._tls is None:
            raise NodeFailed("the node has no TLS listener: it was made without `tls`")
        return f"amqps://guest:guest@localhost:{self.tls_port}/"

    @property
    def management_url(self) -> str:
        """The address of the HTTP API, without user and password (guest, guest)."""
        if not self._management:
            raise NodeFailed("the node was made without the management plugin")
        return f"http://{_ADDRESS}:{self.management_port}/api"

    @property
    def pid(self) -> int:
        """The pid of the Erlang virtual machine."""
        if self._process is None:
            raise NodeFailed("the node is not running")
        return self._process.pid

    def start(self) -> Self:
        """Start and wait until it serves AMQP, which is after its plugins and its data.

        The first start takes other ports where these were taken meanwhile.
        """
        if self._process is not None and self._process.poll() is None:
            raise NodeFailed("the node is running already")
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            epmd = self._start_epmd()
            said_before = self.log.stat().st_size if self.log.exists() else 0
            process = self._popen(self._bin / "rabbitmq-server", env=self._environment())
            self._process = process
            if self._answers(process, deadline):
                self._started = True
                return self
            said = self._said(since=said_before)
            self._end(signal.SIGKILL)
            taken = re.search("eaddrinuse|dist_port_already_used", said) or epmd.poll() is not None
            if not taken or self._started or time.monotonic() > deadline:
                raise NodeFailed(f"RabbitMQ did not start:\n{_why(said)}")
            self._stop_epmd()
            self._configure()

    def stop(self) -> None:
        """Stop in an orderly way and keep the data."""
        if self._management and self._process is not None:
            # Its collector asks processes that have ended before it, and is killed after 5 s of silence.
            with contextlib.suppress(NodeFailed):
                self.evaluate(
                    "gen_event:delete_handler(rabbit_event, rabbit_mgmt_db_handler, stop)", within=5.0
                )
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """SIGKILL and keep the data, as they are."""
        self._end(signal.SIGKILL)

    def wipe(self) -> None:
        """Kill the node and delete all its data; the next `start` is that of a new and empty node."""
        self.kill()
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def close(self) -> None:
        """End everything and remove the folder; safe to call twice."""
        # A fork must not take its parent's node away.
        if os.getpid() != self._owner:
            return
        self._end(signal.SIGKILL)
        self._stop_epmd()
        _end_strays(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def evaluate(self, expression: str, *, within: float = 30.0) -> str:
        """What the running node answers to an Erlang expression, as text; takes about half a second."""
        try:
            done = subprocess.run(  # noqa: S603 (our own command)
                [self._bin / "rabbitmqctl", "--quiet", "eval", expression.rstrip(". \n") + "."],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                cwd=self.folder,
                env=self._environment(),
                timeout=within,
            )
        except subprocess.TimeoutExpired:
            raise NodeFailed(f"rabbitmqctl did not end within {within:g} s: {expression}") from None
        if done.returncode != 0:
            raise NodeFailed(f"rabbitmqctl ended with {done.returncode}: {done.stdout}{done.stderr}".strip())
        return done.stdout.strip()

    def _configure(self) -> None:
        ports = _free_ports(6)
        self.port, self.tls_port, self.management_port, self._epmd_port, self._dist_port, self._ctl_port = (
            ports
        )
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(20))
            cookie.chmod(0o400)
        plugins = "rabbitmq_management" if self._management else ""
        (self.folder / "enabled_plugins").write_text(f"[{plugins}].\n")
        (self.folder / "advanced.config").write_text(
            advanced_config(
                self._settings,
                quick=self._quick,
                address=_ADDRESS,
                port=self.port,
                management_port=self.management_port if self._management else None,
                tls_port=self.tls_port,
                tls=self._tls,
            )
        )

    def _environment(self) -> dict[str, str]:
        machine = f"+B i +S {self._schedulers}:{self._schedulers} +SDcpu 1:1 +SDio 4 +A 1"
        # Busy waiting would take the core that the node's clients need for their answer.
        machine += " +sbwt none +sbwtdcpu none +sbwtdio none"
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": _ADDRESS,
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "data"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            # These files do not exist; those of the machine's own node, in /etc/rabbitmq, must not be read.
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(self.folder / "conf.d"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "generated"),
            # "Input allowed" makes the script become the virtual machine, so that its pid is the one we know.
            "RABBITMQ_ALLOW_INPUT": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-noinput {machine}",
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._ctl_port),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self._ctl_port + 10),
            "RABBITMQ_CTL_ERL_ARGS": f"-kernel inet_dist_use_interface {{{_ADDRESS.replace('.', ',')}}}",
        }

    def _popen(self, *argv: str | Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal is for those who use the node.
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 (our own command)
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=env,
                start_new_session=True,
            )

    def _start_epmd(self) -> subprocess.Popen[bytes]:
        if self._epmd is None or self._epmd.poll() is not None:
            argv = (self._epmd_program, "-port", str(self._epmd_port), "-address", _ADDRESS)
            self._epmd = self._popen(*argv, env=self._environment())
        return self._epmd

    def _stop_epmd(self) -> None:
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            epmd.kill()
            epmd.wait()

    def _answers(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return False
            if speaks_amqp(_ADDRESS, self.port):
                return True
            time.sleep(0.02)
        return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeFailed(f"RabbitMQ did not stop on {number.name}; it was killed") from None

    def _said(self, *, since: int) -> str:
        try:
            return self.log.read_bytes()[since:].decode(errors="replace")
        except OSError:
            return "(no log)"


def _why(said: str) -> str:
    """The part of a failed start's log that tells the reason: what follows its headline, else the tail."""
    plain = re.sub(r"(?m)\x1b\[[0-9;]*m|^\d{4}-\S+ \S+ \[\w+\] <[\d.]+> ?", "", said)
    lines = [line for line in plain.splitlines() if line.strip()]
    if "BOOT FAILED" in lines:
        return "\n".join(lines[lines.index("BOOT FAILED") :][:_TOLD_LINES])
    return "\n".join(lines[-_TOLD_LINES:])


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = random.choice(_PORTS)  # noqa: S311 (no secret)
        if port in found or port in _DEFAULT_PORTS:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_ADDRESS, port))
            found.append(port)
    return found


def _end_strays(folder: Path) -> None:
    """Kill what has the folder for its home: Erlang puts its helpers into process groups of their own."""
    home = b"HOME=" + os.fsencode(folder)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if home in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
