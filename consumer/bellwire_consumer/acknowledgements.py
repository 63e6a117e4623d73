"""Acknowledgements belong to the channel that delivered: a tag means nothing on another, and one told there
would close it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

__all__ = ["Acknowledgements"]


class Acknowledgements:
    """Of one channel: what became due in one turn of the loop is told the broker in one message, where the
    tags leave no gap.
    """

    def __init__(
        self, send: Callable[[int, bool], Awaitable[None]], *, failed: Callable[[str], None]
    ) -> None:
        self._send = send
        self._failed = failed
        self._open: dict[int, bool] = {}
        self._due: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.over = False
        """The channel is gone: nothing is acknowledged any more."""

    async def told(self) -> None:
        """Wait until everything that was delivered has been acknowledged."""
        await self._idle.wait()

    def delivered(self, tag: int) -> None:
        self._open[tag] = False
        self._idle.clear()

    def acknowledge(self, tag: int) -> None:
        if self.over or tag not in self._open:
            return
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(tag)
        self._open[tag] = True

    def _flush(self) -> None:
        due, self._due = self._due, []
        if self.over:
            return
        # Tags are delivered in rising order, and a dictionary keeps it.
        prefix = 0
        for tag, done in self._open.items():
            if not done:
                break
            prefix = tag
        singles = sorted(tag for tag in due if tag > prefix)
        for tag in [tag for tag in self._open if tag <= prefix] + singles:
            del self._open[tag]
        task = asyncio.ensure_future(self._tell(prefix, singles))
        self._tasks.add(task)
        task.add_done_callback(self._told)

    async def _tell(self, prefix: int, singles: Sequence[int]) -> None:
        if prefix:
            await self._send(prefix, True)
        for tag in singles:
            await self._send(tag, False)

    def _told(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not self._open and not self._tasks:
            self._idle.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"acknowledge: {type(error).__name__}")
