"""Red means what it says: /live only where a restart mends, /ready wherever work does not go on."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from bellwire_runtime.health import Health, HealthServer
from bellwire_schema.errors import ConfigError


@pytest.fixture
def health() -> Health:
    return Health(component="relay", blocked_after=0.05)


@pytest.fixture
def port(health: Health) -> Iterator[int]:
    registry = CollectorRegistry()
    Gauge("bellwire_example", "A gauge.", registry=registry).set(3)
    server = HealthServer(host="127.0.0.1", port=0, health=health, registry=registry)
    yield server.port
    server.close()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_all_well(port: int) -> None:
    assert get(port, "/live") == (200, '{"component": "relay", "status": "ok", "reasons": {}}\n')
    assert get(port, "/ready")[0] == 200
    assert "bellwire_example 3.0" in get(port, "/metrics")[1]
    assert get(port, "/else")[0] == 404


def test_what_is_not_ready_may_be_alive(port: int, health: Health) -> None:
    health.ready_when("database", lambda: "no database connection for 7 s")
    assert get(port, "/live")[0] == 200
    status, body = get(port, "/ready")
    assert status == 503
    assert json.loads(body)["reasons"] == {"database": "no database connection for 7 s"}


def test_what_is_not_alive_is_not_ready(port: int, health: Health) -> None:
    health.live_when("loop.admit", lambda: "failing for 40 s: TypeError: oops")
    for path in ("/live", "/ready"):
        status, body = get(port, path)
        assert status == 503
        assert "TypeError" in json.loads(body)["reasons"]["loop.admit"]


def test_a_blocked_event_loop_is_told_from_outside_it(
    port: int, health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    health.tick()
    ticked = health._ticked
    assert ticked is not None
    assert get(port, "/live")[0] == 200
    monkeypatch.setattr(health, "_ticked", ticked - 60)
    status, body = get(port, "/live")
    assert status == 503
    assert "blocked for 60 s" in json.loads(body)["reasons"]["event_loop"]


def test_a_check_that_fails_is_red(port: int, health: Health) -> None:
    def broken() -> str | None:
        raise KeyError("postgresql://u:secret@h/d")

    health.ready_when("odd", broken)
    status, body = get(port, "/ready")
    assert (status, json.loads(body)["reasons"]["odd"]) == (503, "the check itself failed: KeyError")


def test_a_port_in_use_is_refused_in_one_line(health: Health) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="BELLWIRE_HEALTH_PORT: cannot listen on"):
            HealthServer(
                host="127.0.0.1", port=taken.getsockname()[1], health=health, registry=CollectorRegistry()
            )
