"""Batches lock jobs in id order, whatever order they come in, so that no two of them wait in a circle."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from bellwire_schema import transitions as edges
from bellwire_testkit.databases import Database
from tests.integration.edge_stage import Conn, Stage, race

WAITING: dict[str, Callable[[Conn, list[UUID]], Any]] = {
    "cancel": lambda c, ids: edges.cancel(c, ids, actor="ana", reason="r"),
    "supersede": lambda c, ids: edges.supersede(c, ids, ids),
    "reprioritise": lambda c, ids: edges.reprioritise(c, ids, priority=1, actor="ana", reason="r"),
    "hasten": lambda c, ids: edges.hasten(c, ids, actor="ana", reason="r"),
    "redrive": lambda c, ids: edges.redrive(c, ids, actor="ana", reason="r"),
    "replace": lambda c, ids: edges.replace(
        c, ids, [{"kind": "work", "version": 1, "payload": {}}] * len(ids)
    ),
}


@pytest.fixture
def stage(conn: Conn) -> Stage:
    made = Stage(conn)
    made.kind()
    return made


@pytest.mark.parametrize("edge", [*WAITING, "naive"])
def test_the_first_lock_is_that_of_the_lowest_id(
    database: Database, conn: Conn, stage: Stage, edge: str
) -> None:
    """While it waits for the lowest, it holds none of the others: whoever has that one may take them."""
    low, high = stage.submit(2)
    naive = "UPDATE bellwire.job j SET priority = 1 FROM unnest(%s::uuid[]) AS i(id) WHERE j.id = i.id"
    with race(database, conn) as run:
        run.first.conn.execute("SELECT FROM bellwire.job WHERE id = %s FOR UPDATE", (low,))
        if edge == "naive":
            run.second.execute("SET enable_seqscan = off")
            run.second.execute("SET enable_hashjoin = off")
            run.second.execute("SET enable_mergejoin = off")
            second = run.waits(lambda s: s.conn.execute(naive, ([high, low],)))
        else:
            second = run.waits(lambda s: WAITING[edge](s.conn, [high, low]))
        free = "SELECT id FROM bellwire.job WHERE id = %s FOR UPDATE SKIP LOCKED"
        found = run.first.rows(free, high)
        assert len(found) == (0 if edge == "naive" else 1)
        run.commit()
        second.result()


def test_shuffled_batches_never_wait_in_a_circle(database: Database, conn: Conn, stage: Stage) -> None:
    """Eight sessions, each with its own edges and its own order of the same jobs."""
    ids = stage.submit(20) + stage.submit(20, run_in="1 hour")
    errors: list[BaseException] = []
    settled: list[int] = []

    def session(seed: int) -> None:
        draw = random.Random(seed)
        calls = [WAITING[name] for name in ("reprioritise", "replace", "hasten", "redrive")]
        try:
            with database.connect() as own:
                mine = Stage(own)
                for n in range(12):
                    batch = draw.sample(ids, 25)
                    match (seed + n) % 4:
                        case 0:
                            mine.admit(batch[:5])
                            claims = mine.claim(batch)
                            edges.heartbeat(own, list(reversed(claims)))
                            draw.shuffle(claims)
                            half = len(claims) // 2
                            settled.append(len(edges.release(own, claims[:half])))
                            mine.fail(claims[half:])
                        case 1:
                            WAITING["cancel"](own, batch[:10])
                            edges.promote(own, limit=20)
                        case _:
                            draw.choice(calls)(own, batch)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=session, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not [e for e in errors if isinstance(e, psycopg.errors.DeadlockDetected)]
    assert not errors
    stage.assert_in_step()
