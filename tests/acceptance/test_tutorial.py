"""The tutorial works as written: commands are run in order, outputs compared, code found in the files.

In an expected output `…` stands for any text in a line, and alone for any lines. Blocks marked `sh` are the
set-up of a person's own machine and are not run.
"""

import os
import re
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from bellwire_testkit.databases import Template
from bellwire_testkit.processes import clean_environment
from bellwire_testkit.servers import PostgresServer

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "statements.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [found[2] for found in BLOCK.finditer(TUTORIAL.read_text()) if found[1] == language]


def steps() -> Iterator[tuple[str, str]]:
    """Each command of the tutorial, with the output it is said to have."""
    for block in blocks("console"):
        command, expected = "", ""
        for line in block.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, expected
                command, expected = line.removeprefix("$ "), ""
            else:
                expected += line + "\n"
        yield command, expected


def pattern(expected: str) -> re.Pattern[str]:
    lines = []
    for line in expected.splitlines():
        if line == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            lines.append(".*".join(map(re.escape, line.split("…"))) + r"[ ]*\n")
    return re.compile("".join(lines))


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.splitlines()[0])
def test_quoted_code_is_the_code(block: str) -> None:
    name, code = block.split("\n", 1)
    assert name.startswith("# examples/statements/")
    assert code in (ROOT / name.removeprefix("# ")).read_text()


class Shell:
    """One bash that keeps its variables and its background jobs between commands."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: str, *, within: float = 60) -> tuple[int, str]:
        """Run a command; answers its exit code and what it printed."""
        assert self._bash.stdin is not None
        end = f"end-{secrets.token_hex(8)}"
        self._bash.stdin.write(f"{command}\nprintf '%s %s\\n' {end} $?\n".encode())
        self._bash.stdin.flush()
        output = self._read_until(end.encode(), within)
        text, _, code = output.decode().rpartition(end)
        return int(code), text

    def _read_until(self, end: bytes, within: float) -> bytes:
        assert self._bash.stdout is not None
        output = b""
        deadline = time.monotonic() + within
        with selectors.DefaultSelector() as selector:
            selector.register(self._bash.stdout, selectors.EVENT_READ)
            while not re.search(end + rb" \d+\n", output):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise AssertionError(f"no end within {within:g} s; it printed:\n{output.decode()}")
                part = os.read(self._bash.stdout.fileno(), 65_536)
                if not part:
                    raise AssertionError(f"the shell has ended; it printed:\n{output.decode()}")
                output += part
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._bash.pid, signal.SIGKILL)  # its background jobs are in its group
        self._bash.communicate()


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    """A database with nothing in it, as `createdb` makes it."""
    template = Template(postgres, lambda url: None)
    made = template.clone()
    yield made.url
    made.drop()
    template.drop()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial asks with curl")
def test_every_command_does_what_the_tutorial_says(empty_database: str, tmp_path: Path) -> None:
    port, metrics = free_port(), free_port()
    env = clean_environment({"BELLWIRE_DATABASE_URL": empty_database, "PYTHONPATH": str(ROOT)})
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    with Shell(tmp_path, env) as shell:
        for command, expected in steps():
            code, output = shell.run(command.replace("8001", port).replace("8002", metrics))
            logs = "\n".join(
                f"== {log.name}\n{log.read_text()[-1500:]}" for log in tmp_path.glob("out/*.log")
            )
            assert code == 0, f"$ {command}\n{output}\n{logs}"
            output = "".join(
                line
                for line in output.splitlines(keepends=True)
                if not re.search(r"bash: line \d+: .* Killed ", line)
            )
            assert pattern(expected).fullmatch(output), (
                f"$ {command}\n{output}\nexpected:\n{expected}\n{logs}"
            )
        code, output = shell.run("wait; jobs -r")
        assert (code, output) == (0, ""), "all background jobs must have ended"
