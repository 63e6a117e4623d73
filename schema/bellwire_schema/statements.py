"""The text of every server call, and the rows it answers with.

Invariant: a call's text stands here once, for the plain functions of `transitions.py` and for the daemons'
own. It never changes at run time, so a server keeps its plan; every parameter is cast, so its type never
depends on the values. What a call means stands in `sql/`, at the function of the same name.
"""

from datetime import datetime, timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

__all__ = [
    "Admitted",
    "Beat",
    "Cancelled",
    "Claimed",
    "Holder",
    "Mended",
    "Promoted",
    "Receipt",
    "Recovered",
    "Redriven",
    "Repeated",
    "Settled",
    "Superseded",
]


class Receipt(NamedTuple):
    """What became of one submission; `code` and `detail` say why it was refused."""

    ordinal: int
    job_id: UUID | None
    outcome: str | None
    state: str | None
    run_at: datetime | None
    code: str | None
    detail: Any


class Claimed(NamedTuple):
    """One claimed job, as its consumer needs it."""

    job_id: UUID
    attempt_id: UUID
    token: UUID
    kind: str
    version: int
    attempt: int
    generation: int
    payload: Any
    codec: str
    tenant: str
    key: str | None
    priority: int
    run_at: datetime
    deadline_at: datetime | None
    remaining: timedelta | None
    started_at: datetime
    lease: timedelta
    timeout: timedelta | None
    progress_timeout: timedelta | None
    checkpoint: Any
    attempts_used: int
    trace_context: Any


class Beat(NamedTuple):
    """What a heartbeat says of one lease: alive, busy, lost, timed_out or stalled."""

    token: UUID
    status: str
    cancel_requested_at: datetime | None
    cancel_actor: str | None
    cancel_reason: str | None


class Settled(NamedTuple):
    """What became of one attempt: settled, already, busy or lost; and the job's state now."""

    attempt_id: UUID
    status: str
    state: str | None


class Promoted(NamedTuple):
    """How many became ready; when the next is due, by the database's clock, and how far off that is."""

    promoted: int
    next_due: datetime | None
    due_in: timedelta | None


class Recovered(NamedTuple):
    """One job taken back from an expired lease."""

    job_id: UUID
    kind: str
    outcome: str
    state: str
    consumer: UUID


class Cancelled(NamedTuple):
    """`outcome`: cancelled, requested, too_late or not_found."""

    job_id: UUID
    outcome: str


class Superseded(NamedTuple):
    """A job that gave its key away, and where it stands: cancelled, or running with a cancel request."""

    job_id: UUID
    state: str


class Redriven(NamedTuple):
    """`outcome`: redriven, or why not; `holder` is the job that has the key, where that is why."""

    job_id: UUID
    outcome: str
    holder: UUID | None


class Admitted(NamedTuple):
    """One kind and version that has wake-ups, after the cycle.

    `least`: the slots of its smallest live consumer; `hearers`: how many there are.
    """

    kind: str
    version: int
    job_ids: list[UUID]
    outstanding: int
    win: int
    waiting: bool
    held: str | None
    least: int
    hearers: int


class Repeated(NamedTuple):
    """Wake-ups of one kind and version whose hint is to be published again; the rest as in `Admitted`."""

    kind: str
    version: int
    job_ids: list[UUID]
    least: int
    hearers: int


class Holder(NamedTuple):
    """A session that keeps an expired job's row; `ended`: it was ours, and is no more."""

    pid: int
    application_name: str
    ended: bool


class Mended(NamedTuple):
    """Wake-ups without a ready job, ready jobs without a wake-up, where to go on (None: from the start)."""

    orphans: int
    missing: int
    position: UUID | None
    wakeup_position: UUID | None


SUBMIT: LiteralString = (
    "SELECT ordinal, job_id, outcome, state, run_at, code, detail"
    " FROM bellwire.try_submit_many(%s::jsonb) ORDER BY ordinal"
)
# From JSON; what a submission leaves out has the default of an ordinary submit.
REPLACE: LiteralString = """
    SELECT job_id FROM bellwire.replace(%s::uuid[], ARRAY(
        SELECT jsonb_populate_record(
                   ROW(e.n::integer, NULL, NULL, NULL, '', NULL, NULL, 0, NULL, bellwire.now(), NULL, NULL,
                       NULL, NULL, 'replace', true, NULL, 'json', NULL)::bellwire.submission, e.job)
          FROM jsonb_array_elements(%s::jsonb) WITH ORDINALITY AS e(job, n) ORDER BY e.n))
"""
SUPERSEDE: LiteralString = "SELECT job_id, state FROM bellwire.supersede(%s::uuid[], %s::uuid[])"
CANCEL: LiteralString = "SELECT job_id, outcome FROM bellwire.cancel(%s::uuid[], %s::text, %s::text)"

CLAIM: LiteralString = """
    SELECT job_id, attempt_id, token, kind, version, attempt, generation, payload, codec, tenant, key,
           priority, run_at, deadline_at, remaining, started_at, lease, timeout, progress_timeout, checkpoint,
           attempts_used, trace_context
      FROM bellwire.claim(%s::uuid, %s::text, %s::text, %s::text[], %s::smallint[], %s::uuid[], %s::uuid[],
                          %s::uuid[], %s::interval)
"""
# The consumer's own form: JSON stays text until the job's class reads it, and durations are seconds.
CLAIM_AS_TEXT: LiteralString = """
    SELECT job_id, attempt_id, token, kind, version, attempt, payload::text, tenant, key, started_at,
           extract(epoch FROM started_at - run_at)::float8, deadline_at,
           extract(epoch FROM remaining)::float8, extract(epoch FROM lease)::float8,
           extract(epoch FROM timeout)::float8, extract(epoch FROM progress_timeout)::float8, checkpoint::text
      FROM bellwire.claim(%s::uuid, %s::text, %s::text, %s::text[], %s::smallint[], %s::uuid[], %s::uuid[],
                          %s::uuid[], %s::interval)
"""
HEARTBEAT: LiteralString = """
    SELECT token, status, cancel_requested_at, cancel_actor, cancel_reason
      FROM bellwire.heartbeat(%s::uuid[], %s::uuid[], %s::bigint[], %s::bigint[], %s::text[])
"""
RELEASE_DOUBTFUL: LiteralString = "SELECT job_id FROM bellwire.release_doubtful(%s::uuid, %s::uuid[])"

# Every ending names job, token and attempt, three parallel lists; then come its own.
SUCCEED: LiteralString = """
    SELECT * FROM bellwire.succeed(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[]::jsonb[])
"""
# Hundreds of rows that say "settled" would be read for nothing: of a success only what is otherwise is told.
SUCCEED_EXCEPTIONS: LiteralString = """
    SELECT * FROM bellwire.succeed(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[]::jsonb[])
     WHERE status <> 'settled'
"""
RETRY: LiteralString = """
    SELECT * FROM bellwire.retry(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::text[],
                                 %s::float8[], %s::interval[])
"""
THROTTLE: LiteralString = """
    SELECT * FROM bellwire.throttle(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[],
                                    %s::interval[], %s::text[])
"""
SNOOZE: LiteralString = """
    SELECT * FROM bellwire.snooze(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::interval[])
"""
FAIL: LiteralString = """
    SELECT * FROM bellwire.fail(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::text[])
"""
STOP: LiteralString = "SELECT * FROM bellwire.stop(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[])"
RELEASE: LiteralString = "SELECT * FROM bellwire.release(%s::uuid[], %s::uuid[], %s::uuid[])"

BEGIN_ATTEMPT: LiteralString = "SELECT bellwire.begin_attempt(%s::uuid, %s::interval)"
COMPLETE: LiteralString = "SELECT bellwire.complete(%s::uuid, %s::uuid, %s::uuid, %s::jsonb)"
CHECKPOINT: LiteralString = "SELECT bellwire.checkpoint(%s::uuid, %s::uuid, %s::jsonb)"
HOLD_TOKEN: LiteralString = "SELECT bellwire.hold_token(%s::uuid, %s::uuid)"  # noqa: S105 - a lease's token

PROMOTE: LiteralString = (
    "SELECT promoted, next_due, next_due - bellwire.now() FROM bellwire.promote(%s::integer)"
)
RECOVER: LiteralString = (
    "SELECT job_id, kind, outcome, state, consumer FROM bellwire.recover(%s::integer, %s::float8[])"
)
EXPIRE: LiteralString = "SELECT job_id, kind FROM bellwire.expire(%s::integer)"
PRUNE: LiteralString = "SELECT bellwire.prune(%s::integer)"
MEND: LiteralString = (
    "SELECT orphans, missing, position, wakeup_position FROM bellwire.mend(%s::uuid, %s::uuid, %s::integer)"
)
OVERDUE: LiteralString = "SELECT bellwire.overdue(%s::interval, %s::integer)"
AWAIT_ROW: LiteralString = "SELECT bellwire.await_row(%s::uuid)"
EVICT: LiteralString = "SELECT pid, application_name, ended FROM bellwire.evict()"
OWN: LiteralString = (
    "SELECT kind FROM bellwire.own(%s::uuid, %s::uuid, %s::text, %s::integer, %s::text, %s::interval,"
    " %s::boolean, %s::text, %s::text[])"
)
DISOWN: LiteralString = "SELECT bellwire.disown(%s::uuid, %s::uuid)"
SLEEP: LiteralString = "SELECT bellwire.sleep(%s::uuid, %s::uuid, %s::interval)"
WAKE: LiteralString = "SELECT bellwire.wake(%s::uuid, %s::uuid)"
ADMIT: LiteralString = (
    "SELECT kind, version, job_ids, outstanding, win, waiting, held, least, hearers"
    " FROM bellwire.admit(%s::uuid, %s::uuid, %s::text[], %s::smallint[], %s::integer[], %s::boolean)"
)
REPUBLISH: LiteralString = (
    "SELECT kind, version, job_ids, least, hearers"
    " FROM bellwire.republish(%s::uuid, %s::uuid, %s::boolean, %s::integer)"
)
NOTE_PUBLISH: LiteralString = "SELECT bellwire.note_publish(%s::uuid, %s::uuid, %s::uuid[], %s::text[])"
MEASURE: LiteralString = "SELECT bellwire.measure(%s::uuid, %s::uuid, %s::text[], %s::float8[])"

REDRIVE: LiteralString = (
    "SELECT job_id, outcome, holder"
    " FROM bellwire.redrive(%s::uuid[], %s::integer[], %s::text, %s::text, %s::timestamptz, %s::boolean)"
)
HASTEN: LiteralString = "SELECT job_id FROM bellwire.hasten(%s::uuid[], %s::text, %s::text)"
REPRIORITISE: LiteralString = (
    "SELECT job_id FROM bellwire.reprioritise(%s::uuid[], %s::smallint, %s::text, %s::text)"
)
BEAT_CONSUMER: LiteralString = """
    SELECT bellwire.beat_consumer(%s::uuid, %s::text, %s::text, %s::text, %s::integer, %s::integer,
                                  %s::text[], %s::smallint[], %s::boolean, %s::boolean, %s::text)
"""
FORGET_CONSUMER: LiteralString = "SELECT bellwire.forget_consumer(%s::uuid)"
