"""The images' files against each other and the code: what a slip breaks is found without an engine.

That the images build and the system runs is `docker/try`'s to show.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bellwire_console.cli.commands import application
from bellwire_consumer.settings import ConsumerSettings
from bellwire_relay.settings import RelaySettings

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/how-to/run-in-containers.md").read_text(encoding="utf-8")
SHARES = ("build", "image", "statements")
# Read by the command itself, not by a daemon's settings.
OF_THE_COMMAND = {"BELLWIRE_APP"}


def stages() -> dict[str, str]:
    """Each stage of the Dockerfile with its instructions, those of the stages below it included."""
    found: dict[str, str] = {}
    for base, name, body in re.findall(
        r"^FROM (\S+) AS (\w+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    ):
        found[name] = found.get(base, "") + re.sub(r"^#.*\n", "", body, flags=re.MULTILINE)
    return found


STAGES = stages()


def locked(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Name to version and hashes."""
    entries = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8").strip())
    return {
        entry.partition("==")[0]: (
            re.split(r"[ \\]", entry.partition("==")[2], maxsplit=1)[0],
            frozenset(re.findall(r"--hash=(\S+)", entry)),
        )
        for entry in entries
    }


@pytest.mark.parametrize("share", SHARES)
def test_an_image_is_locked_to_what_is_tested(share: str) -> None:
    whole = locked(ROOT / "requirements.lock")
    part = locked(DOCKER / "lock" / f"{share}.txt")
    assert part
    assert {name: pin for name, pin in part.items() if whole.get(name) != pin} == {}
    assert all(hashes for _, hashes in part.values())


def test_the_daemons_image_has_what_their_extras_ask_for() -> None:
    """As scripts/lock would find it: an extra that grew without a new lock fails only in the built image."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*extras["dependencies"]]
    for extra in ("cli", "daemon", "relay", "consumer"):
        asked += extras["optional-dependencies"][extra]
    names = {re.split(r"[\[><= ]", line, maxsplit=1)[0].lower() for line in asked} - {"bellwire"}
    assert names - locked(DOCKER / "lock/image.txt").keys() == set()
    assert "greenlet" in locked(DOCKER / "lock/image.txt")  # of sqlalchemy[asyncio]


@pytest.mark.parametrize("target", ["cli", "relay", "consumer", "statements"])
def test_a_target_is_unprivileged_and_takes_signals_itself(target: str) -> None:
    body = STAGES[target]
    assert re.findall(r"^USER (\S+)", body, re.MULTILINE)[-1] in {"${UID}:${UID}", "bellwire"}
    assert re.search(r"^ARG UID=[1-9][0-9]{3,}$", body, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in body
    entry = re.findall(r"^ENTRYPOINT (.*)$", body, re.MULTILINE)[-1]
    assert entry.startswith('["bellwire"'), "a shell in between would keep the signals"


@pytest.mark.parametrize("target", ["relay", "consumer"])
def test_a_daemon_checks_whether_it_is_alive(target: str) -> None:
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", STAGES[target], re.MULTILINE)
    assert check == '["bellwire-health", "/live"]'
    assert target in application.commands  # type: ignore[attr-defined]  # a click group


def test_what_is_copied_reaches_the_builder() -> None:
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in shlex.split(line)[:-1]:
            assert (ROOT / source).exists(), source
            assert any(source == name or source.startswith(f"{name}/") for name in allowed), source
    assert {name for name in allowed if not (ROOT / name).exists()} == set()


def test_every_package_of_the_wheel_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [name for name in packages if f"COPY {name.partition('/')[0]} " not in DOCKERFILE] == []


def test_every_variable_is_a_setting() -> None:
    settings = {
        f"BELLWIRE_{name.upper()}" for cls in (RelaySettings, ConsumerSettings) for name in cls.model_fields
    }
    used = set(re.findall(r"\bBELLWIRE_[A-Z_]+\b", DOCKERFILE + COMPOSE + PAGE))
    assert used > {"BELLWIRE_DATABASE_URL", "BELLWIRE_AMQP_URL", "BELLWIRE_HEALTH_PORT"}
    assert used - settings - OF_THE_COMMAND == set()


def test_compose_builds_targets_that_exist_and_publishes_on_the_loopback_only() -> None:
    assert set(re.findall(r"target: (\w+)", COMPOSE)) <= set(STAGES)
    published = re.findall(r"^    ports: \[(.*)\]$", COMPOSE, re.MULTILINE)
    assert published
    assert all(each.startswith('"127.0.0.1:') for each in published)


def test_every_password_has_a_variable_and_the_page_names_it() -> None:
    variables = set(re.findall(r"\$\{([A-Z]+_PASSWORD):-", COMPOSE))
    assert {name for name in variables if f"`{name}`" not in PAGE} == set()
    assert re.findall(r"://\w+:(?!\$\{)[^@\s]+@", COMPOSE) == []
    asked = set(re.findall(r"^\\getenv \w+ (\w+)$", (DOCKER / "logins.sql").read_text("utf-8"), re.MULTILINE))
    assert asked <= variables


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/live" else 503)
        self.end_headers()
        self.wfile.write(b"why\n")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def health(target: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-ISB", DOCKER / "health.py", target],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def test_the_check_follows_the_daemons_own_settings(port: int) -> None:
    env = {"BELLWIRE_HEALTH_PORT": str(port), "BELLWIRE_HEALTH_HOST": "0.0.0.0"}
    assert health("/live", **env) == (0, "200 why")
    assert health("/ready", **env) == (1, "503 why")
    assert health(f"http://127.0.0.1:{port}/live") == (0, "200 why")


def test_nobody_there_is_red_and_says_where(port: int) -> None:
    code, said = health("/live")
    assert code == 1
    assert said.startswith("http://127.0.0.1:0/live: ")
