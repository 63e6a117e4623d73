"""What the code declares about a kind, as one row: `KindPolicy` has the declared columns of `bellwire.kind`.

Policy has one writer, `bellwire apply`; daemons only read it. So what travels from the code to that writer
is plain data, comparable column by column, and knows nothing of handlers. Operators' columns (pauses,
overrides) are not here: no deploy may touch them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import Connection, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from bellwire_schema.errors import ConfigError
from bellwire_schema.tables import kind

_LOCK = 0x62656C6C706F6C69  # "bellpoli" in ASCII: advisory locks share one number space with the user's own


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One column of a kind that differs. `before` is the database's, `after` the code's."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What `apply` does to one kind. `retire`: declared no longer; `revive`: declared again."""

    kind: str
    action: Literal["create", "change", "retire", "revive"]
    columns: tuple[Setting, ...] = ()


def diff(connection: Connection, *, app: str, declared: Sequence[KindPolicy]) -> list[Change]:
    """What `apply` would do, by kind. Raises ConfigError where a declared kind belongs to another app."""
    return _changes(_rows(connection, app, declared, lock=False), app, declared)


def apply(connection: Connection, *, app: str, declared: Sequence[KindPolicy], actor: str) -> list[Change]:
    """Write what is declared in the caller's transaction, on record under `actor`; returns the changes.

    Kinds of this app that are no longer declared keep their policy, marked retired: their jobs run by it.
    Raises ConfigError where a kind belongs to another app; then nothing is written.
    """
    # One apply at a time: two deploys of one app must not each retire what the other has just created.
    connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    connection.execute(select(func.set_config("bellwire.actor", actor, True)))
    connection.execute(select(func.set_config("bellwire.reason", "apply", True)))
    changes = _changes(_rows(connection, app, declared, lock=True), app, declared)
    policies = {policy.name: policy for policy in declared}
    for change in changes:
        match change.action:
            case "retire":
                connection.execute(
                    update(kind).where(kind.c.name == change.kind).values(retired_at=func.bellwire.now())
                )
            case _:
                columns = policies[change.kind].columns()
                written = {**columns, "retired_at": None, "applied_at": func.bellwire.now()}
                connection.execute(
                    insert(kind)
                    .values(written)
                    .on_conflict_do_update(index_elements=[kind.c.name], set_=written)
                )
    return changes


def _rows(
    connection: Connection, app: str, declared: Sequence[KindPolicy], *, lock: bool
) -> dict[str, Mapping[str, Any]]:
    query = (
        select(kind)
        .where(or_(kind.c.app == app, kind.c.name.in_([policy.name for policy in declared])))
        .order_by(kind.c.name)
    )
    if lock:
        query = query.with_for_update()
    return {row["name"]: dict(row) for row in connection.execute(query).mappings()}


def _changes(rows: Mapping[str, Mapping[str, Any]], app: str, declared: Sequence[KindPolicy]) -> list[Change]:
    foreign = [
        f"{policy.name} belongs to app {rows[policy.name]['app']}"
        for policy in declared
        if policy.name in rows and rows[policy.name]["app"] != app
    ]
    if foreign:
        raise ConfigError(
            f"App {app}: {'; '.join(foreign)}; one app owns a kind: rename it, or declare it there only"
        )
    changes = []
    for policy in sorted(declared, key=lambda policy: policy.name):
        row = rows.get(policy.name)
        settings = tuple(
            Setting(name=name, before=None if row is None else row[name], after=value)
            for name, value in policy.columns().items()
            if name != "name" and (row is None or row[name] != value)
        )
        if row is None:
            changes.append(Change(kind=policy.name, action="create", columns=settings))
        elif row["retired_at"] is not None:
            back = Setting(name="retired_at", before=row["retired_at"], after=None)
            changes.append(Change(kind=policy.name, action="revive", columns=(back, *settings)))
        elif settings:
            changes.append(Change(kind=policy.name, action="change", columns=settings))
    names = {policy.name for policy in declared}
    for name, row in rows.items():
        if name not in names and row["retired_at"] is None:
            gone = Setting(name="declared", before=True, after=False)
            changes.append(Change(kind=name, action="retire", columns=(gone,)))
    return changes
