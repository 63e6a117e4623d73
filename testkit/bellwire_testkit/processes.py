"""Real processes under test: started, watched, stopped, killed, and gone when the test ends.

What a crash does is shown with a process that crashes, not with a mock of one. Each runs in a session of
its own, so that its children end with it, and writes to a file, so that it can never block on a full pipe.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bellwire_testkit.waiting import wait_until

T = TypeVar("T")

_OWN_VARIABLES = ("BELLWIRE_", "PG")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of ours or libpq's, and with `extra`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_VARIABLES)}
    # Python buffers a file's lines; a killed process would take its last words along.
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


class Process:
    """One started command; `argv[0]` may be "python" (this interpreter) or "bellwire" (its command).

    `output` holds stdout and stderr as they came. `close` ends the process and its children by SIGKILL.
    """

    def __init__(
        self,
        *argv: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        name: str | None = None,
    ) -> None:
        self.argv = [*_program(argv[0]), *argv[1:]]
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("process-*.log")))
        self.log = folder / f"process-{number}-{name or Path(argv[0]).name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(env),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs; minus the signal's number where a signal ended it."""
        return self._process.poll()

    def wait_for_output(self, pattern: str, *, deadline: float = 20.0) -> re.Match[str]:
        """Wait until `pattern` (a regular expression) is in the output; fails at once if the process ends."""
        return self.wait_for(
            lambda: re.search(pattern, self.output), deadline=deadline, describe=f"{pattern!r} in its output"
        )

    def wait_for(self, condition: Callable[[], T | None], *, deadline: float = 20.0, describe: str) -> T:
        """Wait for a condition that only makes sense while the process lives."""

        def look() -> T | None:
            ended = self.code is not None  # looked at first: its last act may make the condition true
            answer = condition()
            if ended and not answer:
                raise AssertionError(f"ended with {self.code} before {describe}:\n{self.tail()}")
            return answer

        return wait_until(look, deadline=deadline, describe=lambda: f"{describe}; it wrote:\n{self.tail()}")

    def wait_exit(self, *, within: float = 20.0) -> int:
        """Wait for the end and answer the exit code; a process that outstays its time is an error."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within:g} s; it wrote:\n{self.tail()}") from None

    def kill(self) -> None:
        """SIGKILL the process, not its children, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def stop(self) -> None:
        """SIGSTOP: alive, holding its connections, doing nothing, as after a long garbage collection."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        self._signal(signal.SIGCONT)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.output.splitlines()[-lines:])

    def close(self) -> None:
        """End the process and every child still in its session; safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        # Popen looks first whether the process was reaped: its pid may be somebody else's by now.
        if self.code is not None:
            raise AssertionError(f"{number.name} for a process that ended with {self.code}:\n{self.tail()}")
        self._process.send_signal(number)


def _program(name: str) -> list[str]:
    if name == "python":
        return [sys.executable]
    if name == "bellwire":
        return [str(Path(sys.executable).with_name("bellwire"))]
    return [name]


class Processes:
    """Starts processes and ends them all: the fixture's form."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._env = dict(env or {})
        self._started: list[Process] = []

    def start(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        name: str | None = None,
    ) -> Process:
        process = Process(*argv, folder=self._folder, env={**self._env, **(env or {})}, cwd=cwd, name=name)
        self._started.append(process)
        return process

    def close(self) -> None:
        while self._started:
            self._started.pop().close()
