"""How the doorbell stands: who can publish hints, who hears them, and which hints met trouble.

Nothing here stops a job, since consumers poll what was admitted; so it is a note, until a broker that was
given has been away for so long that nobody can be waiting for it.
"""

from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, text

from bellwire_schema.finding import Finding
from bellwire_schema.standing import LIVE
from bellwire_schema.tables import consumer, outbox, relay
from bellwire_schema.words import clock, span

# A restart, an upgrade or a failover of a broker is over by then.
_AWAY = timedelta(minutes=5)
_BOTH = "give BELLWIRE_AMQP_URL to relays and consumers alike"
# As both sides declare every queue.
_QUEUES = (
    "every queue is a quorum queue without a dead-letter target: a hint lives 2 min and is delivered at most "
    "20 times (delivery limit); one that is lost is published again by its age"
)
_MENDS = {
    "returned": "its queue was gone: relays and consumers declare it anew; if it stays so, who deletes it?",
    "nacked": "the broker refused it: does a policy bound the length of queues named bellwire.*?",
    "timed out": "the broker was slow to confirm: look for an alarm of its memory or disk, and at its load",
    "refused": "the broker does not let the relay publish: look at the permissions of its user",
}


def broker(connection: Connection, now: datetime) -> list[Finding]:
    """Whether relays can publish, and whether consumers hear."""
    publishing = connection.execute(
        select(relay).where(relay.c.beat_at > now - LIVE).order_by(relay.c.broker_since, relay.c.id)
    ).all()
    hearing = connection.execute(
        select(consumer)
        .where(consumer.c.beat_at > now - LIVE, consumer.c.stopping.is_(False))
        .order_by(consumer.c.host, consumer.c.pid)
    ).all()
    given = [row for row in publishing if row.broker_well is not None]
    told = [row for row in hearing if row.hears is not None]
    if not given and not told:
        text = "none was given: consumers are told by NOTIFY, and poll"
        return [Finding(check="broker", level="ok", text=text)]

    found = []
    for row in given:
        if not row.broker_well:
            since = row.broker_since or now
            found.append(
                Finding(
                    check="broker",
                    level="wrong" if now - since > _AWAY else "note",
                    text=f"away from the relay on {row.host} (pid {row.pid}) since {clock(since)} "
                    f"({span(now - since)}): {(row.broker_error or 'no reason was told').rstrip('.')}; "
                    "consumers poll",
                    mend="is it up, is BELLWIRE_AMQP_URL right (host, user, password, virtual host), has the "
                    "user permissions, has it an alarm of memory or disk? "
                    "Relays come back to it by themselves",
                )
            )
    deaf = [row for row in told if not row.hears]
    if deaf:
        why = {row.hears_error or "no reason was told" for row in deaf}
        who = f"{len(deaf)} of {len(hearing)} consumers do not hear it, such as the one on {deaf[0].host} "
        found.append(
            Finding(
                check="broker",
                level="note",
                text=f"{who}(pid {deaf[0].pid}): {'; '.join(sorted(why)[:3])}; they poll",
                mend="their logs say what they try; they come back to it by themselves",
            )
        )
    for kept, rest, who in ((given, publishing, "relays"), (told, hearing, "consumers")):
        if len(kept) < len(rest):
            text = f"{len(rest) - len(kept)} of {len(rest)} {who} were given none"
            found.append(Finding(check="broker", level="note", text=text, mend=_BOTH))
    well = f"relays that publish hints: {len(given)}; consumers that hear them: {len(told)}"
    return found or [Finding(check="broker", level="ok", text=well)]


def hints(connection: Connection, now: datetime) -> list[Finding]:
    """Trouble with the hints that are out, by kind and error; what the queues do with one."""
    rows = connection.execute(
        text(
            """SELECT kind, split_part(publish_error, ':', 1) AS trouble, count(*) AS n,
                      max(publish_error) AS example, max(published_at) AS latest
                 FROM (SELECT kind, publish_error, published_at FROM bellwire.outbox
                        WHERE admitted_at IS NOT NULL AND publish_error IS NOT NULL LIMIT 100000) AS o
                GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 20"""
        )
    ).all()
    if rows:
        return [
            Finding(
                check="hints",
                level="note",
                text=f"{row.kind}: {row.n:,} unclaimed jobs have a hint that met trouble, "
                f"{span(now - row.latest)} ago the last: {row.example}; they may be polled meanwhile",
                mend=_MENDS.get(row.trouble),
            )
            for row in rows
        ]
    out = select(outbox.c.publishes, outbox.c.published_at).where(outbox.c.admitted_at.is_not(None))
    some = out.limit(100_000).subquery()
    total, again = connection.execute(select(func.count(), func.count(some.c.published_at))).one()
    told = f"no trouble with any of the {total:,} that are out, {again:,} of them published again; {_QUEUES}"
    return [Finding(check="hints", level="ok", text=told)]
