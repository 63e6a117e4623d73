"""What each public function asks of the database and how it reads the answer, whatever the stack.

Building a call checks everything that can be checked without the database, so an `InputError` comes before
any SQL.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from bellwire_outbox.call import Argument, Call
from bellwire_outbox.config import KIND
from bellwire_outbox.job import Job
from bellwire_outbox.key_text import key_text, tenant_text
from bellwire_outbox.payload import encode, unstorable_text
from bellwire_outbox.receipt import CancelOutcome, JobView, Receipt
from bellwire_outbox.refusals import explained, refusal
from bellwire_outbox.stacks import AsyncStack, SyncStack
from bellwire_outbox.submission import Options, Submission, call_of_many, config_of
from bellwire_schema.errors import ArgumentInvalid

T = TypeVar("T")
Rows: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A call, and what its rows mean."""

    call: Call
    read: Callable[[Rows], T]

    def on(self, stack: SyncStack) -> T:
        with explained(self.call.function):
            rows = stack.run(self.call)
        return self.read(rows)

    async def aon(self, stack: AsyncStack) -> T:
        with explained(self.call.function):
            rows = await stack.arun(self.call)
        return self.read(rows)


def submit(job: Job, options: Options) -> Request[Receipt]:
    return Request(Submission.of(job, options).call(), _receipt)


def submit_many(jobs: Iterable[Job], options: Options) -> Request[list[Receipt]]:
    if isinstance(jobs, Job):
        # A pydantic model iterates over its fields, and the error would speak of those.
        raise ArgumentInvalid("jobs", f"give a list of jobs, not one {type(jobs).__name__}; submit takes one")
    return Request(call_of_many([Submission.of(job, options) for job in jobs]), _receipts)


def get_job(job_id: UUID) -> Request[JobView | None]:
    return Request(Call("get_job", (("p_id", "uuid", _id(job_id)),)), _view)


def find_job(job: Job) -> Request[JobView | None]:
    config = config_of(job)
    _, tree = encode(job)
    key = key_text(config, tree)
    if key is None:
        raise ArgumentInvalid("job", f"{config.kind} has no key to be found by")
    arguments: tuple[Argument, ...] = (
        ("p_kind", "text", config.kind),
        ("p_tenant", "text", tenant_text(config, tree)),
        ("p_key", "text", key),
    )
    return Request(Call("find_job", arguments), _view)


def cancel(job_id: UUID, *, actor: str, reason: str) -> Request[CancelOutcome]:
    for name, text in (("actor", actor), ("reason", reason)):
        problem = unstorable_text(text) if isinstance(text, str) else "must be text"
        if problem is not None:
            raise ArgumentInvalid(name, problem)
    arguments: tuple[Argument, ...] = (
        ("p_ids", "uuid[]", f"{{{_id(job_id)}}}"),
        ("p_actor", "text", actor),
        ("p_reason", "text", reason),
    )
    return Request(Call("cancel", arguments, writes=True), _cancel_outcome)


def drain_estimate(kind: str | type[Job]) -> Request[timedelta | None]:
    name = kind if isinstance(kind, str) else kind.job_config.kind
    if not KIND.fullmatch(name):
        raise ArgumentInvalid("kind", f"must match {KIND.pattern}")
    call = Call("drain_estimate", (("p_kind", "text", name),), columns="extract(epoch FROM f) AS seconds")
    return Request(call, _estimate)


def _receipt(rows: Rows) -> Receipt:
    (row,) = rows
    if row["code"] is not None:
        raise refusal(row)
    return Receipt.of_row(row)


def _receipts(rows: Rows) -> list[Receipt]:
    for row in rows:
        if row["code"] not in (None, "not_submitted"):
            raise refusal(row, ordinal=row["ordinal"] - 1)
    return [Receipt.of_row(row) for row in rows]


def _view(rows: Rows) -> JobView | None:
    return JobView.of_row(rows[0]) if rows else None


def _cancel_outcome(rows: Rows) -> CancelOutcome:
    (row,) = rows
    outcome: CancelOutcome = row["outcome"]
    return outcome


def _estimate(rows: Rows) -> timedelta | None:
    (row,) = rows
    seconds = row["seconds"]
    return None if seconds is None else timedelta(seconds=float(seconds))


def _id(value: object) -> str:
    if not isinstance(value, UUID):
        raise ArgumentInvalid("job_id", "must be a uuid.UUID")
    return str(value)
