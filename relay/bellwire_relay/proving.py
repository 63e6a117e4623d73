"""A connection counts as well when a hint has gone through it, and not because it was made.

Whether we may publish, and whether the broker reads what we publish, is told to nobody who does not try.
Without this a broker that takes no hints of ours would be called well at each connection, and lost with the
first hint.
"""

import asyncio
import contextlib
import time

from aiormq import Channel
from aiormq.exceptions import PublishError

from bellwire_relay.ringing import publish
from bellwire_runtime.broker.owner import Generation
from bellwire_runtime.broker.wire import BrokerLost, bounded
from bellwire_runtime.left_behind import forget

__all__ = ["prove"]

_LOOK_EVERY = 0.1


async def prove(generation: Generation, channel: Channel, queue: str) -> bool:
    """Publish to a queue that nobody has: it comes back if we may publish. Answers whether we are blocked.

    Raises `BrokerLost` when there is no answer in time, and the library's error for a refusal.
    """
    probe = asyncio.ensure_future(publish(channel, queue, b""))
    probe.add_done_callback(forget)
    end = time.monotonic() + generation.timeout
    while time.monotonic() < end:
        await asyncio.wait({probe}, timeout=_LOOK_EVERY)
        if probe.done():
            with contextlib.suppress(PublishError):
                await bounded(probe, within=generation.timeout, what="publish")
            return False
        if await generation.blocked():
            return True
    raise BrokerLost(f"publish: no confirm within {generation.timeout:g} s")
