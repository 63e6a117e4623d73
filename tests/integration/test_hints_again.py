"""What stays admitted is published again by its age alone; trouble with it is counted, no more (P22, P23).

Nothing is published here: the calls are made as a relay makes them, and the database's clock is moved.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import UUID, uuid4

import pytest

from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit

SECOND = timedelta(seconds=1)
LONG = timedelta(hours=9)


class Row(NamedTuple):
    kind: str
    version: int
    job_ids: list[UUID]
    least: int
    hearers: int


class Bell:
    """A relay's calls about hints."""

    def __init__(self, conn: Conn, *, lease: timedelta = LONG) -> None:
        self.conn = conn
        self.relay, self.token = uuid4(), uuid4()
        self.own(lease)

    def own(self, lease: timedelta = LONG) -> None:
        self.conn.execute(
            "SELECT bellwire.own(%s, %s, 'host', 1, '1', %s, true)", (self.relay, self.token, lease)
        )

    def admit(self, notify: bool = False) -> list[Any]:
        return self.conn.execute(
            "SELECT kind, version, job_ids, least, hearers FROM bellwire.admit(%s, %s, '{}', '{}', '{}', %s)",
            (self.relay, self.token, notify),
        ).fetchall()

    def again(self, everything: bool = False, limit: int = 5000) -> list[Row]:
        rows = self.conn.execute(
            "SELECT kind, version, job_ids, least, hearers FROM bellwire.republish(%s, %s, %s, %s)",
            (self.relay, self.token, everything, limit),
        ).fetchall()
        return [Row(*row) for row in rows]

    def ids(self, everything: bool = False, limit: int = 5000) -> list[UUID]:
        return sorted(job for row in self.again(everything, limit) for job in row.job_ids)

    def note(self, ids: list[UUID], errors: list[str]) -> int:
        row = self.conn.execute(
            "SELECT bellwire.note_publish(%s, %s, %s, %s)", (self.relay, self.token, ids, errors)
        ).fetchone()
        assert row is not None
        count: int = row[0]
        return count


def out(conn: Conn, job: UUID) -> tuple[Any, ...]:
    """Admitted or not, publishes, the last trouble, and whether it was published again."""
    row = conn.execute(
        "SELECT admitted_at IS NOT NULL, publishes, publish_error, published_at IS NOT NULL"
        "  FROM bellwire.outbox WHERE job_id = %s",
        (job,),
    ).fetchone()
    assert row is not None
    return tuple(row)


def test_by_age_5_10_20_40_and_then_each_minute(conn: Conn, clock: Clock) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=5).beat()
    (job,) = submit(conn)
    bell = Bell(conn)
    bell.admit()
    assert bell.again() == []
    for turn, seconds in enumerate((5, 10, 20, 40, 60, 60, 60), start=1):
        clock.advance((seconds - 2) * SECOND)
        muscle.beat()
        assert bell.again() == [], f"too early for turn {turn}"
        clock.advance(2 * SECOND)
        assert bell.again() == [Row("work", 1, [job], 5, 1)]
        assert out(conn, job) == (True, turn, None, True)
        assert bell.again() == [], "once a turn"


def test_a_busy_queue_keeps_nothing_from_being_published_again(conn: Conn, clock: Clock) -> None:
    """A net that waits for quiet starves: here hints flow and are claimed each second, and one is lost."""
    add_kind(conn)
    muscle = Muscle(conn, slots=3).beat()
    (lost,) = submit(conn)
    bell = Bell(conn)
    bell.admit()
    again: list[UUID] = []
    for _ in range(6):
        submit(conn, count=2)
        bell.admit()
        clock.advance(SECOND)
        muscle.beat()
        others = [job for job in admitted(conn) if job != lost]
        assert others
        again += bell.ids()
        conn.execute(
            "SELECT bellwire.claim(%s, '1', 'host', '{work}', '{1}', %s, %s, %s)",
            (muscle.id, [uuid4() for _ in others], [uuid4() for _ in others], others),
        )
        conn.execute("DELETE FROM bellwire.job WHERE state = 'running'")
    assert again == [lost]


def test_everything_at_once_whatever_its_age_and_nobody_waits_longer_for_it(conn: Conn, clock: Clock) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=9).beat()
    first = submit(conn, count=3)
    bell = Bell(conn)
    bell.admit()
    clock.advance(6 * SECOND)
    muscle.beat()
    assert bell.ids() == sorted(first)
    second = submit(conn, count=2)
    bell.admit()
    assert bell.ids(everything=True) == sorted(first + second)
    assert out(conn, first[0]) == (True, 1, None, True), "counted once, by age"
    assert out(conn, second[0]) == (True, 0, None, True)
    clock.advance(6 * SECOND)
    assert bell.ids() == sorted(second), "5 s after the last time for these, 10 s for those"


def test_it_stays_admitted_since_when_it_was(conn: Conn, clock: Clock) -> None:
    """How long it has been out is what `explain` tells, and what pollers go by."""
    add_kind(conn)
    muscle = Muscle(conn, slots=9).beat()
    (job,) = submit(conn)
    bell = Bell(conn)
    bell.admit()
    query: LiteralString = "SELECT admitted_at FROM bellwire.outbox"
    before = conn.execute(query).fetchall()
    clock.advance(6 * SECOND)
    muscle.beat()
    assert bell.ids() == bell.ids(everything=True) == [job]
    bell.note([job], ["nacked"])
    assert conn.execute(query).fetchall() == before


def test_a_limit_takes_the_oldest(conn: Conn, clock: Clock) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=9).beat()
    bell = Bell(conn)
    waves = []
    for _ in range(3):
        waves.append(sorted(submit(conn, count=2)))
        bell.admit()
        clock.advance(2 * SECOND)
    clock.advance(6 * SECOND)
    muscle.beat()
    assert [bell.ids(limit=2) for _ in range(4)] == [*waves, []]
    assert [bell.ids(everything=True, limit=2) for _ in range(3)] == waves


def test_each_kind_and_version_by_itself_with_its_hearers(conn: Conn, clock: Clock) -> None:
    """So few ids go into a hint that the smallest consumer of its queue has room for them."""
    add_kind(conn)
    add_kind(conn, "other")
    Muscle(conn, slots=9, lines=[("work", 1), ("other", 1)]).beat()
    Muscle(conn, slots=2, lines=[("work", 1), ("work", 2)]).beat()
    Muscle(conn, slots=1, lines=[("work", 1)]).beat(stopping=True)
    ids = {
        ("work", 1): submit(conn, count=4),
        ("work", 2): submit(conn, version=2),
        ("other", 1): submit(conn, "other", 2),
    }
    told = {("work", 1): (2, 2), ("work", 2): (2, 1), ("other", 1): (9, 1)}
    bell = Bell(conn)
    assert {(r[0], r[1]): (sorted(r[2]), *r[3:]) for r in bell.admit()} == {
        line: (sorted(ids[line]), *told[line]) for line in ids
    }
    rows = bell.again(everything=True)
    assert [(r.kind, r.version) for r in rows] == sorted(ids)
    assert {(r.kind, r.version): (sorted(r.job_ids), r.least, r.hearers) for r in rows} == {
        line: (sorted(ids[line]), *told[line]) for line in ids
    }


def test_only_by_who_serves_the_kind_now(conn: Conn, clock: Clock) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=5).beat()
    (job,) = submit(conn)
    bell = Bell(conn, lease=6 * SECOND)
    bell.admit()
    clock.advance(5 * SECOND)
    muscle.beat()
    stranger = Bell(conn)
    assert stranger.again(everything=True) == []
    assert stranger.note([job], ["returned"]) == 0
    frozen = Bell.__new__(Bell)
    frozen.conn, frozen.relay, frozen.token = conn, bell.relay, uuid4()
    assert frozen.again(everything=True) == [], "another start of the same relay"
    clock.advance(2 * SECOND)
    assert bell.again() == []
    assert bell.again(everything=True) == []
    assert bell.note([job], ["returned"]) == 0
    assert out(conn, job) == (True, 0, None, False)
    stranger.own(6 * SECOND)
    assert stranger.ids() == [job], "the heir goes on by age"


def test_where_nothing_is_due_nothing_is_written(conn: Conn, database: Database, clock: Clock) -> None:
    add_kind(conn)
    Muscle(conn, slots=5).beat()
    bell = Bell(conn)

    def writes(everything: bool = False) -> bool:
        with database.connect(autocommit=False) as session:
            session.execute(
                "SELECT * FROM bellwire.republish(%s, %s, %s)", (bell.relay, bell.token, everything)
            )
            row = session.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchone()
            assert row is not None
            session.rollback()
        return bool(row[0])

    assert not writes(everything=True), "nothing is out"
    submit(conn, count=3)
    assert not writes(everything=True), "nothing is admitted"
    bell.admit()
    assert not writes(), "nothing is old enough"
    assert writes(everything=True)
    clock.advance(5 * SECOND)
    assert writes()


def test_what_somebody_holds_is_left_for_the_next_time(conn: Conn, database: Database) -> None:
    """A claim under way, most likely: waiting for it would stop the loop."""
    add_kind(conn)
    Muscle(conn, slots=5).beat()
    held, free = sorted(submit(conn, count=2))
    bell = Bell(conn)
    bell.admit()
    with database.connect(autocommit=False) as claim:
        claim.execute("DELETE FROM bellwire.outbox WHERE job_id = %s", (held,))
        assert bell.ids(everything=True) == [free]
        assert bell.note([held, free], ["nacked"] * 2) == 1
        claim.rollback()
    assert bell.ids(everything=True) == [held, free]


def test_what_nobody_runs_is_left_to_admission(conn: Conn) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=5).beat()
    (job,) = submit(conn)
    bell = Bell(conn)
    bell.admit()
    muscle.leave()
    assert bell.again(everything=True) == []
    bell.admit()
    assert out(conn, job)[0] is False


@pytest.mark.parametrize(
    "trouble", ["returned: NO_ROUTE", "nacked", "timed out", "refused: ACCESS_REFUSED", "x" * 900]
)
def test_trouble_is_counted_and_takes_nothing_back(conn: Conn, clock: Clock, trouble: str) -> None:
    """P22: however often it fails, and if the relay calls itself unwell; it is published again by age."""
    add_kind(conn)
    muscle = Muscle(conn, slots=5).beat()
    (job,) = submit(conn)
    bell = Bell(conn)
    bell.admit()
    for turn in range(1, 8):
        assert bell.note([job], [trouble]) == 1
        conn.execute(
            "SELECT bellwire.own(%s, %s, 'host', 1, '1', %s, false, %s, '{work}')",
            (bell.relay, bell.token, LONG, trouble),
        )
        bell.admit()
        assert out(conn, job) == (True, turn, trouble[:240], True)
    clock.advance(50 * SECOND)
    muscle.beat()
    assert bell.ids() == []
    clock.advance(11 * SECOND)
    muscle.beat()
    assert bell.ids() == [job]
    assert out(conn, job) == (True, 8, trouble[:240], True), "the last trouble is remembered"
    assert [c.job_id for c in muscle.claim(1)] == [job], "pollers take it meanwhile"


def test_the_last_trouble_counts_and_what_is_gone_is_nothing(conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=2).beat()
    one, two, waiting = sorted(submit(conn, count=3))
    bell = Bell(conn)
    bell.admit()
    assert sorted(admitted(conn)) == [one, two]
    assert bell.note([two, one, waiting, uuid4(), one], ["a", "b", "c", "d", "nacked"]) == 2
    assert out(conn, one)[1:3] == (1, "nacked")
    assert out(conn, two)[1:3] == (1, "a")
    assert out(conn, waiting) == (False, 0, None, False)


def test_a_count_never_overflows(conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=2).beat()
    (job,) = submit(conn)
    bell = Bell(conn)
    bell.admit()
    conn.execute("UPDATE bellwire.outbox SET publishes = 32767, admitted_at = admitted_at - interval '1 h'")
    assert bell.ids() == [job]
    assert out(conn, job)[1] == 32000
    conn.execute("UPDATE bellwire.outbox SET publishes = 32767")
    assert bell.note([job], ["nacked"]) == 1
    assert out(conn, job)[1] == 32000


def test_a_new_admission_starts_anew(conn: Conn, clock: Clock) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=5).beat()
    (job,) = submit(conn)
    bell = Bell(conn)
    bell.admit()
    for seconds in (5, 10):
        clock.advance(seconds * SECOND)
        muscle.beat()
        assert bell.ids() == [job]
    bell.note([job], ["returned"])
    conn.execute("UPDATE bellwire.kind SET paused_at = bellwire.now()")
    bell.admit()
    assert out(conn, job) == (False, 3, "returned", True), "taken back"
    conn.execute("UPDATE bellwire.kind SET paused_at = NULL")
    bell.admit()
    assert out(conn, job) == (True, 0, None, False)
    clock.advance(5 * SECOND)
    muscle.beat()
    assert bell.ids() == [job], "5 s again"


def test_a_poll_leaves_the_young_to_their_hints(conn: Conn, clock: Clock) -> None:
    add_kind(conn)
    muscle = Muscle(conn, slots=9).beat()
    old = submit(conn, count=2)
    bell = Bell(conn)
    bell.admit()
    clock.advance(2 * SECOND)
    young = submit(conn, count=2)
    bell.admit()

    def claim(min_age: timedelta | None, ids: list[UUID] | None = None) -> list[UUID]:
        rows = conn.execute(
            "SELECT job_id FROM bellwire.claim(%s, '1', 'host', '{work}', '{1}', %s, %s, %s"
            + (", %s)" if min_age is not None else ")"),
            (
                muscle.id,
                [uuid4() for _ in range(9)],
                [uuid4() for _ in range(9)],
                ids,
                *([min_age] if min_age is not None else []),
            ),
        ).fetchall()
        return sorted(job for (job,) in rows)

    assert claim(SECOND) == sorted(old)
    assert claim(SECOND) == []
    assert claim(SECOND, ids=young[:1]) == young[:1], "what a hint brings is never too young"
    assert claim(None) == young[1:]
