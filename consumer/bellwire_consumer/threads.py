"""Threads for plain functions. A thread that is stuck cannot be stopped, only replaced: it is written off,
and the next job gets a fresh one, so stuck handlers cost memory and never a slot.

Threads are daemons: a stuck one must not keep the process from exiting once its lease was handed back.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from bellwire_consumer.forked import end_if_forked

__all__ = ["Threads"]

_IDLE_S = 60.0


class _Call:
    __slots__ = ("args", "context", "function", "future", "loop")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()


class Threads:
    """As many threads as there are calls in flight; idle ones are used again, and end after a minute."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._made = 0
        self._closed = False
        self._lock = threading.Lock()
        self._alive = 0
        self._pid = os.getpid()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call it in a thread, in a copy of this task's context. When cancelled, the thread is written
        off."""
        call = _Call(function, args)
        if not self._idle.acquire(blocking=False):
            self._made += 1
            threading.Thread(target=self._work, name=f"bellwire-handler-{self._made}", daemon=True).start()
        # Not before there is a thread for it: where none can be had the attempt ends, and what was left in
        # the queue would be run all the same, later, by the next thread that is free.
        self._queue.put(call)
        result, error = await call.future
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Idle threads end; busy ones after their call."""
        self._closed = True
        for _ in range(self._alive):
            self._queue.put(None)

    def _count(self, change: int) -> None:
        with self._lock:
            self._alive += change

    def _work(self) -> None:
        self._count(+1)
        try:
            while True:
                try:
                    call = self._queue.get(timeout=_IDLE_S)
                except Empty:
                    # Taken back only if nobody has counted on this thread meanwhile.
                    if self._idle.acquire(blocking=False):
                        return
                    continue
                if call is None or self._run(call) or self._closed:
                    return
                self._idle.release()
        finally:
            self._count(-1)

    def _run(self, call: _Call) -> bool:
        """True: nobody waits for the answer any more, and another thread has taken this one's place."""
        result: Any = None
        error: BaseException | None = None
        try:
            result = call.context.run(call.function, *call.args)
        except BaseException as raised:  # noqa: BLE001 (whatever a handler raises is its attempt's ending)
            error = raised
        end_if_forked(self._pid)
        written_off = call.future.cancelled()
        try:
            call.loop.call_soon_threadsafe(_answer, call.future, result, error)
        except RuntimeError:
            # The loop has ended, and with it everybody who could have waited.
            return True
        return written_off


def _answer(
    future: "asyncio.Future[tuple[Any, BaseException | None]]", result: Any, error: BaseException | None
) -> None:
    # As a value: a future refuses StopIteration, and an exception set on it would hold a cycle of frames.
    if not future.done():
        future.set_result((result, error))
