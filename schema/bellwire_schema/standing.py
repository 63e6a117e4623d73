"""What holds work back right now, read from what admission itself reads, so that the two tell one story.

Each reason is a code and a sentence for people. Only facts that stand in rows are said; nothing is guessed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, RowMapping, and_, func, or_, select

from bellwire_schema.tables import consumer, hold, job, kind, kind_owner, kind_tenant, outbox, relay, tenant
from bellwire_schema.words import clock, span

# As admission counts: a registry row that was beaten within this long is alive.
LIVE = timedelta(seconds=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why something is as it is. `wrong`: somebody should act."""

    code: str
    text: str
    since: datetime | None = None
    wrong: bool = False


def relays(connection: Connection, name: str, now: datetime) -> list[Reason]:
    """Whether a relay serves the kind."""
    alive = connection.execute(
        select(func.count()).select_from(relay).where(relay.c.beat_at > now - LIVE)
    ).scalar_one()
    if not alive:
        last = connection.execute(select(func.max(relay.c.beat_at))).scalar_one()
        seen = f"the last one was seen {span(now - last)} ago" if last else "none was ever seen"
        return [
            Reason(code="no_relay", text=f"no relay is alive ({seen}): start 'bellwire relay'", wrong=True)
        ]
    owner = connection.execute(
        select(kind_owner.c.expires_at, kind_owner.c.asleep_until, relay.c.host, relay.c.pid)
        .join(relay, relay.c.id == kind_owner.c.relay, isouter=True)
        .where(kind_owner.c.kind == name)
    ).one_or_none()
    if owner is None or owner.expires_at <= now:
        return [
            Reason(
                code="no_owner",
                text="no relay serves this kind yet: a live one takes it within seconds, if it was applied",
                wrong=True,
            )
        ]
    return []


def broker(connection: Connection, name: str, now: datetime) -> list[Reason]:
    """Whether the relay that serves the kind is without its broker, which costs latency and no work."""
    row = connection.execute(
        select(relay.c.broker_error, relay.c.broker_since)
        .join(kind_owner, kind_owner.c.relay == relay.c.id)
        .where(kind_owner.c.kind == name, kind_owner.c.expires_at > now, relay.c.broker_well.is_(False))
    ).one_or_none()
    if row is None:
        return []
    since = f" since {clock(row.broker_since)}" if row.broker_since else ""
    text = f"the broker is away ({row.broker_error or 'no reason was told'}){since}: consumers poll"
    return [Reason(code="broker_away", text=text, since=row.broker_since)]


def consumers(connection: Connection, name: str, version: int | None, now: datetime) -> list[Reason]:
    """Whether somebody can run the kind (in that version), and has room."""
    live = connection.execute(
        select(consumer).where(consumer.c.beat_at > now - LIVE, consumer.c.stopping.is_(False))
    ).all()
    able = [c for c in live if declares(c.kinds, c.versions, name, version)]
    if not able:
        declared = sorted({v for c in live for k, v in zip(c.kinds, c.versions, strict=True) if k == name})
        if declared:
            text = (
                f"no live consumer runs version {version} of {name}; the live ones run "
                f"{', '.join(map(str, declared))}: deploy one that does, or an @upgrade for it"
            )
            return [Reason(code="no_consumer_for_version", text=text, wrong=True)]
        others = f"{len(live)} other consumers are" if live else "no consumer at all is"
        return [
            Reason(
                code="no_consumer",
                text=f"no live consumer runs {name} ({others} alive): start 'bellwire consumer --app …'",
                wrong=True,
            )
        ]
    busy = connection.execute(
        select(func.count())
        .select_from(job)
        .where(job.c.state == "running", job.c.consumer.in_([c.id for c in able]))
    ).scalar_one()
    slots = sum(c.slots for c in able)
    if busy >= slots:
        text = f"all {slots} slots of its {len(able)} live consumers are busy: it waits for one to be free"
        return [Reason(code="slots_busy", text=text)]
    return []


def declares(kinds: Iterable[str], versions: Iterable[int], name: str, version: int | None) -> bool:
    """Whether a consumer's registry row says it runs the kind (in any version where None is asked)."""
    return any(k == name and version in (None, v) for k, v in zip(kinds, versions, strict=True))


def policy(connection: Connection, name: str, now: datetime) -> list[Reason]:
    """What policy says of the whole kind: unknown, retired, paused, held, at its limit."""
    row = connection.execute(select(kind).where(kind.c.name == name)).mappings().one_or_none()
    reasons = _held(connection, name, None, now)
    if row is None:
        text = f"nobody applied the kind {name}: run 'bellwire apply --app …' with the app that handles it"
        return [Reason(code="kind_never_applied", text=text, wrong=True), *reasons]
    if row["retired_at"] is not None:
        text = f"app {row['app']} declares {name} no longer (since {clock(row['retired_at'])})"
        reasons.append(Reason(code="retired", text=text, since=row["retired_at"]))
    reasons += _paused(row, f"the kind {name}", now)
    cap = _limit(row, "running", now)
    if cap is not None:
        used = _taken(connection, name, None)
        if used >= cap:
            reasons.append(Reason(code="limit", text=f"{name} limit {used} of {cap} running or on their way"))
    return reasons


def tenants(connection: Connection, name: str, tenant_name: str, now: datetime) -> list[Reason]:
    """What policy says of one tenant of the kind: paused, held, at its limit."""
    reasons = _held(connection, name, tenant_name, now)
    row = connection.execute(select(tenant).where(tenant.c.name == tenant_name)).mappings().one_or_none()
    if row is not None:
        reasons += _paused(row, f"tenant {tenant_name}", now)
    both = (
        connection.execute(
            select(kind_tenant).where(kind_tenant.c.kind == name, kind_tenant.c.tenant == tenant_name)
        )
        .mappings()
        .one_or_none()
    )
    if both is not None:
        reasons += _paused(both, f"tenant {tenant_name} of {name}", now)
    whole = connection.execute(select(kind).where(kind.c.name == name)).mappings().one_or_none()
    cap = None if whole is None else _limit(whole, "running_per_tenant", now)
    if cap is not None:
        used = _taken(connection, name, tenant_name)
        if used >= cap:
            who = f"tenant {tenant_name}" if tenant_name else "the tenant '' (none was named)"
            reasons.append(Reason(code="tenant_limit", text=f"{who} limit {used} of {cap}"))
    return reasons


def _paused(row: RowMapping, what: str, now: datetime) -> list[Reason]:
    if row["paused_at"] is None or (row["paused_until"] is not None and row["paused_until"] <= now):
        return []
    until = f" until {clock(row['paused_until'])}" if row["paused_until"] else ""
    why = f', "{row["paused_reason"]}"' if row["paused_reason"] else ""
    text = f"{what} paused by {row['paused_by'] or 'somebody'}{until}{why}"
    return [Reason(code="paused", text=text, since=row["paused_at"])]


def _held(connection: Connection, name: str, tenant_name: str | None, now: datetime) -> list[Reason]:
    scope = (
        hold.c.whole_kind if tenant_name is None else and_(hold.c.tenant == tenant_name, ~hold.c.whole_kind)
    )
    rows = connection.execute(select(hold).where(hold.c.kind == name, scope, hold.c.until > now))
    who = f"the kind {name}" if tenant_name is None else f"tenant {tenant_name} of {name}"
    return [
        Reason(
            code="held",
            text=f"{who} held back until {clock(row.until)}: its handler was throttled ({row.code})",
        )
        for row in rows
    ]


def _limit(row: RowMapping, name: str, now: datetime) -> int | None:
    """An operator's override wins until its time is over."""
    override = row["override"] or {}
    if name in override and (row["override_until"] is None or row["override_until"] > now):
        return None if override[name] is None else int(override[name])
    declared: int | None = row[name]
    return declared


def _taken(connection: Connection, name: str, tenant_name: str | None) -> int:
    running = select(func.count()).select_from(job).where(job.c.state == "running", job.c.kind == name)
    out = (
        select(func.count())
        .select_from(outbox)
        .where(outbox.c.kind == name, outbox.c.admitted_at.is_not(None))
    )
    if tenant_name is not None:
        running = running.where(job.c.tenant == tenant_name)
        out = out.where(outbox.c.tenant == tenant_name)
    return int(connection.execute(running).scalar_one() + connection.execute(out).scalar_one())


def ahead_of(connection: Connection, job_id: UUID) -> int:
    """How many wake-ups of the same tenant go before this one, counted up to a thousand."""
    own = connection.execute(select(outbox).where(outbox.c.job_id == job_id)).one_or_none()
    if own is None:
        return 0
    ahead = (
        select(outbox.c.job_id)
        .where(
            outbox.c.kind == own.kind,
            outbox.c.version == own.version,
            outbox.c.tenant == own.tenant,
            outbox.c.admitted_at.is_(None),
            or_(outbox.c.rank < own.rank, and_(outbox.c.rank == own.rank, outbox.c.job_id < job_id)),
        )
        .limit(1000)
        .subquery()
    )
    return int(connection.execute(select(func.count()).select_from(ahead)).scalar_one())
