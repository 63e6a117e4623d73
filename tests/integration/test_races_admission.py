"""A cap holds whatever relays do at once, and a pause holds from its COMMIT on."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.edge_stage import CONSUMER, Conn, Stage, race

OLD, NEW = UUID(int=21), UUID(int=22)
OLD_TOKEN, NEW_TOKEN = UUID(int=31), UUID(int=32)
LEASE = timedelta(seconds=5)


@pytest.fixture
def stage(conn: Conn) -> Stage:
    """One kind with a cap of 10, a consumer with a hundred slots, and 50 jobs that want to go."""
    made = Stage(conn)
    made.kind(running=10)
    beat(made)
    made.submit(50)
    return made


def beat(stage: Stage) -> None:
    stage.conn.execute(
        "SELECT bellwire.beat_consumer(%s, 'test', '1', 'host', 1, 100, ARRAY['work'],"
        " ARRAY[1]::smallint[], false)",
        (CONSUMER,),
    )


def own(stage: Stage, relay: UUID = OLD, token: UUID = OLD_TOKEN) -> list[str]:
    rows = stage.rows("SELECT kind FROM bellwire.own(%s, %s, 'host', 1, '1', %s)", relay, token, LEASE)
    return [row["kind"] for row in rows]


def admit(stage: Stage, relay: UUID = OLD, token: UUID = OLD_TOKEN) -> int:
    rows = stage.rows("SELECT job_ids FROM bellwire.admit(%s, %s, '{}', '{}', '{}')", relay, token)
    return sum(len(row["job_ids"]) for row in rows)


def out(stage: Stage) -> int:
    (row,) = stage.rows("SELECT count(*) AS n FROM bellwire.outbox WHERE admitted_at IS NOT NULL")
    n: int = row["n"]
    return n


def test_the_cap_is_what_stops_it(conn: Conn, stage: Stage) -> None:
    assert own(stage) == ["*", "work"]
    assert admit(stage) == 10
    assert admit(stage) == 0
    claims = stage.claim(None, limit=4)
    assert admit(stage) == 0, "running ones count"
    stage.fail(claims[:3])
    assert admit(stage) == 3
    assert out(stage) == 9


@pytest.mark.parametrize("naive", [False, True])
def test_two_admissions_at_once_count_one_after_the_other(
    database: Database, conn: Conn, stage: Stage, naive: bool
) -> None:
    """The second waits for the ownership row, then counts on a fresh snapshot; one statement counts first."""
    own(stage)
    statement = (
        "WITH owner AS (SELECT kind FROM bellwire.kind_owner WHERE kind = 'work' AND token = %s FOR UPDATE),"
        " room AS (SELECT 10 - count(*) AS n FROM owner, bellwire.outbox o"
        " WHERE o.kind = owner.kind AND o.admitted_at IS NOT NULL),"
        " picked AS (SELECT job_id FROM bellwire.outbox WHERE kind = 'work' AND admitted_at IS NULL"
        " ORDER BY rank LIMIT (SELECT n FROM room) FOR UPDATE SKIP LOCKED)"
        " UPDATE bellwire.outbox o SET admitted_at = now() FROM picked WHERE o.job_id = picked.job_id"
    )
    with race(database, conn) as run:
        assert admit(run.first) == 10
        if naive:
            second = run.waits(lambda s: s.conn.execute(statement, (OLD_TOKEN,)).rowcount)
        else:
            second = run.waits(admit)
        run.commit()
        assert second.result() == (10 if naive else 0)
    assert out(stage) == (20 if naive else 10)


def test_a_take_over_waits_for_the_last_admission_and_counts_it(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    """The old relay's admission is under way when its ownership runs out."""
    own(stage)
    with race(database, conn) as run:
        assert admit(run.first) == 10
        clock.advance(LEASE * 2)

        def take_over(second: Stage) -> int:
            assert own(second, NEW, NEW_TOKEN) == ["*", "work"]
            return admit(second, NEW, NEW_TOKEN)

        second = run.waits(take_over)
        run.commit()
        assert second.result() == 0
    assert out(stage) == 10
    assert admit(stage) == 0, "the old one has nothing left to say"


def test_a_relay_that_lost_its_kind_while_it_waited_admits_nothing(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    own(stage)
    # The old relay believes in its ownership; the row is being taken from it.
    with race(database, conn) as run:
        clock.advance(LEASE * 2)
        assert own(run.first, NEW, NEW_TOKEN) == ["*", "work"]
        clock.advance(-LEASE * 2)  # so that it still looks unexpired to whoever reads the old row
        second = run.waits(admit)
        run.commit()
        assert second.result() == 0
    assert out(stage) == 0


def test_two_relays_take_over_and_one_wins(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    own(stage)
    clock.advance(timedelta(minutes=1))
    with race(database, conn) as run:
        mine = own(run.first, NEW, NEW_TOKEN)
        second = run.waits(lambda s: own(s, UUID(int=23), UUID(int=33)))
        run.commit()
        theirs = second.result()
    assert not set(mine) & set(theirs)
    rows = stage.rows("SELECT kind, relay FROM bellwire.kind_owner")
    assert sorted(row["kind"] for row in rows) == ["*", "work"]


def test_relays_that_take_turns_never_pass_the_cap(
    database: Database, conn: Conn, stage: Stage, clock: Clock
) -> None:
    """Ten changes of owner, each with the old one's last admission still under way."""
    relays = [(UUID(int=100 + n), UUID(int=200 + n)) for n in range(10)]
    own(stage, *relays[0])
    for old, new in pairwise(relays):
        with race(database, conn) as run:
            beat(stage)
            admit(run.first, *old)
            run.first.conn.execute("SELECT FROM bellwire.kind_owner WHERE kind = 'work' FOR UPDATE")
            clock.advance(LEASE * 2)

            def take_over(second: Stage, new: Any = new) -> int:
                own(second, *new)
                return admit(second, *new)

            second = run.waits(take_over)
            run.commit()
            second.result()
        assert out(stage) + len(stage.rows("SELECT FROM bellwire.job WHERE state = 'running'")) == 10
        stage.fail(stage.claim(None, limit=3))
        assert admit(stage, *new) == 3
    assert out(stage) == 10
