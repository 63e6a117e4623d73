"""One loop's failure stays its own, and every loop goes on after every outage; nothing needs a restart.

A loop does one pass and says when it wants the next. What it raises is classified: weather (the database is
away, a race was lost) is tried again with jitter and said once by the connection; anything else is a bug,
logged with its traceback at once and then once a minute, and turns /live red when it does not stop, so that
the supervisor restarts the process. A pass that does not end by its deadline is cut short.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from bellwire_runtime.database import is_transient
from bellwire_runtime.left_behind import forget

__all__ = ["Loop", "LoopRunner", "supervise"]

log = structlog.get_logger("bellwire.lifecycle")


class Loop(Protocol):
    """A background loop. `run_once` does one pass; tests call it alone."""

    name: str

    async def run_once(self) -> float | None:
        """One pass. Answers the seconds until the next one is wanted; None: at once."""


class LoopRunner:
    """Runs one loop until it is asked to stop, and knows how it fares."""

    def __init__(
        self,
        loop: Loop,
        *,
        deadline: float = 90.0,
        late_after: float = 30.0,
        red_after: float = 30.0,
        backoff_cap: float = 5.0,
        rng: random.Random | None = None,
    ) -> None:
        self.loop = loop
        self.name = loop.name
        self._deadline = float(getattr(loop, "deadline", deadline))
        self._late_after = late_after
        self._red_after = red_after
        self._cap = backoff_cap
        self._rng = rng or random.Random()  # noqa: S311 (jitter, not a secret)
        self._nudge = asyncio.Event()
        self._failures = 0
        self._bug_since: float | None = None
        self._bug = ""
        self._said_at = 0.0
        self._pause = 0.0
        self.last_success = time.monotonic()

    def nudge(self) -> None:
        """End the present pause. From another thread: `loop.call_soon_threadsafe(runner.nudge)`."""
        self._nudge.set()

    @property
    def age(self) -> float:
        """Seconds since the last pass that succeeded."""
        return time.monotonic() - self.last_success

    @property
    def broken(self) -> str | None:
        """For /live: a bug that does not stop; None while there is none."""
        since = self._bug_since
        if since is None or time.monotonic() - since < self._red_after:
            return None
        return f"failing for {time.monotonic() - since:.0f} s: {self._bug}"

    @property
    def late(self) -> str | None:
        """For /ready: no pass has succeeded for too long; None while one has."""
        allowed = self._pause + self._late_after
        return f"no pass has succeeded for {self.age:.0f} s" if self.age > allowed else None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; ends between two passes."""
        while not stop.is_set():
            self._nudge.clear()
            pause = await self._pass()
            if pause > 0:
                await self._wait(stop, pause)
            else:
                await asyncio.sleep(0)

    async def _pass(self) -> float:
        try:
            pause = await self._bounded()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 (the one place where a loop's failures are classified)
            self._failures += 1
            self._note(error)
            return self._rng.uniform(0.05, min(self._cap, 0.1 * 2.0 ** min(self._failures, 10)))
        self._failures = 0
        self._bug_since = None
        self.last_success = time.monotonic()
        self._pause = pause or 0.0
        return self._pause

    async def _bounded(self) -> float | None:
        task = asyncio.ensure_future(self.loop.run_once())
        try:
            done, _ = await asyncio.wait({task}, timeout=self._deadline)
        except asyncio.CancelledError:
            await _cut(task)
            raise
        if not done:
            await _cut(task)
            raise RuntimeError(f"a pass of loop {self.name!r} did not end within {self._deadline:.0f} s")
        return task.result()

    def _note(self, error: Exception) -> None:
        if is_transient(error):
            self._bug_since = None
            log.debug("pass failed", loop=self.name, error=type(error).__name__)
            return
        now = time.monotonic()
        if self._bug_since is None:
            self._bug_since = now
        self._bug = f"{type(error).__name__}: {error}".splitlines()[0]
        if now - self._said_at >= 60:
            self._said_at = now
            log.error("loop failed", loop=self.name, failures=self._failures, exc_info=error)

    async def _wait(self, stop: asyncio.Event, pause: float) -> None:
        waits = {asyncio.ensure_future(stop.wait()), asyncio.ensure_future(self._nudge.wait())}
        try:
            await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def supervise(runners: Sequence[LoopRunner], stop: asyncio.Event, *, patience: float = 2.0) -> None:
    """Run all until `stop`; then let passes end by themselves for `patience` seconds, then cut them short."""
    tasks = [asyncio.ensure_future(runner.run(stop)) for runner in runners]
    try:
        await stop.wait()
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=3.0)


async def _cut(task: "asyncio.Future[float | None]") -> None:
    task.cancel()
    task.add_done_callback(forget)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait({task}, timeout=3.0)
