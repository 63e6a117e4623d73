"""Which queues are there, as this connection knows; and which cannot be used, and why.

A queue is declared once a connection, on a channel that is thrown away, because the broker closes the channel
that declares one with other arguments. What cannot be had makes its kind mute and nothing else: it is said
once, tried again each minute and on the next connection, and its jobs are found by polling.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
from aiormq.exceptions import AMQPChannelError, AMQPError

from bellwire_runtime.broker.owner import Generation
from bellwire_runtime.broker.topology import declare, queue_name
from bellwire_runtime.broker.wire import reason_of
from bellwire_schema.errors import QueueMismatch

__all__ = ["Line", "Mute", "Queues"]

log = structlog.get_logger("bellwire.relay")
Line = tuple[str, int]
"""A kind and a version: a queue."""
_AT_ONCE = 100
_MOST = 5000


@dataclass(slots=True)
class Mute:
    """Why a queue cannot be used, and when it is tried again (monotonic)."""

    reason: str
    again_at: float


class Queues:
    """`on_settled` is told of each line that was wanted: it is there now, or it is mute."""

    def __init__(
        self,
        *,
        on_settled: Callable[[Line], None],
        retry_after: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_settled = on_settled
        self._retry_after = retry_after
        self._clock = clock
        self._installation: UUID | None = None
        self._generation: Generation | None = None
        self._names: dict[Line, str] = {}
        self._there: set[Line] = set()
        self._wanted: dict[Line, None] = {}
        self._declaring: asyncio.Task[None] | None = None
        self.mutes: dict[Line, Mute] = {}
        """The lines that cannot be used."""
        self.frozen: Callable[[], bool] = lambda: False
        """Whether the broker reads nothing from us just now: then no answer is no sign of trouble."""

    def begin(self, generation: Generation, installation: UUID) -> None:
        """A new connection: nothing is known to be there, and the mute ones are tried again."""
        if installation != self._installation:
            self._names.clear()
        self._installation, self._generation = installation, generation
        self._there.clear()
        for mute in self.mutes.values():
            mute.again_at = float("-inf")

    def end(self) -> None:
        """The connection is over."""
        self._generation = None
        self._wanted.clear()
        self._there.clear()
        if self._declaring is not None:
            self._declaring.cancel()
            self._declaring = None

    def name(self, line: Line) -> str:
        """The queue's name."""
        name = self._names.get(line)
        if name is None:
            assert self._installation is not None  # noqa: S101 (begin came first)
            if len(self._names) >= _MOST:
                self._names.clear()
            name = self._names[line] = queue_name(self._installation, *line)
        return name

    def there(self, line: Line) -> bool:
        return line in self._there

    def mute(self, line: Line) -> str | None:
        """Why nothing can be published there; None: it can, or is worth a try."""
        mute = self.mutes.get(line)
        return None if mute is None or mute.again_at <= self._clock() else mute.reason

    def forget(self, line: Line) -> None:
        """A hint found no queue there."""
        self._there.discard(line)

    def want(self, line: Line) -> None:
        """Have it declared, soon. Never waits."""
        if self._generation is None or line in self._wanted:
            return
        self._wanted[line] = None
        if self._declaring is None:
            self._declaring = asyncio.ensure_future(self._declare(self._generation))
            self._declaring.add_done_callback(_forget)

    def retry(self, kinds: Iterable[str]) -> None:
        """Try the mute ones whose minute is over; those of no kind of ours are nobody's business here."""
        ours = set(kinds)
        for line, mute in list(self.mutes.items()):
            if mute.again_at > self._clock():
                continue
            if line[0] in ours:
                self.want(line)
            else:
                del self.mutes[line]

    async def check(self, lines: Sequence[Line]) -> None:
        """All of them now. Raises `QueueMismatch` for the first that is there with other arguments."""
        generation = self._generation
        assert generation is not None  # noqa: S101 (begin came first)
        await declare(generation.connection, map(self.name, lines), within=generation.timeout)
        self._there.update(lines)

    def mute_kinds(self) -> set[str]:
        """The kinds of which nothing at all can be published."""
        heard = {kind for kind, _ in self._there}
        return {kind for kind, _ in self.mutes} - heard

    async def _declare(self, generation: Generation) -> None:
        try:
            await self._declare_wanted(generation)
        finally:
            if self._declaring is asyncio.current_task():
                self._declaring = None

    async def _declare_wanted(self, generation: Generation) -> None:
        alone = False
        while self._wanted:
            lines = list(self._wanted)[: 1 if alone else _AT_ONCE]
            try:
                await declare(generation.connection, map(self.name, lines), within=generation.timeout)
            except (QueueMismatch, AMQPChannelError) as error:
                if generation.over:
                    break
                if len(lines) > 1:
                    # One of them is the culprit: it must not take the others along.
                    alone = True
                    continue
                self._found_mute(lines[0], error)
            except (AMQPError, OSError, RuntimeError) as error:
                # No channel to be had, or no answer on it. A broker that reads nothing answers nothing.
                if not self.frozen():
                    generation.end(reason_of(error))
                break
            else:
                self._found(lines)
            for line in lines:
                self._wanted.pop(line, None)
                self._on_settled(line)
        self._wanted.clear()

    def _found(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._there.add(line)
            if self.mutes.pop(line, None) is not None:
                log.info("queue can be used again", queue=self.name(line))

    def _found_mute(self, line: Line, error: Exception) -> None:
        reason = str(error) if isinstance(error, QueueMismatch) else reason_of(error)
        known = self.mutes.get(line)
        self.mutes[line] = Mute(reason, self._clock() + self._retry_after)
        if known is None or known.reason != reason:
            log.warning(
                "no hints for a queue; its jobs are found by polling", queue=self.name(line), error=reason
            )


def _forget(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("declaring queues failed", exc_info=error)
