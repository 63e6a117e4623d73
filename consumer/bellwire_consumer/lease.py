"""What this process knows of one claimed job, shared by the event loop, the heartbeat thread and a
handler's thread.

The lease is counted on the monotonic clock from the moment the claim or the last renewal was *sent*: the
database dates it later, so the process never believes longer than the database does. Fields have one writer
each, and what crosses threads is a single assignment, so nothing here needs a lock except the pause of
heartbeats.
"""

import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from bellwire_schema.errors import JobCancelled, LeaseLost

__all__ = ["CancelRequest", "Gone", "Lease"]

INFINITE = float("inf")

Gone: TypeAlias = Literal["lost", "expired", "outlived", "timed_out", "stalled", "interrupted", "released"]
"""Why an attempt may not go on: the database took the job; the lease ran out here unheard; its transaction
outlived a lease that could not be renewed under it; a limit passed; a cancel request interrupts it; the
process stops and hands it back."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Who asked that no more work begins, why, and when (by the database's clock)."""

    actor: str | None
    reason: str | None
    at: datetime


class Lease:
    """One current lease. `row` is what the claim answered."""

    __slots__ = (
        "_pause_lock",
        "beating",
        "busy",
        "cancel",
        "checkpoint",
        "ended",
        "expires",
        "gone",
        "handler",
        "id",
        "job_id",
        "kind",
        "limit",
        "next_beat",
        "note",
        "paused",
        "progress",
        "progress_total",
        "progressed_at",
        "row",
        "seconds",
        "settled",
        "settling",
        "stall_seconds",
        "started",
        "task",
        "token",
    )

    def __init__(self, row: Any, *, handler: Any, sent: float, now: float) -> None:
        self.row = row
        self.handler = handler
        self.job_id: UUID = row.job_id
        self.id: UUID = row.attempt_id
        self.token: UUID = row.token
        self.kind: str = row.kind
        self.seconds: float = row.lease
        self.expires: float = sent + self.seconds
        self.next_beat = sent + self.seconds / 3
        self.started = now
        limit: float = INFINITE if row.timeout is None else now + row.timeout
        if row.remaining is not None:
            limit = min(limit, sent + row.remaining)
        self.limit = limit
        self.stall_seconds = INFINITE if row.progress_timeout is None else row.progress_timeout
        self.progressed_at = now
        self.progress: int | None = None
        self.progress_total: int | None = None
        self.note: str | None = None
        self.checkpoint: str | None = row.checkpoint
        self.cancel: CancelRequest | None = None
        self.gone: Gone | None = None
        self.settling = False
        self.settled = False
        self.ended = False
        self.busy = False
        self.beating = False
        self.paused = 0
        self.task: Any = None
        self._pause_lock: threading.Lock | None = None

    # --- limits
    # -----------------------------------------------------------------------------------------------

    def ends_at(self) -> float:
        """The monotonic time at which something must be decided about it: a limit, or the lease's own end."""
        return min(self.limit, self.progressed_at + self.stall_seconds, self.expires)

    def overdue(self, now: float) -> Gone | None:
        """Which of its ends has come, if any."""
        if now >= self.limit:
            return "timed_out"
        if now >= self.progressed_at + self.stall_seconds:
            return "stalled"
        # A row that its own transaction keeps locked cannot be renewed and cannot be taken either.
        if now >= self.expires and not self.busy:
            return "outlived" if self.paused else "expired"
        return None

    def time_left(self) -> float:
        """Seconds of its time budget; infinite where there is none."""
        return max(0.0, self.limit - time.monotonic())

    # --- what a handler asks
    # ----------------------------------------------------------------------------------

    def require(self) -> None:
        """Raise `LeaseLost` where the attempt may not go on."""
        if self.settled:
            raise LeaseLost(f"attempt {self.id} has ended already: its transaction completed the job")
        if self.gone is not None:
            raise LeaseLost(f"attempt {self.id} of job {self.job_id} {_GONE[self.gone]}")

    def raise_if_cancelled(self) -> None:
        if self.gone is not None and self.gone != "interrupted":
            self.require()
        if self.cancel is not None:
            raise JobCancelled(actor=self.cancel.actor, reason=self.cancel.reason)

    # --- heartbeats left out while a transaction above READ COMMITTED is open
    # ---------------------------------

    def pause_beats(self) -> None:
        """No new heartbeat takes this job along; one under way may still be in the air: see `beating`."""
        if self._pause_lock is None:
            self._pause_lock = threading.Lock()
        with self._pause_lock:
            self.paused += 1

    def resume_beats(self) -> None:
        if self._pause_lock is not None:
            with self._pause_lock:
                self.paused -= 1


_GONE: dict[Gone, str] = {
    "lost": "no longer owns it: the job was taken back",
    "expired": "may not go on: its lease ran out before a heartbeat got through",
    "outlived": "may not go on: its transaction outlived the lease, which could not be renewed meanwhile",
    "timed_out": "may not go on: its time is over",
    "stalled": "may not go on: it made no progress for too long",
    "interrupted": "was interrupted by a cancel request",
    "released": "was handed back: this process is stopping",
}
