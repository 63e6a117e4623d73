"""Ends what may not go on: attempts past a limit, without progress, or whose lease is gone.

One timer stands for all attempts, set to the earliest of their ends; a lease that was renewed meanwhile
makes it fire for nothing, once. A coroutine is cancelled, a thread told and written off; either way the
attempt ends and its slot comes back, even if the code behind it never notices.
"""

import asyncio
import time
from collections.abc import Callable

from bellwire_consumer.lease import INFINITE, Gone, Lease
from bellwire_consumer.slots import Slots

__all__ = ["Watch"]

PATIENCE_S = 5.0
"""How long a cancelled coroutine may take to unwind before its slot is given to somebody else."""
# A completing transaction answers for itself; only one that hangs is cut short.
_COMMIT_S = 30.0


class Watch:
    """`abandon` ends an attempt whose coroutine did not unwind in time."""

    def __init__(
        self, *, slots: Slots, abandon: Callable[[Lease], None], patience: float = PATIENCE_S
    ) -> None:
        self._slots = slots
        self._abandon = abandon
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        self._at = INFINITE

    def add(self, lease: Lease) -> None:
        """Watch over a lease that was just claimed."""
        at = lease.ends_at()
        if at < self._at:
            self._set(at)

    def end(self, lease: Lease, reason: Gone) -> None:
        """End it for this reason, unless it is ending already."""
        if lease.ended or lease.gone is not None:
            return
        lease.gone = reason
        if lease.task is not None:
            lease.task.cancel()
            asyncio.get_running_loop().call_later(
                PATIENCE_S if self._patience is None else self._patience, self._abandon, lease
            )

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = None
        if at < INFINITE:
            delay = max(0.0, at - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        earliest = INFINITE
        for lease in self._slots.snapshot():
            if lease.ended or lease.gone is not None:
                continue
            reason = lease.overdue(now)
            if reason is None:
                earliest = min(earliest, max(lease.ends_at(), now + 0.1))
            elif lease.settling and now < lease.ends_at() + _COMMIT_S:
                earliest = min(earliest, now + 1.0)
            else:
                self.end(lease, reason)
        self._set(earliest)
