"""Looks for what is wrong with an installation, from its rows and the server's views alone.

Every check answers with a finding even where all is well, so that silence is never taken for health; what it
finds names the mend. Each check is one small function, and a new failure mode gets a new one.
"""

from datetime import datetime, timedelta

from sqlalchemy import Connection, select, text

from bellwire_schema import doorbell, migrate, reads
from bellwire_schema.finding import Check, Finding
from bellwire_schema.integrity import invariants
from bellwire_schema.notifications import notifications
from bellwire_schema.standing import LIVE
from bellwire_schema.tables import kind, kind_owner, relay, stuck
from bellwire_schema.words import clock, span

__all__ = ["CHECKS", "Finding", "examine"]

# A lease that ran out this long ago should have been taken back: relays look every second.
_UNRECOVERED = timedelta(seconds=30)
# A daemon's own session is ended by the server after as long; whoever sits longer is somebody else.
_IDLE = timedelta(seconds=25)
# Below the objective, or without one, so long a wait is in order while everybody is alive.
_OBJECTIVE = timedelta(minutes=15)
_DAEMON_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "25s",
    "tcp_user_timeout": "25s",
    "statement_timeout": "30s",
}


def examine(connection: Connection, *, data: bool = False) -> list[Finding]:
    """All checks, in order; with `data` also the invariants of every row, which reads whole tables."""
    now = reads.now(connection)
    findings = [finding for check in CHECKS for finding in check(connection, now)]
    if data:
        for name, count, example in invariants(connection):
            if count:
                told = f"{count:,} rows break it, such as {example}"
                mend = "report it with this output: no edge writes such rows"
                findings.append(Finding(check=f"data: {name}", level="wrong", text=told, mend=mend))
            else:
                findings.append(Finding(check=f"data: {name}", level="ok", text="holds for every row"))
    return findings


def _schema(connection: Connection, _: datetime) -> list[Finding]:
    status = migrate.status_of(connection)
    if status.ahead:
        told = f"at {status.found}, newer than this command's {status.needed}"
        return [Finding(check="schema", level="note", text=told, mend="use the newer release's command")]
    if not status.current:
        functions = "current" if status.functions_current else "of another release"
        told = f"at {status.found} where {status.needed} is needed; functions are {functions}"
        return [Finding(check="schema", level="wrong", text=told, mend="run 'bellwire migrate'")]
    return [Finding(check="schema", level="ok", text=f"at {status.found}, functions current")]


def _roles(connection: Connection, _: datetime) -> list[Finding]:
    rows = connection.execute(
        text(
            """SELECT r.rolname, s.setconfig FROM pg_roles r
                 LEFT JOIN pg_db_role_setting s ON s.setrole = r.oid
                  AND s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
                WHERE r.rolname IN ('bellwire_relay', 'bellwire_consumer') ORDER BY r.rolname"""
        )
    ).all()
    findings = []
    for role, config in rows:
        have = dict(item.split("=", 1) for item in config or ())
        missing = [name for name, value in _DAEMON_SETTINGS.items() if have.get(name) != value]
        if missing:
            told = (
                f"{role} lacks {', '.join(missing)} in this database: a half-open daemon would keep its locks"
            )
            findings.append(Finding(check="roles", level="wrong", text=told, mend="run 'bellwire migrate'"))
    if len(rows) < 2:
        told = "bellwire_relay or bellwire_consumer does not exist"
        findings.append(Finding(check="roles", level="wrong", text=told, mend="run 'bellwire migrate'"))
    elif not connection.execute(
        text("SELECT pg_has_role('bellwire_relay', 'pg_signal_backend', 'MEMBER')")
    ).scalar_one():
        findings.append(
            Finding(
                check="roles",
                level="note",
                text="bellwire_relay cannot end the session of a half-open consumer",
                mend="as a superuser: GRANT pg_signal_backend TO bellwire_relay",
            )
        )
    return findings or [Finding(check="roles", level="ok", text="daemons' roles have their settings")]


def _relays(connection: Connection, now: datetime) -> list[Finding]:
    rows = connection.execute(select(relay).order_by(relay.c.beat_at.desc())).all()
    live = [row for row in rows if row.beat_at > now - LIVE]
    if live:
        return [Finding(check="relays", level="ok", text=f"{len(live)} alive")]
    seen = (
        f"the last one beat {span(now - rows[0].beat_at)} ago on {rows[0].host}"
        if rows
        else "none was ever seen"
    )
    told = f"no relay is alive ({seen}): nothing new is started"
    return [Finding(check="relays", level="wrong", text=told, mend="start 'bellwire relay'")]


def _ownership(connection: Connection, now: datetime) -> list[Finding]:
    if not connection.execute(select(relay.c.id).where(relay.c.beat_at > now - LIVE).limit(1)).first():
        return []
    owned = select(kind_owner.c.kind).where(kind_owner.c.expires_at > now)
    names = [name for (name,) in connection.execute(select(kind.c.name).order_by(kind.c.name))]
    served = {name for (name,) in connection.execute(owned)}
    orphaned = [name for name in [*names, "*"] if name not in served]
    if orphaned:
        told = f"{len(orphaned)} kinds are served by no live relay: {_some(orphaned)}"
        mend = "start a relay; where one runs, its log says why it does not take them"
        return [Finding(check="ownership", level="wrong", text=told, mend=mend)]
    return [Finding(check="ownership", level="ok", text=f"each of {len(names)} kinds has its relay")]


def _unserved(connection: Connection, _: datetime) -> list[Finding]:
    """Ready work that no live consumer can take, by kind and version."""
    rows = connection.execute(
        text(
            """SELECT o.kind, o.version, min(o.eligible_at) AS since, k.name IS NOT NULL AS applied
                 FROM (SELECT kind, version, eligible_at FROM bellwire.outbox LIMIT 100000) o
                 LEFT JOIN bellwire.kind k ON k.name = o.kind
                WHERE NOT EXISTS (
                    SELECT FROM bellwire.consumer c, unnest(c.kinds, c.versions) AS d (kind, version)
                     WHERE c.beat_at > bellwire.now() - interval '15 seconds' AND NOT c.stopping
                       AND d.kind = o.kind AND d.version = o.version)
                GROUP BY 1, 2, 4 ORDER BY 1, 2"""
        )
    ).all()
    if not rows:
        return [Finding(check="consumers", level="ok", text="everything that is ready has a live consumer")]
    return [
        Finding(
            check="consumers",
            level="wrong",
            text=f"{name} v{version} has ready jobs since {clock(since)} and no live consumer declares it"
            + ("" if applied else ", and nobody applied it"),
            mend="start 'bellwire consumer --app …' with code that runs this version"
            + ("" if applied else ", and run 'bellwire apply'"),
        )
        for name, version, since, applied in rows
    ]


def _ages(connection: Connection, now: datetime) -> list[Finding]:
    rows = connection.execute(
        text(
            """SELECT o.kind, min(o.eligible_at) AS since, coalesce(k.objective, :objective) AS objective
                 FROM (SELECT kind, eligible_at FROM bellwire.outbox LIMIT 100000) o
                 LEFT JOIN bellwire.kind k ON k.name = o.kind
                WHERE k.paused_at IS NULL OR k.paused_until <= bellwire.now()
                GROUP BY o.kind, k.objective ORDER BY 2"""
        ),
        {"objective": _OBJECTIVE},
    ).all()
    late = [(name, since, objective) for name, since, objective in rows if now - since > objective]
    if not late:
        oldest = f"the oldest ready job waits {span(now - rows[0].since)}" if rows else "nothing is ready"
        return [Finding(check="waiting", level="ok", text=oldest)]
    return [
        Finding(
            check="waiting",
            level="wrong",
            text=f"{name}: the oldest ready job waits {span(now - since)}, in order is {span(objective)}",
            mend=f"'bellwire explain {name}' says why",
        )
        for name, since, objective in late
    ]


def _leases(connection: Connection, now: datetime) -> list[Finding]:
    rows = connection.execute(
        text(
            """SELECT id, kind, lease_expires_at FROM bellwire.job
                WHERE state = 'running' AND lease_expires_at < :before ORDER BY lease_expires_at LIMIT 100"""
        ),
        {"before": now - _UNRECOVERED},
    ).all()
    if not rows:
        return [Finding(check="leases", level="ok", text="no lease has been over for long")]
    told = (
        f"{len(rows)} running jobs have a lease that ended up to {span(now - rows[0].lease_expires_at)} ago "
        f"and were not taken back, such as {rows[0].id} ({rows[0].kind})"
    )
    mend = "start a relay; where one runs, a session may keep the rows locked (see the check 'locks')"
    return [Finding(check="leases", level="wrong", text=told, mend=mend)]


def _locks(connection: Connection, now: datetime) -> list[Finding]:
    """Sessions that sit in a transaction with a lock on job rows.

    Row locks stand in the rows themselves; what the server shows is a session that has locked some of the
    table's rows, and for how long it has done nothing since.
    """
    rows = connection.execute(
        text(
            """SELECT DISTINCT a.pid, a.application_name, a.usename, a.state, a.state_change, a.xact_start
                 FROM pg_stat_activity a
                 JOIN pg_locks l ON l.pid = a.pid AND l.relation = 'bellwire.job'::regclass AND l.granted
                  AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
                WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%'
                  AND a.state_change < clock_timestamp() - :idle
                ORDER BY a.xact_start"""
        ),
        {"idle": _IDLE},
    ).all()
    if not rows:
        return [Finding(check="locks", level="ok", text="no idle session keeps jobs locked")]
    return [
        Finding(
            check="locks",
            level="wrong",
            text=f"session {row.pid} ({row.usename}, {row.application_name or 'nameless'}) locks jobs, "
            f"idle for {span(now - row.state_change)} in a transaction begun at {clock(row.xact_start)}",
            mend=f"end that transaction, or SELECT pg_terminate_backend({row.pid})",
        )
        for row in rows
    ]


def _step(connection: Connection, _: datetime) -> list[Finding]:
    """Wake-ups and ready jobs, both ways, in one snapshot; the job side along the newest ids only."""
    orphans, missing = connection.execute(
        text(
            """SELECT (SELECT count(*) FROM (SELECT job_id FROM bellwire.outbox LIMIT 100000) o
                        LEFT JOIN bellwire.job j ON j.id = o.job_id AND j.state = 'ready' WHERE j.id IS NULL),
                      (SELECT count(*) FROM (SELECT id, state FROM bellwire.job ORDER BY id DESC LIMIT 9999) j
                        WHERE j.state = 'ready'
                          AND NOT EXISTS (SELECT FROM bellwire.outbox o WHERE o.job_id = j.id))"""
        )
    ).one()
    if not orphans and not missing:
        return [Finding(check="wake-ups", level="ok", text="in step with ready jobs, both ways")]
    told = f"{orphans} wake-ups without a ready job, {missing} ready jobs without a wake-up"
    mend = "a live relay mends both within minutes; where it does not come back to zero, report it"
    return [Finding(check="wake-ups", level="wrong", text=told, mend=mend)]


def _set_aside(connection: Connection, _: datetime) -> list[Finding]:
    rows = connection.execute(select(stuck).order_by(stuck.c.retry_at).limit(20)).all()
    if not rows:
        return [Finding(check="stuck", level="ok", text="nothing was set aside")]
    return [
        Finding(
            check="stuck",
            level="wrong",
            text=f"job {row.job_id} was set aside by {row.edge}: {row.error}",
            mend="cancel it, or mend what the error names; it is tried again each minute",
        )
        for row in rows
    ]


def _durability(connection: Connection, _: datetime) -> list[Finding]:
    query = "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_standby_names')"
    settings = {row.name: row.setting for row in connection.execute(text(query))}
    findings = []
    if settings.get("fsync") == "off":
        told = "fsync is off: a crash of the machine can lose jobs that were committed"
        findings.append(
            Finding(check="durability", level="note", text=told, mend="turn fsync on in production")
        )
    if not settings.get("synchronous_standby_names"):
        told = (
            "no standby is synchronous: a failover may lose the newest commits, and with them fences and jobs"
        )
        mend = "set synchronous_standby_names where you fail over; on a single server this is as it should be"
        findings.append(Finding(check="durability", level="note", text=told, mend=mend))
    return findings or [Finding(check="durability", level="ok", text="commits survive a failover")]


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


CHECKS: tuple[Check, ...] = (
    _schema,
    _roles,
    _relays,
    _ownership,
    _unserved,
    doorbell.broker,
    doorbell.hints,
    _ages,
    _leases,
    _locks,
    notifications,
    _step,
    _set_aside,
    _durability,
)
