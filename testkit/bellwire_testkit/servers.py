"""A real PostgreSQL for tests, the demo and benchmarks, wherever one can be had.

In this order: the address in `BELLWIRE_TEST_DATABASE_URL`; a container, where a Docker engine answers;
a private server from local binaries. Real, because what is tested is what PostgreSQL does with two
sessions at once, and no stand-in does that. Only a server we brought up is ever stopped or killed.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self
from urllib.parse import quote, urlsplit, urlunsplit

from bellwire_testkit import leftovers
from bellwire_testkit.server_binaries import BinariesServer, ServerFailed, ServerMissing, StopMode
from bellwire_testkit.server_container import ContainerServer, docker_answers

__all__ = ["PostgresServer", "ServerFailed", "ServerMissing", "Source", "StopMode"]

Source = Literal["any", "address", "container", "binaries"]
ADDRESS_VARIABLE = "BELLWIRE_TEST_DATABASE_URL"


class _Server(Protocol):
    source: str
    controllable: bool

    @property
    def log(self) -> Path | None: ...
    @property
    def url(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def stop(self, mode: StopMode = "fast", /) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class _AddressServer:
    """A server somebody else runs: used, never stopped."""

    source = "address"
    controllable = False
    log: Path | None = None

    def __init__(self, url: str) -> None:
        # SQLAlchemy's form names the driver; psycopg's must not.
        scheme, _, rest = url.partition("://")
        self.url = f"{scheme.partition('+')[0]}://{rest}"

    @property
    def pid(self) -> int:
        raise ServerFailed(self._not_ours("has no known pid"))

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def stop(self, _mode: StopMode = "fast", /) -> None:
        raise ServerFailed(self._not_ours("is not ours to stop"))

    def kill(self) -> None:
        raise ServerFailed(self._not_ours("is not ours to kill"))

    @staticmethod
    def _not_ours(what: str) -> str:
        return f"the server at {ADDRESS_VARIABLE} {what}"


class PostgresServer:
    """One server; `start` brings it up, `close` (or the end of the process) takes it and its data away.

    `durable=True` turns fsync and full_page_writes on: for benchmarks and for faults below the process.
    `source` other than "any" insists; tests that stop or kill their server ask for "binaries" or look at
    `controllable` first. Raises `ServerMissing` with one sentence that says what to install.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
        source: Source = "any",
        bin_dir: Path | None = None,
    ) -> None:
        self._durable = durable
        self._settings = settings or {}
        self._wanted: Source = source
        self._bin_dir = bin_dir
        self._server: _Server | None = None
        self._owner = os.getpid()

    def start(self) -> Self:
        if self._server is not None:
            self._server.start()
            return self
        self._server = server = self._choose()
        atexit.register(self.close)
        try:
            server.start()
        except Exception:
            # An engine that answers may still have no image and no network; binaries need neither.
            if server.source != "container" or self._wanted != "any":
                raise
            server.close()
            self._server = self._binaries()
            self._server.start()
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop and keep the data. "immediate" is a crash as the server sees it: the next start recovers."""
        self._running.stop(mode)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self._running.start()

    def kill(self) -> None:
        """SIGKILL the postmaster and keep the data; `start` brings it back on the same address."""
        self._running.kill()

    def close(self) -> None:
        """Stop the server and remove its data; safe to call twice."""
        # A fork must not take its parent's server away.
        if self._server is not None and os.getpid() == self._owner:
            self._server.close()
            self._server = None
            atexit.unregister(self.close)

    @property
    def url(self) -> str:
        """The address of the database that is always there, as a superuser."""
        return self._running.url

    @property
    def source(self) -> str:
        return self._running.source

    @property
    def controllable(self) -> bool:
        """True where `stop`, `restart` and `kill` may be used."""
        return self._running.controllable

    @property
    def pid(self) -> int:
        """The postmaster's pid on this machine."""
        return self._running.pid

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 5432

    @property
    def log(self) -> str:
        """What the server has logged, '' where it is not ours to read."""
        path = self._running.log
        return path.read_text(errors="replace") if path is not None and path.exists() else ""

    def dsn(self, dbname: str, *, user: str | None = None, port: int | None = None) -> str:
        """The address of a database; as another user (without a password), or through a proxy's port."""
        parts = urlsplit(self.url)
        netloc = parts.netloc
        if user is not None:
            netloc = f"{quote(user, safe='')}@{netloc.rpartition('@')[2]}"
        if port is not None:
            who, at, _ = netloc.rpartition("@")
            netloc = f"{who}{at}127.0.0.1:{port}"
        return urlunsplit((parts.scheme, netloc, f"/{quote(dbname, safe='')}", parts.query, ""))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _running(self) -> _Server:
        if self._server is None:
            raise ServerFailed("the server was not started")
        return self._server

    def _choose(self) -> _Server:
        address = os.environ.get(ADDRESS_VARIABLE)
        if self._wanted == "address" or (self._wanted == "any" and address):
            if not address:
                raise ServerMissing(f"{ADDRESS_VARIABLE} is not set")
            return _AddressServer(address)
        if self._wanted == "container" or (
            self._wanted == "any" and self._bin_dir is None and docker_answers()
        ):
            return ContainerServer(durable=self._durable, settings=self._settings)
        return self._binaries()

    def _binaries(self) -> BinariesServer:
        leftovers.sweep()
        return BinariesServer(bin_dir=self._bin_dir, durable=self._durable, settings=self._settings)
