"""`JobConfig`: what the submitter decides about a job, fixed where its class is written.

What can lose or double work silently has no default: `key` must be given (fields, or None), and beside a key
so must `unique_until`. Everything is checked when the class is made, so a wrong contract never reaches a
request.
"""

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, get_args, overload

from bellwire_schema.errors import ConfigError

UniqueUntil = Literal["started", "finished", "pruned"]

KIND = re.compile(r"[a-z][a-z0-9_.]{0,62}")
MAX_VERSION = 32_767
MAX_PRIORITY = 100
LONGEST = timedelta(days=365_000)
"""The longest wait and age; with the latest instant of a submit it stays within what Python can read back."""


@dataclass(frozen=True, init=False, slots=True)
class JobConfig:
    """The contract of one job class. Immutable.

    kind: the stable name, `[a-z][a-z0-9_.]{0,62}`; renaming the class does not change it.
    version: of payload and meaning together, 1 to 32767; a payload of an older one runs only through
        `upgrade`.
    key: the payload fields that identify the work inside a tenant, or None where every submit is work of its
        own.
    unique_until: how long the key keeps a second job away. "started" and "finished" bound concurrency; only
        "pruned" makes a submit repeatable for as long as the job is kept.
    tenant: the payload field that says whose work it is; None where there is one owner.
    priority: -100 to 100, higher is sooner; `submit(priority=…)` overrides it.
    max_age: counted from `run_at`; a job not done by then fails as `deadline_exceeded`. None: it never grows
        too old.
    """

    kind: str
    version: int
    key: tuple[str, ...] | None
    unique_until: UniqueUntil | None
    tenant: str | None
    priority: int
    ordering_key: tuple[str, ...] | None
    max_age: timedelta | None

    @overload
    def __init__(
        self,
        *,
        kind: str,
        version: int,
        key: None,
        tenant: str | None = None,
        priority: int = 0,
        ordering_key: tuple[str, ...] | None = None,
        after_failure: Literal["block", "go_on"] | None = None,
        max_age: timedelta | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        kind: str,
        version: int,
        key: tuple[str, ...],
        unique_until: UniqueUntil,
        tenant: str | None = None,
        priority: int = 0,
        ordering_key: tuple[str, ...] | None = None,
        after_failure: Literal["block", "go_on"] | None = None,
        max_age: timedelta | None = None,
    ) -> None: ...

    def __init__(
        self,
        *,
        kind: str,
        version: int,
        key: tuple[str, ...] | None,
        unique_until: UniqueUntil | None = None,
        tenant: str | None = None,
        priority: int = 0,
        ordering_key: tuple[str, ...] | None = None,
        after_failure: Literal["block", "go_on"] | None = None,
        max_age: timedelta | None = None,
    ) -> None:
        given = {
            "kind": kind,
            "version": version,
            "key": _names("key", key),
            "unique_until": unique_until,
            "tenant": tenant,
            "priority": priority,
            "ordering_key": ordering_key,
            "max_age": max_age,
        }
        for field in fields(self):
            object.__setattr__(self, field.name, given[field.name])
        if ordering_key is not None or after_failure is not None:
            raise ConfigError(
                "JobConfig: ordering_key (and after_failure) is not built yet, and is refused rather "
                "than ignored"
            )
        self._check()

    def _check(self) -> None:
        if not isinstance(self.kind, str) or not KIND.fullmatch(self.kind):
            raise ConfigError(f"JobConfig: the kind {self.kind!r} must match {KIND.pattern}")
        if not _is_int(self.version) or not 1 <= self.version <= MAX_VERSION:
            raise ConfigError(
                f"JobConfig of {self.kind}: version must be 1 to {MAX_VERSION}, got {self.version!r}"
            )
        if not _is_int(self.priority) or abs(self.priority) > MAX_PRIORITY:
            raise ConfigError(
                f"JobConfig of {self.kind}: priority must be -100 to 100, got {self.priority!r}"
            )
        if self.key is None and self.unique_until is not None:
            raise ConfigError(f"JobConfig of {self.kind}: unique_until means nothing without a key")
        if self.key is not None and self.unique_until not in get_args(UniqueUntil):
            raise ConfigError(
                f"JobConfig of {self.kind}: beside a key, unique_until must say until when it keeps a "
                "second job "
                f"away: 'started', 'finished' or 'pruned', got {self.unique_until!r}"
            )
        if self.tenant is not None and not isinstance(self.tenant, str):
            raise ConfigError(
                f"JobConfig of {self.kind}: tenant is the name of one field, got {self.tenant!r}"
            )
        if self.max_age is not None and (
            not isinstance(self.max_age, timedelta) or not timedelta(0) < self.max_age <= LONGEST
        ):
            raise ConfigError(
                f"JobConfig of {self.kind}: max_age must be a timedelta above zero and at most "
                f"{LONGEST.days} days, got {self.max_age!r}"
            )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(option: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        raise ConfigError(f'JobConfig: {option} takes a tuple of field names: {option}=("{value}",)')
    names = tuple(value)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ConfigError(f"JobConfig: {option} must name at least one field, each once, got {value!r}")
    return names
