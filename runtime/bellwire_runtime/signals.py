"""The first SIGTERM or SIGINT asks, the second insists, and a stop that hangs is ended by a clock of its own.

The handler is a plain signal handler, not the event loop's, so that a second signal works while the loop is
blocked; the deadline runs in a thread, so that a stop which waits on a half-open connection still ends.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

import structlog

from bellwire_runtime.exits import Exit

__all__ = ["StopSignals"]

log = structlog.get_logger("bellwire.lifecycle")


class StopSignals:
    """While entered (in the main thread, inside a running event loop), signals set `stop`."""

    def __init__(
        self, stop: asyncio.Event, *, grace: float, leave: Callable[[int], object] = os._exit
    ) -> None:
        self._stop = stop
        self._grace = grace
        self._leave = leave
        self._loop: asyncio.AbstractEventLoop | None = None
        # SimpleQueue may be used from inside a signal handler; a lock or an Event may not.
        self._seen: SimpleQueue[int | None] = SimpleQueue()
        self._asked = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        threading.Thread(target=self._watch, name="bellwire-stop-deadline", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._seen.put(None)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            self._leave(128 + number)
            return
        self._asked = True
        self._seen.put(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ask, number)

    def _ask(self, number: int) -> None:
        log.info("stopping", signal=signal.Signals(number).name, grace_seconds=self._grace)
        self._stop.set()

    def _watch(self) -> None:
        if self._seen.get() is None:
            return
        try:
            self._seen.get(timeout=self._grace)
        except Empty:
            os.write(2, b"bellwire: the grace is over, leaving now; leases recover by themselves\n")
            self._leave(int(Exit.FAILURE))
