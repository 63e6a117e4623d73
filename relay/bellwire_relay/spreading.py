"""How many ids a hint carries: one when little goes on, more under a backlog, none too many to be taken.

A consumer forgets ids that find no slot within a second, so no hint carries more than the smallest consumer
has slots. Within that, consumers get about the same, since the broker deals hints out in turn.
"""

from collections.abc import Sequence
from uuid import UUID

from bellwire_runtime.broker.hint import MAX_IDS

__all__ = ["spread"]


def spread(ids: Sequence[UUID], *, least: int, hearers: int) -> list[Sequence[UUID]]:
    """What goes into each hint, in the order given.

    `least` are the slots of the smallest live consumer of the queue, `hearers` how many there are.
    """
    share = -(-len(ids) // max(1, hearers))
    size = max(1, min(share, least, MAX_IDS))
    return [ids[at : at + size] for at in range(0, len(ids), size)]
