"""A real RabbitMQ for tests, the demo and benchmarks, wherever one can be had.

In this order: the address in `BELLWIRE_TEST_AMQP_URL`; a container, where a Docker engine answers; a private
node from local binaries. Real, because what is tested is what RabbitMQ does to its clients when it fails, and
no stand-in does that. Only a broker we brought up is ever stopped, killed, wiped or alarmed.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from bellwire_runtime.broker.node import NodeFailed, NodeMissing, NodeTls, RabbitNode, speaks_amqp
from bellwire_testkit.rabbitmq_admin import Admin, AdminRefused, QueueState
from bellwire_testkit.rabbitmq_container import ContainerNode
from bellwire_testkit.server_container import docker_answers
from bellwire_testkit.waiting import wait_until

__all__ = [
    "Admin",
    "AdminRefused",
    "NodeFailed",
    "NodeMissing",
    "NodeTls",
    "QueueState",
    "RabbitServer",
    "Source",
]

Source = Literal["any", "address", "container", "binaries"]
ADDRESS_VARIABLE = "BELLWIRE_TEST_AMQP_URL"
MANAGEMENT_VARIABLE = "BELLWIRE_TEST_AMQP_MANAGEMENT_URL"
BIN_VARIABLE = "BELLWIRE_TEST_RABBITMQ_BIN"


class _Node(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def management_url(self) -> str: ...
    @property
    def log(self) -> Path | None: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def wipe(self) -> None: ...
    def close(self) -> None: ...
    def evaluate(self, expression: str, /) -> str: ...


class _AddressNode:
    """A broker somebody else runs: used, never stopped. Its HTTP API is looked for on the usual port."""

    log: Path | None = None

    def __init__(self, url: str) -> None:
        self.url = url
        host = urlsplit(url).hostname or "127.0.0.1"
        self.management_url = os.environ.get(MANAGEMENT_VARIABLE) or f"http://{host}:15672/api"

    @property
    def pid(self) -> int:
        raise self._not_ours("has no known pid")

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def stop(self) -> None:
        raise self._not_ours("is not ours to stop")

    def kill(self) -> None:
        raise self._not_ours("is not ours to kill")

    def wipe(self) -> None:
        raise self._not_ours("is not ours to wipe")

    def evaluate(self, _expression: str, /) -> str:
        raise self._not_ours("is not ours to command")

    @staticmethod
    def _not_ours(what: str) -> NodeFailed:
        return NodeFailed(f"the broker at {ADDRESS_VARIABLE} {what}")


class RabbitServer:
    """One broker; `start` brings it up, `close` (or the end of the process) takes it and its data away.

    `settings` are those of RabbitMQ's application `rabbit`, as Erlang terms. `as_shipped=True`, for
    benchmarks, leaves the intervals of its statistics as they are. `source` other than "any" insists; tests
    that stop, kill, wipe or alarm ask for "binaries" or look at `controllable`. Raises `NodeMissing` with
    one sentence that says what to install.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        as_shipped: bool = False,
        tls: NodeTls | None = None,
        schedulers: int = 1,
        source: Source = "any",
        bin_dir: Path | None = None,
    ) -> None:
        self._settings = dict(settings or {})
        self._quick = not as_shipped
        self._tls = tls
        self._schedulers = schedulers
        # A container sees no certificates of ours, so a broker with TLS is always one from binaries.
        self._wanted: Source = "binaries" if tls is not None else source
        given = os.environ.get(BIN_VARIABLE)
        self._bin_dir = bin_dir or (Path(given) if given else None)
        self._node: _Node | None = None
        self._source = ""
        self._own_timeout = False
        self._owner = os.getpid()

    def start(self) -> Self:
        if self._node is not None:
            self._node.start()
            return self
        self._node = node = self._choose()
        atexit.register(self.close)
        try:
            node.start()
        except Exception:
            # An engine that answers may still have no image and no network; binaries need neither.
            if self._source != "container" or self._wanted != "any":
                raise
            node.close()
            self._node = self._binaries()
            self._node.start()
        return self

    def stop(self) -> None:
        """Stop in an orderly way (clients are told) and keep the data."""
        self._running.stop()

    def restart(self) -> None:
        self.stop()
        self._running.start()

    def kill(self) -> None:
        """SIGKILL and keep the data, as they are; `start` brings it back on the same address."""
        self._running.kill()

    def wipe(self) -> None:
        """Kill and delete all data; `start` makes it a new, empty broker on the same address."""
        self._running.wipe()

    def close(self) -> None:
        """Stop the broker and remove its data; safe to call twice."""
        # A fork must not take its parent's broker away.
        if self._node is not None and os.getpid() == self._owner:
            self._node.close()
            self._node = None
            atexit.unregister(self.close)

    @property
    def url(self) -> str:
        """The address, with user and password, of the default virtual host."""
        return self._running.url

    @property
    def tls_url(self) -> str:
        """The same over TLS, of a broker made with `tls`."""
        node = self._running
        if not isinstance(node, RabbitNode):
            raise NodeFailed("only a broker from binaries has a TLS listener")
        return node.tls_url

    @property
    def source(self) -> str:
        return self._source

    @property
    def controllable(self) -> bool:
        """True where `stop`, `kill`, `wipe`, `evaluate` and the alarms may be used."""
        return self._source in {"container", "binaries"}

    @property
    def pid(self) -> int:
        """The pid of the broker's process on this machine."""
        return self._running.pid

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 5672

    @property
    def log(self) -> str:
        """What the broker has logged, '' where it is not ours to read."""
        path = self._running.log
        return path.read_text(errors="replace") if path is not None and path.exists() else ""

    def vhost_url(self, name: str, *, port: int | None = None) -> str:
        """The address of a virtual host, directly or through a proxy's port."""
        parts = urlsplit(self.url)
        netloc = parts.netloc
        if port is not None:
            who, at, _ = netloc.rpartition("@")
            netloc = f"{who}{at}127.0.0.1:{port}"
        return urlunsplit((parts.scheme, netloc, f"/{quote(name, safe='')}", parts.query, ""))

    @property
    def admin(self) -> Admin:
        """What may be asked of the default virtual host; `admin.at(name)` for another."""
        node = self._running
        parts = urlsplit(node.url)
        return Admin(
            node.management_url,
            user=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
        )

    def evaluate(self, expression: str) -> str:
        """What the node answers to an Erlang expression."""
        return self._running.evaluate(expression)

    def alarm(self, on: bool = True) -> None:
        """The memory alarm: with it on, the broker reads nothing from connections that publish."""
        watermark = "0.0" if on else self._settings.get("vm_memory_high_watermark", "0.4")
        self.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({watermark})")
        self._wait_for_alarm("memory", on)

    def disk_alarm(self, on: bool = True) -> None:
        """The alarm for lack of disk space, with the same effect."""
        limit = "1000000000000000" if on else self._settings.get("disk_free_limit", "50000000")
        self.evaluate(f"rabbit_disk_monitor:set_disk_free_limit({limit})")
        self._wait_for_alarm("disk space", on)

    def set_consumer_timeout(self, milliseconds: int) -> None:
        """How long a delivery may stay unacknowledged, on channels opened from now on."""
        self.evaluate(f"application:set_env(rabbit, consumer_timeout, {milliseconds})")
        self._own_timeout = True

    def close_channels(self, vhost: str) -> int:
        """Let the broker close each channel that is open on the virtual host; answers how many.

        Their connections stay. The error is 406, PRECONDITION_FAILED, as after a late acknowledgement.
        """
        # As if the client had acknowledged what it never got.
        closing = "rabbit_channel:do(P, {'basic.ack', 99999999, false})"
        those = f'P <- rabbit_channel:list(), rabbit_channel:info(P, [vhost]) =:= [{{vhost, <<"{vhost}">>}}]'
        return int(self.evaluate(f"length([{closing} || {those}])"))

    def restore(self) -> None:
        """Bring a broker of ours back to where it started: up, no alarm, only the default virtual host.

        For tests that share one node to do with as they like: a new one takes seconds, this far less.
        """
        if not speaks_amqp(self.host, self.port):
            self._running.kill()
            self._running.start()
        if "memory" in (alarms := self.admin.alarms()):
            self.alarm(False)
        if "disk space" in alarms:
            self.disk_alarm(False)
        if self._own_timeout:
            default = self._settings.get("consumer_timeout", "1800000")
            self.evaluate(f"application:set_env(rabbit, consumer_timeout, {default})")
            self._own_timeout = False
        for name in self.admin.vhosts():
            if name != "/":
                self.admin.delete_vhost(name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _running(self) -> _Node:
        if self._node is None:
            raise NodeFailed("the broker was not started")
        return self._node

    def _wait_for_alarm(self, kind: str, on: bool) -> None:
        wait_until(
            lambda: (kind in self.admin.alarms()) is on,
            deadline=15.0,
            describe=f"the {kind} alarm to be {'on' if on else 'off'}",
        )

    def _choose(self) -> _Node:
        address = os.environ.get(ADDRESS_VARIABLE)
        if self._wanted == "address" or (self._wanted == "any" and address):
            if not address:
                raise NodeMissing(f"{ADDRESS_VARIABLE} is not set")
            self._source = "address"
            return _AddressNode(address)
        if self._wanted == "container" or (
            self._wanted == "any" and self._bin_dir is None and docker_answers()
        ):
            self._source = "container"
            return ContainerNode(settings=self._settings, quick=self._quick)
        return self._binaries()

    def _binaries(self) -> RabbitNode:
        self._source = "binaries"
        return RabbitNode(
            settings=self._settings,
            quick=self._quick,
            tls=self._tls,
            schedulers=self._schedulers,
            bin_dir=self._bin_dir,
        )
