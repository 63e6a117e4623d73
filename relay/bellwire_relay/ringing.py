"""The hints under way on one channel: as many as may be at once, each answered once, or none of them counts.

A publisher confirm that is late may be the answer to anything, so one deadline holds for all: when the oldest
hint has waited that long, everything under way is unanswered and the channel, with its connection, is over.
The library is entered one level below its exchange, whose message object and flush cost a third more a hint.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal
from uuid import UUID

from aiormq import Channel
from aiormq.exceptions import AMQPError, ChannelAccessRefused, DeliveryError, PublishError
from pamqp.commands import Basic

from bellwire_runtime.broker.wire import reason_of

__all__ = ["Answer", "Ringer", "Sending", "publish"]

Line = tuple[str, int]
Answer = Literal["confirmed", "returned", "nacked", "timed_out", "refused", "dropped"]
_PERSISTENT: Final = 2
_STOOD_STILL: Final = 0.25


class Sending:
    """One hint on its way. `returned`: it found no queue once."""

    __slots__ = ("body", "ids", "line", "queue", "returned", "since")

    def __init__(self, line: Line, queue: str, ids: Sequence[UUID]) -> None:
        self.line = line
        self.queue = queue
        self.ids = ids
        self.body = b""
        self.since = 0.0
        self.returned = False


OnAnswer = Callable[[Sending, Answer, str], None]
"""Of each hint: what became of it, and a few words of detail for what went wrong."""


async def publish(channel: Channel, queue: str, body: bytes) -> None:
    """Returns when the broker has confirmed it; raises what became of it else."""
    # A properties object is for one message: the library writes into it what a return is found by.
    properties = Basic.Properties(content_type="application/json", delivery_mode=_PERSISTENT)
    await channel.basic_publish(body, routing_key=queue, properties=properties, mandatory=True, wait=False)


class Ringer:
    """Publishes on one channel. `on_expiry` is told when the deadline has passed; then everything is over."""

    def __init__(
        self,
        *,
        channel: Channel,
        encode: Callable[[Sending], bytes],
        within: float,
        on_answer: OnAnswer,
        on_expiry: Callable[[], None],
        most: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._encode = encode
        self._within = within
        self._on_answer = on_answer
        self._on_expiry = on_expiry
        self._most = most
        self._clock = clock
        self._under_way: dict[asyncio.Task[None], Sending] = {}
        self._queue: deque[Sending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._over = False

    def __len__(self) -> int:
        return len(self._under_way) + len(self._queue)

    def ring(self, sending: Sending) -> None:
        """Send it now, or as soon as fewer are under way. From the event loop; never waits."""
        if self._over:
            self._on_answer(sending, "dropped", "")
        elif len(self._under_way) < self._most:
            self._start(sending)
        else:
            self._queue.append(sending)

    def give_up(self, answer: Answer, detail: str = "") -> None:
        """Everything under way gets this answer, whatever the broker says later; the rest is dropped."""
        under_way, self._under_way = self._under_way, {}
        queued, self._queue = self._queue, deque()
        for sending in under_way.values():
            self._on_answer(sending, answer, detail)
        for sending in queued:
            self._on_answer(sending, "dropped", "")

    def close(self, detail: str = "") -> None:
        """No answer counts any more."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._under_way)
        self.give_up("dropped", detail)
        for task in tasks:
            task.cancel()

    def _start(self, sending: Sending) -> None:
        sending.since = self._clock()
        body = self._encode(sending)
        task = asyncio.ensure_future(publish(self._channel, sending.queue, body))
        self._under_way[task] = sending
        task.add_done_callback(self._answered)
        if self._timer is None:
            self._look_in(self._within)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        sending = self._under_way.pop(task, None)
        if sending is None:
            return
        if error is None and not task.cancelled():
            self._on_answer(sending, "confirmed", "")
        else:
            self._on_answer(sending, *_read(error))
        while self._queue and len(self._under_way) < self._most and not self._over:
            self._start(self._queue.popleft())

    def _look_in(self, seconds: float) -> None:
        self._due = self._clock() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """One timer for all: it comes round for the hint that was the oldest, and looks who is now."""
        self._timer = None
        oldest = next(iter(self._under_way.values()), None)
        if oldest is None:
            return
        now = self._clock()
        left = oldest.since + self._within - now
        if left <= 0 and now - self._due > _STOOD_STILL:
            # Not the broker but this process stood still: what has come meanwhile is read first.
            left = _STOOD_STILL
        if left > 0:
            self._look_in(left)
            return
        self._over = True
        tasks = list(self._under_way)
        self.give_up("timed_out", f"no confirm within {self._within:g} s")
        for task in tasks:
            task.cancel()
        self._on_expiry()


def _read(error: BaseException | None) -> tuple[Answer, str]:
    match error:
        case PublishError():
            return "returned", "no queue"
        case DeliveryError():
            return "nacked", ""
        case ChannelAccessRefused():
            return "refused", reason_of(error)
        case AMQPError() | OSError():
            return "dropped", reason_of(error)
        case _:
            # The library cancels what waits on a connection that broke.
            return "dropped", "the connection broke"
