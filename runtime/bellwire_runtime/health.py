"""Health is told by a thread of its own, so that a blocked event loop is reported, not merely unreachable.

/live is red for what only a restart mends: a blocked loop, a bug that does not stop. An outage of the
database is not of that sort (restarting everybody makes it worse): it turns /ready red, with the reason in
the body.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from bellwire_runtime.lifecycle import LoopRunner
from bellwire_schema.errors import ConfigError

__all__ = ["Check", "Health", "HealthServer"]

Check = Callable[[], str | None]
"""Answers why it is red, in a sentence; None: well. Called from the health thread: reads, never waits."""


class Health:
    """What is asked, by name. `keep_ticking` runs on the event loop that is watched."""

    def __init__(self, *, component: str, blocked_after: float = 10.0) -> None:
        self.component = component
        self._blocked_after = blocked_after
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}
        self._ticked: float | None = None
        self.live_when("event_loop", self._loop_blocked)

    def live_when(self, name: str, check: Check) -> None:
        """Add a check whose red state only a restart mends."""
        self._live[name] = check

    def ready_when(self, name: str, check: Check) -> None:
        """Add a check whose red state passes by itself, or by somebody's hand elsewhere."""
        self._ready[name] = check

    def report(self, runner: LoopRunner) -> None:
        """Red while this loop fails, or does not come round."""
        self.live_when(f"loop.{runner.name}", lambda: runner.broken)
        self.ready_when(f"loop.{runner.name}", lambda: runner.late)

    def tick(self) -> None:
        """The event loop is alive."""
        self._ticked = time.monotonic()

    async def keep_ticking(self) -> None:
        """Once a second, until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(1.0)

    def live(self) -> dict[str, str]:
        """What is red, by name; empty: all well."""
        return _reds(self._live)

    def ready(self) -> dict[str, str]:
        """What is red, by name; what is not live is not ready either."""
        return {**_reds(self._live), **_reds(self._ready)}

    def _loop_blocked(self) -> str | None:
        if self._ticked is None:
            return None
        silent = time.monotonic() - self._ticked
        return f"the event loop has been blocked for {silent:.0f} s" if silent > self._blocked_after else None


def _reds(checks: dict[str, Check]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, check in list(checks.items()):
        try:
            reason = check()
        except Exception as error:  # noqa: BLE001 (a check that fails is red, whatever it failed with)
            reason = f"the check itself failed: {type(error).__name__}"
        if reason is not None:
            found[name] = reason
    return found


class HealthServer:
    """/live, /ready and /metrics on one port; port 0 here means any free one (a test's choice)."""

    def __init__(self, *, host: str, port: int, health: Health, registry: CollectorRegistry) -> None:
        try:
            self._server = _Server((host, port), health, registry)
        except OSError as error:
            raise ConfigError(
                f"BELLWIRE_HEALTH_PORT: cannot listen on {host}:{port}: {error.strerror or error}"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.2},
            name="bellwire-health",
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop answering; returns within a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=1.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A scraper that stays connected must not keep the process.
    block_on_close = False

    def __init__(self, address: tuple[str, int], health: Health, registry: CollectorRegistry) -> None:
        self.health = health
        self.registry = registry
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "bellwire"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/live":
                self._verdict(self.server.health.live())
            case "/ready":
                self._verdict(self.server.health.ready())
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encode(self.server.registry))
            case _:
                self._answer(404, "text/plain; charset=utf-8", b"/live /ready /metrics\n")

    def _verdict(self, reasons: dict[str, str]) -> None:
        body = {
            "component": self.server.health.component,
            "status": "red" if reasons else "ok",
            "reasons": reasons,
        }
        self._answer(503 if reasons else 200, "application/json", json.dumps(body).encode() + b"\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Nothing: a probe each second is no event."""
