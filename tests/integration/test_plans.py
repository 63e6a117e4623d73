"""Each hot statement's plan, pinned: its indexes, and how many rows it meets, whatever the statistics say.

A settle that was joined to its batch ran at 793 jobs a second where the planner took a partial index on the
state under stale statistics, and at 35,000 by id. So functions pin their plans by their own settings,
statements guarded by a token never mention the state, and no plan can turn round how a job is joined to a
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from bellwire_schema import transitions as edges
from bellwire_testkit.databases import Template
from tests.integration.edge_stage import Conn, Stage, submission
from tests.integration.plan_stage import ADMITTED, KINDS, TABLES, Explained, grow, quiet

pytestmark = pytest.mark.xdist_group("plans")

BATCH = 50
CONSUMER, RELAY, TOKEN, LISTENER = UUID(int=1), UUID(int=2), UUID(int=3), UUID(int=4)
# Read once, from the table as it was loaded: what the calls are about.
_PICK = """
SELECT (SELECT array_agg(ROW(w.id, w.token, w.attempt_id)) FROM (
            SELECT id, token, attempt_id FROM bellwire.job
             WHERE state = 'running' ORDER BY id DESC LIMIT {0}) AS w),
       (SELECT array_agg(w.job_id) FROM (
            SELECT job_id FROM bellwire.outbox
             WHERE admitted_at IS NOT NULL AND kind = 'kind_1' LIMIT {0}) AS w),
       (SELECT array_agg(w.id) FROM (SELECT id FROM bellwire.job WHERE state = 'scheduled' LIMIT {0}) AS w),
       (SELECT array_agg(w.id) FROM (SELECT id FROM bellwire.job WHERE state = 'succeeded' LIMIT {0}) AS w),
       (SELECT count(*) FROM bellwire.job WHERE state = 'running')
           + (SELECT count(*) FROM bellwire.outbox WHERE admitted_at IS NOT NULL)
"""


class Lease(NamedTuple):
    job_id: UUID
    token: UUID
    attempt_id: UUID


class Grown:
    """A table in one of its conditions, and the jobs of it that calls are made about."""

    def __init__(self, name: str, explained: Explained) -> None:
        self.name = name
        self.explained = explained
        self.leases: list[Lease] = []
        self.admitted: list[UUID] = []
        self.scheduled: list[UUID] = []
        self.done: list[UUID] = []
        self.out = 0  # running, or let go and unclaimed

    def pick(self, conn: Conn) -> None:
        row = conn.execute(_PICK.format(BATCH).encode()).fetchone()
        assert row is not None
        self.leases = [Lease(*each) for each in row[0] or []]
        self.admitted, self.scheduled, self.done = (list(ids or []) for ids in row[1:4])
        self.out = row[4]


def claim(table: Grown, conn: Conn, ids: list[UUID] | None) -> Any:
    return edges.claim(
        conn,
        consumer=CONSUMER,
        version="1",
        host="here",
        kinds=KINDS,
        versions=[1] * len(KINDS),
        attempts=edges.draw(BATCH),
        tokens=edges.draw(BATCH),
        ids=ids,
    )


def columns(table: Grown, value: Any) -> list[Any]:
    return [value] * len(table.leases)


Call = Callable[[Grown, Conn], Any]
MINUTE = timedelta(minutes=1)
SETTLE = {"job": {"job_pkey"}, "attempt": {"attempt_pkey"}}


class Hot(NamedTuple):
    """A call, the indexes it may go by, and the most rows it may meet in all."""

    call: Call
    by: dict[str, set[str]]
    rows: int = 12 * BATCH


def retry(table: Grown, conn: Conn) -> Any:
    return edges.retry(
        conn,
        table.leases,
        classes=columns(table, "retryable"),
        codes=columns(table, "mail_down"),
        messages=columns(table, None),
        randoms=columns(table, 0.5),
    )


def throttle(table: Grown, conn: Conn) -> Any:
    return edges.throttle(
        conn,
        table.leases,
        codes=columns(table, "busy"),
        messages=columns(table, None),
        delays=columns(table, MINUTE),
        scopes=columns(table, "tenant"),
    )


def fail(table: Grown, conn: Conn) -> Any:
    return edges.fail(
        conn,
        table.leases,
        classes=columns(table, "terminal"),
        codes=columns(table, "no"),
        messages=columns(table, None),
    )


def lost(table: Grown) -> list[Lease]:
    """Leases that are somebody else's by now: every look-up is taken."""
    return [Lease(each.job_id, uuid4(), uuid4()) for each in table.leases]


def submit_new(table: Grown, conn: Conn) -> Any:
    return edges.submit(conn, [submission(f"new-{n}", kind="kind_1") for n in range(BATCH)])


def submit_again(table: Grown, conn: Conn) -> Any:
    row = conn.execute(
        "SELECT array_agg(ARRAY[kind, tenant, key]) FROM bellwire.job WHERE id = ANY (%s)", (table.done,)
    ).fetchone()
    assert row is not None
    jobs = [submission(key, kind=kind, tenant=tenant) for kind, tenant, key in row[0] or []]
    return edges.submit(conn, jobs)


def admit(table: Grown, conn: Conn) -> Any:
    return conn.execute(
        "SELECT * FROM bellwire.admit(%s, %s, '{}'::text[], '{}'::smallint[], '{}'::integer[], false)",
        (RELAY, TOKEN),
    ).fetchall()


def republish(table: Grown, conn: Conn, everything: bool) -> Any:
    return conn.execute(
        "SELECT * FROM bellwire.republish(%s, %s, %s, %s)", (RELAY, TOKEN, everything, BATCH)
    ).fetchall()


def note_publish(table: Grown, conn: Conn) -> Any:
    return conn.execute(
        "SELECT bellwire.note_publish(%s, %s, %s, %s)",
        (RELAY, TOKEN, table.admitted, ["returned"] * len(table.admitted)),
    )


HOT: dict[str, Hot] = {
    "submit": Hot(submit_new, {"job": {"job_pkey", "job_key"}}),
    "submit again": Hot(submit_again, {"job": {"job_pkey", "job_key"}}),
    "claim by ids": Hot(
        lambda t, c: claim(t, c, t.admitted),
        {"job": {"job_pkey", "job_ordering"}, "outbox": {"outbox_pkey"}},
    ),
    "claim polled": Hot(
        lambda t, c: claim(t, c, None),
        {"job": {"job_pkey", "job_ordering"}, "outbox": {"outbox_admitted", "outbox_pkey"}},
        # Of each kind as many as might be the oldest.
        rows=4 * BATCH * len(ADMITTED) + 12 * BATCH,
    ),
    "note_publish": Hot(note_publish, {"outbox": {"outbox_pkey"}}),
    "heartbeat": Hot(
        lambda t, c: edges.heartbeat(c, t.leases, progress=columns(t, 1)), {"job": {"job_pkey"}}
    ),
    "succeed": Hot(lambda t, c: edges.succeed(c, t.leases), SETTLE),
    "succeed, lost": Hot(lambda t, c: edges.succeed(c, lost(t)), SETTLE),
    "retry": Hot(retry, SETTLE),
    "throttle": Hot(throttle, SETTLE),
    "snooze": Hot(
        lambda t, c: edges.snooze(c, t.leases, codes=columns(t, "later"), delays=columns(t, MINUTE)), SETTLE
    ),
    "fail": Hot(fail, SETTLE),
    "stop": Hot(lambda t, c: edges.stop(c, t.leases), SETTLE),
    "release": Hot(lambda t, c: edges.release(c, t.leases), SETTLE),
    "complete": Hot(lambda t, c: edges.complete(c, t.leases[0]), SETTLE),
    "checkpoint": Hot(lambda t, c: edges.checkpoint(c, t.leases[0], value="{}"), {"job": {"job_pkey"}}),
    "hold_token": Hot(lambda t, c: edges.hold_token(c, t.leases[0]), {"job": {"job_pkey"}}),
    "promote": Hot(lambda t, c: edges.promote(c, limit=BATCH), {"job": {"job_due", "job_pkey"}}),
    "recover": Hot(
        lambda t, c: edges.recover(c, limit=BATCH, randoms=[0.5]), {"job": {"job_lease", "job_pkey"}}
    ),
    "expire": Hot(
        lambda t, c: edges.expire(c, limit=BATCH),
        {"job": {"job_deadline", "job_pkey"}, "outbox": {"outbox_pkey"}},
        # Running jobs past their deadline are met as well, and left alone.
        rows=40 * BATCH,
    ),
    "cancel": Hot(
        lambda t, c: edges.cancel(c, [*t.admitted, *t.scheduled], actor="ana", reason="closed"),
        {"job": {"job_pkey"}, "outbox": {"outbox_pkey"}},
    ),
    "hasten": Hot(
        lambda t, c: edges.hasten(c, t.scheduled, actor="ana", reason="now"), {"job": {"job_pkey"}}
    ),
    "reprioritise": Hot(
        lambda t, c: edges.reprioritise(c, t.admitted, priority=3, actor="ana", reason="now"),
        {"job": {"job_pkey"}},
    ),
    "prune": Hot(
        lambda t, c: edges.prune(c, limit=BATCH),
        {"job": {"job_finished", "job_pkey"}, "attempt": {"attempt_job"}},
    ),
    "mend": Hot(
        lambda t, c: c.execute("SELECT * FROM bellwire.mend(NULL, NULL, %s)", (BATCH,)),
        {"job": {"job_pkey"}, "outbox": {"outbox_pkey"}},
    ),
    "get_job": Hot(
        lambda t, c: c.execute("SELECT * FROM bellwire.get_job(%s)", t.done[:1]),
        {"job": {"job_pkey"}},
        rows=2,
    ),
    "find_job": Hot(
        lambda t, c: c.execute("SELECT * FROM bellwire.find_job('kind_1', 't1', 'key-21')"),
        {"job": {"job_pkey", "job_key"}},
        rows=2,
    ),
}
# Calls that must read all that runs or all that is out, and nothing else; bounded by slots and windows.
WIDE: dict[str, tuple[Call, dict[str, set[str]]]] = {
    "admit": (
        admit,
        {"job": {"job_running", "job_lease"}, "outbox": {"outbox_waiting", "outbox_admitted", "outbox_pkey"}},
    ),
    # By its age; all that is out is looked at, and only of kinds that have something out.
    "republish": (
        partial(republish, everything=False),
        {"outbox": {"outbox_admitted", "outbox_pkey"}},
    ),
    "republish everything": (
        partial(republish, everything=True),
        {"outbox": {"outbox_admitted", "outbox_pkey"}},
    ),
    "release_doubtful": (
        lambda t, c: edges.release_doubtful(c, consumer=CONSUMER, tokens=[t.leases[0].token]),
        {"job": {"job_running", "job_lease", "job_pkey"}, "attempt": {"attempt_pkey"}},
    ),
    "overdue": (
        lambda t, c: c.execute("SELECT * FROM bellwire.overdue('1 minute', 5)"),
        {"job": {"job_running", "job_lease"}},
    ),
}


def prepare(conn: Conn) -> None:
    """Policy, a relay that owns every kind, and a consumer with many slots."""
    stage = Stage(conn)
    for name in KINDS:
        stage.kind(name)
    conn.execute(
        "INSERT INTO bellwire.kind_owner (kind, relay, token, expires_at)"
        " SELECT name, %s, %s, now() + interval '1 hour' FROM bellwire.kind",
        (RELAY, TOKEN),
    )
    conn.execute(
        "SELECT bellwire.beat_consumer(%s, 'test', '1', 'host', 1, 40, %s::text[], %s::smallint[], false)",
        (LISTENER, KINDS, [1] * len(KINDS)),
    )
    quiet(conn)


@pytest.fixture(
    scope="module", params=["never analysed", "analysed at 0", "analysed at 1", "analysed at 40", "large"]
)
def table(request: pytest.FixtureRequest, template: Template) -> Iterator[Grown]:
    database = template.clone()
    with database.connect() as conn:
        prepare(conn)
        explained = Explained(database)
        grown = Grown(request.param, explained)
        kept = str(request.param).rpartition("analysed at ")[2]
        if request.param != "large":
            # Nothing runs, nothing waits: a partial index looks as if it cost nothing. The session's plans
            # are made now, and nothing tells it later to make new ones.
            if kept.isdigit():
                grow(conn, int(kept), first=0, consumer=CONSUMER, running=0)
                for name in TABLES:
                    conn.execute(f"VACUUM ANALYZE bellwire.{name}".encode())
            grown.leases = [Lease(uuid4(), uuid4(), uuid4())]
            grown.admitted, grown.scheduled, grown.done = [uuid4()], [uuid4()], [uuid4()]
            for call in [*(hot.call for hot in HOT.values()), *(call for call, _ in WIDE.values())] * 6:
                explained.scans(partial(call, grown))
        grow(conn, 300_000 if request.param == "large" else 100_000, first=100, consumer=CONSUMER, running=1)
        if request.param == "large":
            conn.execute("ANALYZE")
        grown.pick(conn)
        yield grown
        explained.close()
    database.drop_unused()


@pytest.mark.parametrize("name", HOT)
def test_a_hot_call_goes_by_its_index(table: Grown, name: str) -> None:
    hot = HOT[name]
    scans = table.explained.scans(lambda conn: hot.call(table, conn))
    assert scans or name == "submit", "auto_explain told nothing"
    for scan in scans:
        assert scan.node != "Seq Scan", scan
        assert scan.index in {"ctid"} | hot.by.get(scan.table, set()), scan
    assert sum(scan.rows for scan in scans) <= hot.rows, scans


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_call_reads_only_what_is_out(table: Grown, name: str) -> None:
    call, by = WIDE[name]
    scans = table.explained.scans(lambda conn: call(table, conn))
    assert scans, "auto_explain told nothing"
    for scan in scans:
        assert scan.node != "Seq Scan", scan
        assert scan.index in {"ctid"} | by.get(scan.table, set()), scan
    assert sum(scan.rows for scan in scans) <= 2 * table.out + 150 * len(KINDS), scans


@pytest.mark.parametrize("table", ["analysed at 1"], indirect=True)
def test_the_trap_is_real(table: Grown) -> None:
    """Without the pins, and with the state named beside the token, the planner reads all that runs."""
    update = (
        "UPDATE bellwire.job j SET last_code = 'x' FROM unnest(%s::uuid[], %s::uuid[]) AS i(id, token)"
        " WHERE j.id = i.id AND j.token = i.token AND j.state = 'running'"
    )
    batch = ([lease.job_id for lease in table.leases], [lease.token for lease in table.leases])
    scans = table.explained.scans(lambda conn: conn.execute(update, batch))
    assert {scan.index for scan in scans} & {"job_running", "job_lease"}, scans


def test_a_relay_that_began_when_little_waited_does_not_read_all_that_waits(template: Template) -> None:
    """Joined by id, a plan made when one job waited read 20,000 at every admission."""
    database = template.clone()
    with database.connect() as conn:
        prepare(conn)
        edges.submit(conn, [submission("early", kind="kind_1")])
        conn.execute("VACUUM ANALYZE bellwire.outbox")
        explained = Explained(database)
        call = partial(admit, Grown("small", explained))
        for _ in range(6):
            explained.scans(call)
        edges.submit(conn, [submission(f"late-{n}", kind="kind_1") for n in range(20_000)])
        met = sum(scan.rows for scan in explained.scans(call) if scan.table == "outbox")
        assert met <= 1000, met
        explained.close()
    database.drop_unused()
