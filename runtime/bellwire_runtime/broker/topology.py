"""One durable quorum queue a kind and version, declared identically by both sides.

Everything the queue does is said here and nowhere else: it expires after a day without a consumer or a
declaration (RabbitMQ cannot delete a quorum queue if-unused), a hint lives two minutes (so repeats cannot
pile up), and one that comes back twenty times is dropped, to nowhere: what is lost is published again by age.
A queue that exists with other arguments is found on a channel of its own, because the broker closes the
channel that asks.
Sources: RabbitMQ, "Quorum Queues", "Time-to-Live and Expiration", "Queues: Property Equivalence".
"""

import contextlib
import re
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelPreconditionFailed

from bellwire_runtime.broker.wire import bare_channel, bounded
from bellwire_schema.errors import QueueMismatch

__all__ = ["ARGUMENTS", "declare", "queue_name"]

ARGUMENTS: Final[dict[str, str | int]] = {
    "x-queue-type": "quorum",
    "x-expires": 86_400_000,
    "x-message-ttl": 120_000,
    "x-delivery-limit": 20,
}
_DIFFERS = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for queue .*?: received (?P<wanted>.*?)"
    r"(?: of type '\w+')? but current is (?P<found>.*)",
    re.DOTALL,
)


def queue_name(installation: UUID, kind: str, version: int) -> str:
    """The installation is part of it, so that two of them on one broker never hear each other."""
    return f"bellwire.{installation}.{kind}.v{version}"


async def declare(
    connection: AbstractConnection,
    names: Iterable[str],
    *,
    within: float,
    arguments: dict[str, str | int] | None = None,
) -> None:
    """All these queues exist afterwards, on a channel that is thrown away. `within`: seconds a wait.

    Raises `QueueMismatch` for one that exists with other arguments; `BrokerLost` or the library's error else.
    """
    channel = await bare_channel(connection, within=within)
    try:
        for name in names:
            try:
                await bounded(
                    channel.queue_declare(name, durable=True, arguments=dict(arguments or ARGUMENTS)),
                    within=within,
                    what=f"declare queue {name}",
                )
            except ChannelPreconditionFailed as error:
                raise _explained(name, str(error)) from None
    finally:
        with contextlib.suppress(Exception):
            await bounded(channel.close(), within=within, what="close a channel")


def _explained(queue: str, said: str) -> QueueMismatch:
    found = _DIFFERS.search(said)
    if found is None:
        return QueueMismatch(queue=queue, argument="(see the broker's words)", wanted="ours", found=said)
    return QueueMismatch(
        queue=queue,
        argument=found["argument"],
        wanted=_plain(found["wanted"]),
        found=_plain(found["found"]),
    )


def _plain(text: str) -> str:
    text = re.sub(r"^the value ", "", text.strip())
    return re.sub(r" of type '\w+'$", "", text).strip("'")
