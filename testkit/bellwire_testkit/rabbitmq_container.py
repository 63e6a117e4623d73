"""RabbitMQ in a container, where a Docker engine answers.

The host's ports are bound by us, so that the addresses survive a restart of the container; the data are the
container's own, so wiping is a new container.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bellwire_runtime.broker.node import START_DEADLINE_S, NodeFailed, speaks_amqp
from bellwire_runtime.broker.node_config import advanced_config
from bellwire_testkit.server_binaries import free_port

IMAGE = "rabbitmq:4-management"
_AMQP, _HTTP = 5672, 15672


class ContainerNode:
    """One container; data outlive `stop` and `kill`, not `wipe` and `close`."""

    log: Path | None = None

    def __init__(self, *, settings: Mapping[str, str], quick: bool) -> None:
        self.port, self._http_port = free_port(), free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="bellwire-container-")
        config = Path(self._folder.name) / "advanced.config"
        config.write_text(
            advanced_config(
                settings,
                quick=quick,
                address="0.0.0.0",
                port=_AMQP,
                management_port=_HTTP,
                tls_port=None,
                tls=None,
            )
        )
        # The image's server runs as a user of its own.
        Path(self._folder.name).chmod(0o755)
        config.chmod(0o644)
        self._config = config
        self._made = False
        self._container: Any = self._new()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self._container.get_container_host_ip()}:{self.port}/"

    @property
    def management_url(self) -> str:
        return f"http://{self._container.get_container_host_ip()}:{self._http_port}/api"

    @property
    def pid(self) -> int:
        raise NodeFailed("a broker in a container has no pid of this machine")

    def start(self) -> None:
        if self._made:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._made = True
        host = self._container.get_container_host_ip()
        deadline = time.monotonic() + START_DEADLINE_S
        while not speaks_amqp(host, self.port):
            if time.monotonic() > deadline:
                raise NodeFailed(f"RabbitMQ in a container did not answer within {START_DEADLINE_S:g} s")
            time.sleep(0.1)

    def stop(self) -> None:
        self._container.get_wrapped_container().stop()

    def kill(self) -> None:
        wrapped = self._container.get_wrapped_container()
        wrapped.kill(signal="SIGKILL")
        wrapped.wait()

    def wipe(self) -> None:
        if self._made:
            self._container.stop()
        self._made = False
        self._container = self._new()

    def close(self) -> None:
        if self._made:
            self._container.stop()
            self._made = False
        self._folder.cleanup()

    def evaluate(self, expression: str, /) -> str:
        command = ["rabbitmqctl", "--quiet", "eval", expression.rstrip(". \n") + "."]
        code, said = self._container.get_wrapped_container().exec_run(command)
        text: str = said.decode(errors="replace").strip()
        if code != 0:
            raise NodeFailed(f"rabbitmqctl ended with {code}: {text}")
        return text

    def _new(self) -> Any:
        from testcontainers.core.container import DockerContainer

        return (
            DockerContainer(os.environ.get("BELLWIRE_TEST_RABBITMQ_IMAGE", IMAGE))
            .with_bind_ports(_AMQP, self.port)
            .with_bind_ports(_HTTP, self._http_port)
            .with_volume_mapping(str(self._config), "/etc/rabbitmq/advanced.config", "ro")
        )
