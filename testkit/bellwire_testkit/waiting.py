"""Waiting for a condition, with a deadline and a name for what was waited for; never for a duration.

A test that sleeps and hopes is slow when it passes and silent when it fails. These look often, end at once
when the condition holds, and say on timeout what did not come true.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from bellwire_schema import faultpoints

T = TypeVar("T")
Description = str | Callable[[], str]

_PAUSE_S = 0.01


def _timed_out(deadline: float, describe: Description) -> TimeoutError:
    text = describe if isinstance(describe, str) else describe()
    return TimeoutError(f"waited {deadline:g} s in vain for {text}")


def wait_until(condition: Callable[[], T | None], *, deadline: float = 10.0, describe: Description) -> T:
    """Call `condition` until its answer is true, and return that answer.

    Raises `TimeoutError` after `deadline` seconds; `describe` (a text, or a function for one that shows the
    last state) completes "waited in vain for …". An exception of the condition is not swallowed.
    """
    end = time.monotonic() + deadline
    while True:
        late = time.monotonic() >= end  # looked at first, so that the condition has the last word
        if answer := condition():
            return answer
        if late:
            raise _timed_out(deadline, describe)
        time.sleep(_PAUSE_S)


async def wait_until_async(
    condition: Callable[[], Any], *, deadline: float = 10.0, describe: Description
) -> Any:
    """The same on an event loop, which goes on between looks; the condition may be sync or async."""
    end = time.monotonic() + deadline
    while True:
        late = time.monotonic() >= end
        found = condition()
        if answer := (await found if isinstance(found, Awaitable) else found):
            return answer
        if late:
            raise _timed_out(deadline, describe)
        await asyncio.sleep(_PAUSE_S)


def wait_for_lock(conn: psycopg.Connection[Any], pid: int, *, deadline: float = 10.0) -> list[int]:
    """Wait until the session `pid` waits for a lock; answers the pids that block it.

    This is how a race is proved to overlap: the second session is seen waiting before the first goes on.
    `conn` must be in autocommit and none of the two.
    """

    def blockers() -> list[int]:
        row = conn.execute("SELECT pg_blocking_pids(%s)", (pid,)).fetchone()
        return list(row[0]) if row else []

    def doing() -> str:
        row = conn.execute(
            "SELECT state, wait_event_type, wait_event, left(query, 120)"
            " FROM pg_stat_activity WHERE pid = %s",
            (pid,),
        ).fetchone()
        return f"session {pid} to wait for a lock; it is {row or 'gone'}"

    return wait_until(blockers, deadline=deadline, describe=doing)


class Barrier:
    """A fault point in another process where it waits until the test lets it go on.

    `environment` arms it in a process to be started. One barrier serves one process.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._path = folder / f"barrier-{name}"

    @property
    def environment(self) -> dict[str, str]:
        return {faultpoints.VARIABLE: f"{self.name}:pause:{self._path}"}

    @property
    def reached(self) -> bool:
        return self._path.with_name(f"{self._path.name}.reached").exists()

    def wait_reached(self, *, deadline: float = 20.0) -> None:
        wait_until(lambda: self.reached, deadline=deadline, describe=f"the process to reach {self.name!r}")

    def release(self) -> None:
        """Let the process go on; from now on it passes without stopping."""
        self._path.with_name(f"{self._path.name}.go").touch()


def kill_at(name: str) -> dict[str, str]:
    """The environment of a process that ends by SIGKILL where it reaches the fault point."""
    return {faultpoints.VARIABLE: f"{name}:kill"}
