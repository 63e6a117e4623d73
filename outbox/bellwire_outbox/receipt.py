"""What the database answered, as plain immutable values.

A receipt always names the state of the job it returns, so a repeated submit tells whether the work is still
to come.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

Outcome = Literal["created", "existing", "replaced", "reopened", "delayed"]
State = Literal["scheduled", "ready", "running", "succeeded", "failed", "cancelled"]
CancelOutcome = Literal["cancelled", "requested", "too_late", "not_found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The job that now stands for what was submitted.

    outcome: "created"; "existing" (the key or the job id was there, with the same arguments); "replaced" and
        "reopened" (by `on_duplicate`); "delayed" (created, but for later, since the kind's backlog is full).
    """

    job_id: UUID
    outcome: Outcome
    state: State
    run_at: datetime

    @property
    def created(self) -> bool:
        """This submit made a job; otherwise it found or changed one."""
        return self.outcome in ("created", "delayed")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Receipt":
        return cls(
            job_id=UUID(row["job_id"]),
            outcome=row["outcome"],
            state=row["state"],
            run_at=instant(row["run_at"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as it stands, without its payload. Times are aware and in UTC."""

    job_id: UUID
    kind: str
    version: int
    key: str | None
    tenant: str
    priority: int
    state: State
    reason: str | None
    run_at: datetime
    deadline_at: datetime | None
    attempt: int
    attempts_used: int
    generation: int
    created_at: datetime
    finished_at: datetime | None
    result: Any
    first_code: str | None
    last_code: str | None
    cancel_requested_at: datetime | None
    cancel_actor: str | None
    cancel_reason: str | None
    progress: int | None
    progress_total: int | None
    progress_note: str | None

    @property
    def finished(self) -> bool:
        return self.finished_at is not None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "JobView":
        values: dict[str, Any] = {name: row[name] for name in _VIEW_FIELDS}
        values["job_id"] = UUID(values["job_id"])
        for name in _VIEW_INSTANTS:
            values[name] = None if values[name] is None else instant(values[name])
        return cls(**values)


_VIEW_FIELDS = tuple(field.name for field in fields(JobView))
_VIEW_INSTANTS = ("run_at", "deadline_at", "created_at", "finished_at", "cancel_requested_at")


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
