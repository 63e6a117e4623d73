"""PostgreSQL in a container, where a Docker engine answers.

The engine is asked over its socket with a deadline under a second: a machine without Docker must not
wait for it. The host's port is bound by us, so that the address survives a restart of the container.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg

from bellwire_testkit.server_binaries import START_DEADLINE_S, ServerFailed, StopMode, free_port

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "postgres:16-alpine"


def docker_answers(deadline_s: float = 0.7) -> bool:
    """True where `testcontainers` is installed and a Docker engine answers within the deadline."""
    if importlib.util.find_spec("testcontainers") is None:
        return False
    host = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    try:
        if host.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as engine:
                engine.settimeout(deadline_s)
                engine.connect(host.path)
                engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                return b" 200 " in engine.recv(64)
        with socket.create_connection((host.hostname or "", host.port or 2375), timeout=deadline_s):
            return True
    except OSError:
        return False


class ContainerServer:
    """One container; data outlive `stop` and `kill`, not `close`."""

    source = "container"
    controllable = True
    log: Path | None = None

    def __init__(self, *, durable: bool, settings: Mapping[str, str]) -> None:
        from testcontainers.core.container import DockerContainer

        self.port = free_port()
        on_off = "on" if durable else "off"
        conf = {
            "shared_preload_libraries": "pg_stat_statements",
            "max_connections": "200",
            "fsync": on_off,
            "full_page_writes": on_off,
            "timezone": "UTC",
            **settings,
        }
        command = "postgres " + " ".join(f"-c {name}={value}" for name, value in conf.items())
        self._made = False
        self._container: Any = (
            DockerContainer(os.environ.get("BELLWIRE_TEST_POSTGRES_IMAGE", IMAGE))
            .with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
            .with_bind_ports(5432, self.port)
            .with_command(command)
        )

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self._container.get_container_host_ip()}:{self.port}/postgres"

    @property
    def pid(self) -> int:
        raise ServerFailed("a server in a container has no pid of this machine")

    def start(self) -> None:
        if self._made:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._made = True
        deadline = time.monotonic() + START_DEADLINE_S
        # The image's first start is a server for its set-up, which listens on no TCP port.
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise ServerFailed(f"PostgreSQL in a container did not answer: {error}") from error
                time.sleep(0.1)
            else:
                return

    def stop(self, mode: StopMode = "fast") -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill(signal="SIGQUIT" if mode == "immediate" else "SIGINT")
        wrapped.wait()

    def kill(self) -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill(signal="SIGKILL")
        wrapped.wait()

    def close(self) -> None:
        if self._made:
            self._container.stop()
            self._made = False
