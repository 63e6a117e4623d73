"""Everything a submit sends, checked and spelt out before any SQL is thought of.

Times leave as UTC instants and whole microseconds, never as local times or days, which the session's time
zone would read its own way.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args
from uuid import UUID

from bellwire_outbox.call import Argument, Call, Cast
from bellwire_outbox.config import LONGEST, MAX_PRIORITY, JobConfig
from bellwire_outbox.digest import args_digest
from bellwire_outbox.job import Job
from bellwire_outbox.key_text import key_text, tenant_text
from bellwire_outbox.payload import encode
from bellwire_schema.errors import ArgumentInvalid

OnDuplicate = Literal["existing", "replace", "supersede", "reopen"]

MAX_SET_BYTES = 64 * 1024 * 1024
# An instant that some client cannot read back would fail a claim or a promotion, and so everybody's.
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(8000, 1, 1, tzinfo=UTC)

_CASTS: dict[str, Cast] = {
    "kind": "text",
    "version": "int",
    "payload": "jsonb",
    "tenant": "text",
    "key": "text",
    "unique_until": "text",
    "priority": "int",
    "run_at": "timestamptz",
    "run_in": "interval",
    "deadline": "timestamptz",
    "max_age": "interval",
    "job_id": "uuid",
    "on_duplicate": "text",
    "wake": "boolean",
    "args_digest": "hex",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a call of `submit` says beside the job."""

    job_id: UUID | None = None
    run_at: datetime | None = None
    run_in: timedelta | None = None
    priority: int | None = None
    deadline: datetime | None = None
    wake: bool = True
    on_duplicate: OnDuplicate = "existing"

    def __post_init__(self) -> None:
        if self.job_id is not None and (not isinstance(self.job_id, UUID) or self.job_id.int == 0):
            raise ArgumentInvalid("job_id", "must be a uuid.UUID made once, before the first try")
        for name in ("run_at", "deadline"):
            _check_instant(name, getattr(self, name))
        if self.run_at is not None and self.run_in is not None:
            raise ArgumentInvalid("run_in", "say run_at or run_in, not both")
        if self.run_in is not None and (not isinstance(self.run_in, timedelta) or self.run_in < timedelta(0)):
            raise ArgumentInvalid("run_in", "must be a timedelta of zero or more")
        if self.run_in is not None and self.run_in > LONGEST:
            raise ArgumentInvalid("run_in", f"must be at most {LONGEST.days} days")
        if self.priority is not None and (
            not isinstance(self.priority, int)
            or isinstance(self.priority, bool)
            or abs(self.priority) > MAX_PRIORITY
        ):
            raise ArgumentInvalid(
                "priority", f"must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
            )
        if self.on_duplicate not in get_args(OnDuplicate):
            raise ArgumentInvalid("on_duplicate", f"must be one of {', '.join(get_args(OnDuplicate))}")


@dataclass(frozen=True, slots=True)
class Submission:
    """One job's arguments for `bellwire.try_submit`, as text; those at their default are left out."""

    values: dict[str, str]

    @classmethod
    def of(cls, job: Job, options: Options) -> "Submission":
        config = config_of(job)
        text, tree = encode(job)
        key = key_text(config, tree)
        if key is None and options.on_duplicate != "existing":
            raise ArgumentInvalid("on_duplicate", f"{config.kind} has no key, so it can have no duplicate")
        values = {
            "kind": config.kind,
            "version": str(config.version),
            "payload": text,
            "tenant": tenant_text(config, tree) or None,
            "key": key,
            "unique_until": config.unique_until,
            "priority": _priority(config, options),
            "run_at": _instant(options.run_at),
            "run_in": _interval(options.run_in),
            "deadline": _instant(options.deadline),
            "max_age": None if options.deadline is not None else _interval(config.max_age),
            "job_id": None if options.job_id is None else str(options.job_id),
            "on_duplicate": None if options.on_duplicate == "existing" else options.on_duplicate,
            "wake": None if options.wake else "false",
            # Without a key nothing is ever compared, save under a repeated job id, which asks for no
            # sameness.
            "args_digest": None if key is None else args_digest(text).hex(),
        }
        return cls({name: value for name, value in values.items() if value is not None})

    def call(self) -> Call:
        arguments: tuple[Argument, ...] = tuple(
            (name, _CASTS[name], value) for name, value in self.values.items()
        )
        return Call("try_submit", arguments, writes=True, one=True)

    def json(self) -> str:
        """One element of what `bellwire.try_submit_many` takes; the payload is not encoded twice."""
        rest: dict[str, Any] = {name: value for name, value in self.values.items() if name != "payload"}
        for name in ("version", "priority"):
            if name in rest:
                rest[name] = int(rest[name])
        if "wake" in rest:
            rest["wake"] = False
        return f'{json.dumps(rest, ensure_ascii=False)[:-1]}, "payload": {self.values["payload"]}}}'


def call_of_many(submissions: list[Submission]) -> Call:
    text = "[" + ",".join(submission.json() for submission in submissions) + "]"
    if len(text) > MAX_SET_BYTES:
        raise ArgumentInvalid("jobs", f"take more than {MAX_SET_BYTES} bytes together; submit them in parts")
    return Call("try_submit_many", (("jobs", "jsonb", text),), writes=True)


def config_of(job: Job) -> JobConfig:
    config = getattr(type(job), "job_config", None)
    if not isinstance(job, Job) or not isinstance(config, JobConfig):
        raise ArgumentInvalid(
            "job", f"must be an instance of a Job class with a job_config, got {_name(job)}"
        )
    return config


def _name(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _priority(config: JobConfig, options: Options) -> str | None:
    priority = config.priority if options.priority is None else options.priority
    return str(priority) if priority else None


def _check_instant(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ArgumentInvalid(name, "must be a datetime with a time zone, such as datetime.now(UTC)")
    if not EARLIEST <= value <= LATEST:
        raise ArgumentInvalid(name, f"must lie between the years {EARLIEST.year} and {LATEST.year}")


def _instant(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat()


def _interval(value: timedelta | None) -> str | None:
    if value is None:
        return None
    return f"{value // timedelta(seconds=1)}.{value.microseconds:06} seconds"
