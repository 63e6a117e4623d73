"""The composed system: started from compose.yaml as it stands, asked from outside, ended without a trace."""

import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.request import ProxyHandler, Request, build_opener

from trial.engine import Engine, Failed, compose_command, run
from trial.images import ROOT, SERVERS

PROJECT = "bellwire-try"
PERIOD = "2026-05"
FIRST_ACCOUNT = 5_000_000_001
_ADDRESS = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
_DIRECT = build_opener(ProxyHandler({}))  # every address asked is this machine's own


@dataclass(frozen=True, kw_only=True)
class Work:
    """How many statements were made, and how long it took from the first request."""

    made: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Restart:
    """How a daemon ended on SIGTERM, and what it took to be ready again, by clock and by processor."""

    code: int
    stop_s: float
    ready_s: float
    ready_cpu_s: float


class System:
    """A context manager: `up` on entering, `down` with its volumes on leaving."""

    def __init__(self, engine: Engine, *, deadline_s: float) -> None:
        self._engine = engine
        self._deadline_s = deadline_s
        self._next_account = FIRST_ACCOUNT
        self._containers: dict[str, str] = {}
        self.port = _free_port()
        self._env = {
            **engine.env,
            "POSTGRES_IMAGE": SERVERS["postgres"],
            "RABBITMQ_IMAGE": SERVERS["rabbitmq"],
            "STATEMENTS_PORT": str(self.port),
        }

    def compose(self, *argv: str, check: bool = True) -> str:
        file = str(ROOT / "docker/compose.yaml")
        return run(*compose_command(), "-p", PROJECT, "-f", file, *argv, env=self._env, check=check)

    def __enter__(self) -> Self:
        try:
            self.compose("up", "--detach", "--no-build")
        except Failed:
            self._show_logs()
            self.compose("down", "--volumes", check=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._show_logs()
        self.compose("down", "--volumes", "--remove-orphans", check=False)

    def _show_logs(self) -> None:
        print(self.compose("logs", "--tail", "15", check=False))

    def container(self, service: str) -> str:
        if service not in self._containers:
            self._containers[service] = self.compose("ps", "--quiet", service).split()[-1]
        return self._containers[service]

    def state(self, service: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(
            self._engine.docker("inspect", "--format", "{{json .State}}", self.container(service))
        )
        return state

    def wait_healthy(self, *services: str) -> None:
        for service in services:
            self._until(partial(self.healthy, service), f"{service} is healthy")

    def wait_hearing(self, *services: str) -> None:
        for service in services:
            self._until(partial(self.hears, service), f"{service} is connected to RabbitMQ")

    def healthy(self, service: str) -> bool:
        return bool(self.state(service)["Health"]["Status"] == "healthy")

    def restart(self, service: str) -> Restart:
        """Stop and start a container, and wait for its /ready."""
        container = self.container(service)
        begun = time.monotonic()
        self._engine.docker("stop", container)
        stopped = time.monotonic() - begun
        code = int(self.state(service)["ExitCode"])
        begun = time.monotonic()
        self._engine.docker("start", container)
        # From here and not by `docker exec`, which would take processor time away from what is measured.
        self._until(partial(_ready, f"{self.address(service)}/ready"), f"{service} is ready")
        return Restart(
            code=code,
            stop_s=stopped,
            ready_s=time.monotonic() - begun,
            ready_cpu_s=_cpu_s(self.state(service)["Pid"]),
        )

    def ask_for(self, statements: int) -> Work:
        """Ask for so many new statements, and wait until each is made."""
        begun = time.monotonic()
        accounts = range(self._next_account, self._next_account + statements)
        self._next_account = accounts.stop
        jobs = [
            self._call("/statements", {"account_id": account, "period": PERIOD})["job_id"]
            for account in accounts
        ]
        waiting = set(jobs)

        def all_made() -> bool:
            waiting.difference_update(
                [job for job in waiting if self._call(f"/statements/{job}")["state"] == "succeeded"]
            )
            return not waiting

        self._until(all_made, f"{statements} statements have succeeded")
        return Work(made=len(set(jobs)), seconds=time.monotonic() - begun)

    def verdict(self) -> str:
        """What a stranger says, who looks at all rows and files."""
        owner = self._engine.docker(
            "inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", self.container("migrate")
        )
        address = next(line for line in owner.splitlines() if line.startswith("BELLWIRE_DATABASE_URL="))
        said = self._engine.docker(
            *("exec", "--env", address, self.container("consumer-1")),
            *("python", "-m", "examples.statements.verify", "--jobs"),
            str(self._next_account - FIRST_ACCOUNT),
        )
        return said.splitlines()[-1]

    def claims(self) -> dict[str, int]:
        """How many claims of both consumers came from where, by their metrics."""
        found: dict[str, int] = {}
        for service in ("consumer-1", "consumer-2"):
            for labels, value in self.metric(service, "bellwire_job_claimed_total"):
                source = labels.partition('source="')[2].partition('"')[0]
                found[source] = found.get(source, 0) + int(value)
        return dict(sorted(found.items()))

    def hears(self, service: str) -> bool:
        """Whether it has a connection to RabbitMQ, by its metrics."""
        return any(value == 1 for _, value in self.metric(service, "bellwire_broker_connected"))

    def metric(self, service: str, name: str) -> list[tuple[str, float]]:
        """Every series of a daemon's metric, as labels and value."""
        try:
            with _DIRECT.open(f"{self.address(service)}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return []
        found = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
        return [(labels, float(value)) for labels, value in found]

    def address(self, service: str) -> str:
        """Where the host reaches a daemon: on the network that compose made, though nothing is published."""
        found = self._engine.docker("inspect", "--format", _ADDRESS, self.container(service))
        return f"http://{found}:8080"

    def _call(self, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        request = Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json"},
        )
        with _DIRECT.open(request, timeout=10) as answer:
            said: dict[str, Any] = json.load(answer)
            return said

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._deadline_s
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"not true within {self._deadline_s:.0f} s: {what}")
            time.sleep(0.2)


def _ready(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _cpu_s(pid: int) -> float:
    """Processor time that a process has used, by the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def published(engine: Engine) -> list[str]:
    """Every address at which the host answers for a container."""
    listed = engine.docker("ps", "--format", "{{.Ports}}")
    return [part.strip() for line in listed.splitlines() for part in line.split(",") if "->" in part]


def mounts(folder: Path) -> set[str]:
    """What is mounted below a folder."""
    return {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line}


def networks() -> set[str]:
    """The host's network interfaces."""
    return {each.name for each in Path("/sys/class/net").iterdir()}
