"""What the code declares about a kind, as one row: `KindPolicy` has the declared columns of `bellwire.kind`.

Policy has one writer, `bellwire apply`; daemons only read it. So what travels from the code to that writer
is plain data, comparable column by column, and knows nothing of handlers. Operators' columns (pauses,
overrides) are not here: no deploy may touch them.
"""

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPolicy:
    """One kind as an app declares it. Field names are column names; None is NULL."""

    name: str
    app: str
    versions: tuple[int, ...]
    lease: timedelta
    timeout: timedelta | None
    progress_timeout: timedelta | None
    max_attempts: int
    retry_base: timedelta
    retry_factor: float
    retry_cap: timedelta
    retry_floor: timedelta
    retry_jitter: bool
    max_unknown: int | None
    max_deaths: int
    max_waits: int
    max_releases: int
    aging: timedelta
    objective: timedelta | None
    interruptible: bool
    running: int | None
    running_per_tenant: int | None
    backlog: int | None
    when_full: Literal["reject", "delay", "accept"]
    on_failed_kind: str | None
    on_failed_version: int | None
    retain_succeeded: timedelta
    retain_failed: timedelta
    retain_cancelled: timedelta
    retain_payload: timedelta | None

    def columns(self) -> dict[str, Any]:
        """Column name to value, in the order above; `versions` as a list, which drivers take for an array."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        row["versions"] = list(self.versions)
        return row
