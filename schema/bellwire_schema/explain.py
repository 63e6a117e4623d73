"""Answers "why does this not run?" for a job, a kind or a tenant, in plain English, from what stands in rows.

A job that waits always has at least one reason here: it runs, or visibly waits for a stated reason (G1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, literal, select

from bellwire_schema import reads, standing
from bellwire_schema.standing import Reason
from bellwire_schema.tables import consumer, job, kind, measure, outbox, stuck
from bellwire_schema.words import clock, span

_MANY = 100_000
# Why a job is scheduled, as people say it. Whatever else an edge writes is shown as it is.
_SCHEDULED = {
    "run_at": "it was submitted for then",
    "retry": "its last attempt failed, and this is the backoff",
    "recovered": "its last process died or lost its lease, and this is the backoff",
    "throttled": "the far side asked us to slow down",
    "snoozed": "its handler said: not yet",
    "delay": "the kind's backlog was full",
    "delayed": "the kind's backlog was full",
}
# How an attempt ended, as people say it. Whatever else an edge writes is shown as it is.
_OUTCOMES = {
    "retry": "failed",
    "released": "handed back at shutdown",
    "recovered": "lease expired, taken back",
    "throttled": "told to slow down",
    "snoozed": "said: not yet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One subject, its standing in a line, why, and what happened before."""

    target: str
    subject: str
    headline: str
    counts: dict[str, int] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    history: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        return any(reason.wrong for reason in self.reasons)


def explain(connection: Connection, target: str) -> list[Explanation]:
    """What the target is: a job's id, a kind, a tenant, or a kind and a tenant of one name. Or nothing."""
    try:
        job_id = UUID(target)
    except ValueError:
        job_id = None
    if job_id is not None:
        found = explain_job(connection, job_id)
        if found is not None:
            return [found]
    answers = [explain_kind(connection, target), explain_tenant(connection, target)]
    return [answer for answer in answers if answer is not None]


def explain_job(connection: Connection, job_id: UUID) -> Explanation | None:
    """One job, or None."""
    detail = reads.show_job(connection, job_id)
    if detail is None:
        return None
    now = reads.now(connection)
    match detail.state:
        case "ready":
            reasons = _ready(connection, detail, now)
        case "scheduled":
            reasons = _scheduled(connection, detail, now)
        case "running":
            reasons = _running(connection, detail, now)
        case _:
            reasons = _ended(detail, now)
    trouble = connection.execute(select(stuck).where(stuck.c.job_id == job_id)).one_or_none()
    if trouble is not None:
        text = f"set aside by {trouble.edge}: {trouble.error}; tried again at {clock(trouble.retry_at)}"
        reasons.insert(0, Reason(code="stuck", text=text, wrong=True))
    key = f" key {detail.key}" if detail.key else ""
    tenant_name = f" tenant {detail.tenant}" if detail.tenant else ""
    why = f" ({detail.reason})" if detail.reason else ""
    return Explanation(
        target="job",
        subject=str(job_id),
        headline=f"{detail.kind} v{detail.version}{tenant_name}{key}: {detail.state}{why}",
        reasons=tuple(reasons),
        history=tuple(_history(detail, now)),
    )


def explain_kind(connection: Connection, name: str) -> Explanation | None:
    """One kind, applied or not, or None where no row speaks of it."""
    known = connection.execute(select(kind.c.app).where(kind.c.name == name)).scalar_one_or_none()
    declared = connection.execute(
        select(consumer.c.id).where(literal(name) == func.any(consumer.c.kinds)).limit(1)
    ).first()
    if known is None and declared is None:
        jobs = select(job.c.id).where(job.c.kind == name)
        if connection.execute(jobs.limit(1)).first() is None:
            return None
    now = reads.now(connection)
    counts = _counts(connection, name, None)
    reasons: list[Reason] = []
    if counts["ready"]:
        reasons += standing.relays(connection, name, now)
    reasons += standing.broker(connection, name, now)
    reasons += standing.policy(connection, name, now)
    versions = connection.execute(
        select(outbox.c.version).where(outbox.c.kind == name).distinct().order_by(outbox.c.version)
    ).scalars()
    for version in list(versions) or [None]:
        reasons += standing.consumers(connection, name, version, now)
    for tenant_name in _waiting_tenants(connection, name):
        reasons += standing.tenants(connection, name, tenant_name, now)
    reasons += _oldest(connection, name, None, now)
    return Explanation(
        target="kind",
        subject=name,
        headline=f"{_counted(counts)}; app {known}" if known else f"{_counted(counts)}; applied by nobody",
        counts=counts,
        reasons=tuple(dict.fromkeys(reasons)),
    )


def explain_tenant(connection: Connection, tenant_name: str) -> Explanation | None:
    """One tenant over all kinds, or None where it has neither unfinished work nor one of the newest jobs."""
    kinds = connection.execute(
        select(outbox.c.kind).where(outbox.c.tenant == tenant_name).distinct().order_by(outbox.c.kind)
    ).scalars()
    waiting = list(kinds)
    counts = _counts(connection, None, tenant_name)
    now = reads.now(connection)
    reasons: list[Reason] = []
    if not waiting and not any(counts.values()):
        last = reads.newest_of_tenant(connection, tenant_name)
        if last is None:
            return None
        reasons.append(_last(last, now))
    for name in waiting:
        reasons += standing.relays(connection, name, now)
        reasons += standing.broker(connection, name, now)
        reasons += standing.policy(connection, name, now)
        reasons += standing.consumers(connection, name, None, now)
        reasons += standing.tenants(connection, name, tenant_name, now)
    reasons += _oldest(connection, None, tenant_name, now)
    return Explanation(
        target="tenant",
        subject=tenant_name,
        headline=_counted(counts),
        counts=counts,
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _last(line: reads.JobLine, now: datetime) -> Reason:
    """Where nothing is ready or runs: what became of the newest job."""
    if line.state == "scheduled":
        stands = f"is scheduled until {clock(line.run_at)}"
    else:
        stands = f"{line.state} {span(now - (line.finished_at or now))} ago"
    text = f"nothing is ready or runs; its newest job {line.id} ({line.kind}) {stands}"
    return Reason(code="idle", text=text, since=line.finished_at)


def _ready(connection: Connection, detail: reads.JobDetail, now: datetime) -> list[Reason]:
    if not detail.woken:
        text = "it has no wake-up, so no relay sees it; a relay's mend gives it one within minutes"
        return [
            Reason(code="no_wake_up", text=text, wrong=True),
            *standing.relays(connection, detail.kind, now),
        ]
    reasons = standing.policy(connection, detail.kind, now)
    reasons += standing.tenants(connection, detail.kind, detail.tenant, now)
    reasons += standing.consumers(connection, detail.kind, detail.version, now)
    if detail.admitted_at is not None:
        text = (
            f"admitted {span(now - detail.admitted_at)} ago: the next free slot of a live consumer takes it"
        )
        return [
            *(r for r in reasons if r.code not in ("limit", "tenant_limit")),
            Reason(code="admitted", text=text),
            *_hint(detail, now),
            *standing.broker(connection, detail.kind, now),
        ]
    reasons = [*standing.relays(connection, detail.kind, now), *reasons]
    ahead = standing.ahead_of(connection, detail.id)
    if ahead:
        more = "1,000 or more" if ahead >= 1000 else f"{ahead:,}"
        who = f"tenant {detail.tenant}" if detail.tenant else "its tenant"
        reasons.append(Reason(code="queued", text=f"{more} jobs of {who} go first"))
    since = detail.eligible_at or detail.run_at
    if not reasons:
        text = "nothing holds it back: the relay's next cycle admits it"
        reasons = [Reason(code="next", text=f"ready for {span(now - since)}; {text}", since=since)]
    else:
        reasons.insert(0, Reason(code="waiting", text=f"ready for {span(now - since)}", since=since))
    return [*reasons, *standing.broker(connection, detail.kind, now)]


def _hint(detail: reads.JobDetail, now: datetime) -> list[Reason]:
    """What became of the hint of an admitted job, where there is something to say."""
    if detail.published_at is None:
        return []
    times = {0: "", 1: " once", 2: " twice"}.get(detail.publishes or 0, f" {detail.publishes} times")
    text = f"its hint was published again{times}, the last time {span(now - detail.published_at)} ago"
    if detail.publish_error:
        text += f"; the last trouble: {detail.publish_error}"
    return [Reason(code="hint", text=text, since=detail.published_at)]


def _scheduled(connection: Connection, detail: reads.JobDetail, now: datetime) -> list[Reason]:
    why = _SCHEDULED.get(detail.reason or "", detail.reason or "no reason is recorded")
    error = f" ({detail.last_code})" if detail.last_code and detail.reason != "run_at" else ""
    if detail.run_at > now:
        text = (
            f"scheduled until {clock(detail.run_at)} (in {span(detail.run_at - now)}), because {why}{error}"
        )
        return [Reason(code="scheduled", text=text)]
    text = f"due since {clock(detail.run_at)} ({span(now - detail.run_at)}): a relay makes it ready"
    reasons = standing.relays(connection, "*", now)
    return [Reason(code="due", text=text, since=detail.run_at), *reasons]


def _running(connection: Connection, detail: reads.JobDetail, now: datetime) -> list[Reason]:
    owner = connection.execute(select(consumer).where(consumer.c.id == detail.consumer)).one_or_none()
    started = detail.started_at or now
    where = f"{detail.host or 'an unknown host'} (consumer {detail.consumer}"
    where += f", version {detail.consumer_version})" if detail.consumer_version else ")"
    reasons = [
        Reason(
            code="running",
            text=f"attempt {detail.attempt} runs since {clock(started)} ({span(now - started)}) on {where}",
            since=started,
        )
    ]
    if detail.progress is not None:
        total = f" of {detail.progress_total}" if detail.progress_total else ""
        note = f", {detail.progress_note}" if detail.progress_note else ""
        moved = f", last moved {span(now - detail.progress_at)} ago" if detail.progress_at else ""
        reasons.append(Reason(code="progress", text=f"progress {detail.progress}{total}{note}{moved}"))
    if detail.heartbeat_at is not None and detail.lease_expires_at is not None:
        beat = f"last heartbeat {span(now - detail.heartbeat_at)} ago"
        if detail.lease_expires_at > now:
            reasons.append(
                Reason(code="alive", text=f"{beat}; its lease runs until {clock(detail.lease_expires_at)}")
            )
        else:
            text = (
                f"{beat}; its lease expired {span(now - detail.lease_expires_at)} ago: a relay takes it back"
            )
            reasons.append(Reason(code="lease_expired", text=text, wrong=True))
            reasons += standing.relays(connection, "*", now)
    if owner is None or owner.beat_at <= now - standing.LIVE:
        seen = f"it was last seen {span(now - owner.beat_at)} ago" if owner else "it is not registered"
        reasons.append(Reason(code="consumer_gone", text=f"its consumer is not alive ({seen})", wrong=True))
    if detail.timeout is not None:
        reasons.append(Reason(code="timeout", text=f"times out at {clock(started + detail.timeout)}"))
    if detail.cancel_requested_at is not None:
        reasons.append(_cancel(detail, now))
    return reasons


def _cancel(detail: reads.JobDetail, now: datetime) -> Reason:
    asked = detail.cancel_requested_at or now
    why = f', "{detail.cancel_reason}"' if detail.cancel_reason else ""
    text = f"asked to stop by {detail.cancel_actor or 'somebody'} {span(now - asked)} ago{why}"
    return Reason(code="cancel_requested", text=text, since=asked)


def _ended(detail: reads.JobDetail, now: datetime) -> list[Reason]:
    at = detail.finished_at or now
    text = f"{detail.state} {span(now - at)} ago"
    if detail.reason:
        text += f": {detail.reason.replace('_', ' ')}"
    reasons = [Reason(code=detail.state, text=text, since=at)]
    if detail.state == "failed" and detail.last_code:
        message = f": {detail.last_message}" if detail.last_message else ""
        reasons.append(Reason(code="last_error", text=f"last error {detail.last_code}{message}"))
        if detail.first_code and detail.first_code != detail.last_code:
            reasons.append(Reason(code="first_error", text=f"first error {detail.first_code}"))
    if detail.cancel_requested_at is not None:
        reasons.append(_cancel(detail, now))
    if detail.superseded_by is not None:
        reasons.append(Reason(code="superseded", text=f"job {detail.superseded_by} took its place"))
    return reasons


def _history(detail: reads.JobDetail, now: datetime) -> list[str]:
    lines = [f"submitted {clock(detail.created_at)}"]
    for line in detail.attempts:
        ran = span((line.ended_at or now) - line.started_at)
        error = f": {line.code}" if line.code else ""
        if line.message and line.message != line.code:
            error += f", {line.message}" if error else f": {line.message}"
        outcome = "runs for" if line.ended_at is None else "ran"
        ended = f", {_OUTCOMES.get(line.outcome, line.outcome)}{error}" if line.ended_at else ""
        lines.append(f"attempt {line.number} at {clock(line.started_at)}: {outcome} {ran}{ended}")
    if detail.attempts and detail.state == "scheduled" and detail.run_at > now:
        lines[-1] += f"; next try {clock(detail.run_at)} (in {span(detail.run_at - now)})"
    if detail.generation > 1:
        times = "once" if detail.generation == 2 else f"{detail.generation - 1} times"
        lines.append(f"redriven {times}")
    return lines


def _counts(connection: Connection, name: str | None, tenant_name: str | None) -> dict[str, int]:
    """Ready and running counted now; the others as measured last: counting them reads the whole table."""
    ready = select(outbox.c.job_id)
    running = select(job.c.id).where(job.c.state == "running")
    if name is not None:
        ready, running = ready.where(outbox.c.kind == name), running.where(job.c.kind == name)
    if tenant_name is not None:
        ready, running = (
            ready.where(outbox.c.tenant == tenant_name),
            running.where(job.c.tenant == tenant_name),
        )
    counts = {"ready": _count(connection, ready), "running": _count(connection, running)}
    if name is not None and tenant_name is None:
        row = connection.execute(select(measure).where(measure.c.kind == name)).one_or_none()
        if row is not None:
            counts |= {"scheduled": row.scheduled, "failed": row.failed}
    return counts


def _count(connection: Connection, query: Any) -> int:
    return int(
        connection.execute(select(func.count()).select_from(query.limit(_MANY).subquery())).scalar_one()
    )


def _counted(counts: dict[str, int]) -> str:
    return " · ".join(
        f"{state} {number:,}{' or more' if number >= _MANY else ''}" for state, number in counts.items()
    )


def _waiting_tenants(connection: Connection, name: str, limit: int = 20) -> Sequence[str]:
    """The tenants with the most waiting, looked for among the first wake-ups only."""
    some = select(outbox.c.tenant).where(outbox.c.kind == name, outbox.c.admitted_at.is_(None)).limit(_MANY)
    rows = some.subquery()
    query = select(rows.c.tenant).group_by(rows.c.tenant).order_by(func.count().desc()).limit(limit)
    return list(connection.execute(query).scalars())


def _oldest(connection: Connection, name: str | None, tenant_name: str | None, now: datetime) -> list[Reason]:
    query = select(func.min(outbox.c.eligible_at))
    if name is not None:
        query = query.where(outbox.c.kind == name)
    if tenant_name is not None:
        query = query.where(outbox.c.tenant == tenant_name)
    since = connection.execute(query).scalar_one()
    if since is None:
        return []
    return [
        Reason(code="oldest_ready", text=f"the oldest has been ready for {span(now - since)}", since=since)
    ]
