"""What takes an admission back (P22): pause, lowered cap, version without consumer, replace, reprioritise.

Five causes (a hold is a pause), and nothing else. None gives a rate token back: buckets belong to admission.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from tests.integration.relay_stage import Conn, Muscle, add_kind, admitted, submit

RELAY, TOKEN = UUID(int=7), UUID(int=8)
ALL = 6


class Scene:
    """Six jobs let go, three of each of two tenants, and what can happen then."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        add_kind(conn)
        self.muscle = Muscle(conn, slots=20).beat()
        self.own()
        self.ids = [*submit(conn, count=3, tenant="a"), *submit(conn, count=3, tenant="b")]
        self.cycle()
        assert len(admitted(conn)) == ALL
        # As a rate will keep it; a cycle is free to move the cursor.
        conn.execute("UPDATE bellwire.bucket SET tokens = 2.5, refilled_at = bellwire.now()")
        self.bucket = self.tokens()

    def own(self) -> None:
        self.conn.execute("SELECT bellwire.own(%s, %s, 'host', 1, '1', '1 hour', true)", (RELAY, TOKEN))

    def cycle(self) -> None:
        self.conn.execute("SELECT bellwire.admit(%s, %s, '{}', '{}', '{}')", (RELAY, TOKEN))

    def tokens(self) -> list[tuple[object, ...]]:
        return self.conn.execute("SELECT kind, version, tokens, refilled_at FROM bellwire.bucket").fetchall()

    def of(self, tenant: str) -> int:
        row = self.conn.execute(
            "SELECT count(*) FROM bellwire.outbox WHERE tenant = %s AND admitted_at IS NOT NULL", (tenant,)
        ).fetchone()
        assert row is not None
        count: int = row[0]
        return count


@pytest.fixture
def scene(conn: Conn) -> Scene:
    return Scene(conn)


def policy(change: str) -> Callable[[Scene], None]:
    def write(scene: Scene) -> None:
        scene.conn.execute(change.encode())

    return write


def leave(scene: Scene) -> None:
    scene.muscle.leave()


def stop(scene: Scene) -> None:
    scene.muscle.beat(stopping=True)


def silence(scene: Scene) -> None:
    scene.conn.execute("UPDATE bellwire.consumer SET beat_at = beat_at - interval '16 s'")


BACK: dict[str, tuple[Callable[[Scene], None], tuple[int, int]]] = {
    "a pause of the kind": (policy("UPDATE bellwire.kind SET paused_at = bellwire.now()"), (0, 0)),
    "a pause of a tenant": (
        policy("INSERT INTO bellwire.tenant (name, paused_at) VALUES ('a', bellwire.now())"),
        (0, 3),
    ),
    "a pause of a tenant's kind": (
        policy("INSERT INTO bellwire.kind_tenant (kind, tenant, paused_at) VALUES ('work', 'b', now())"),
        (3, 0),
    ),
    "a hold of a tenant": (
        policy(
            "INSERT INTO bellwire.hold (kind, tenant, until) VALUES ('work', 'a', now() + interval '1 h')"
        ),
        (0, 3),
    ),
    "a hold of the kind": (
        policy("INSERT INTO bellwire.hold (kind, whole_kind, until) VALUES ('work', true, 'infinity')"),
        (0, 0),
    ),
    "a lowered cap of tenants": (policy("UPDATE bellwire.kind SET running_per_tenant = 2"), (2, 2)),
    "an operator's cap": (
        policy("UPDATE bellwire.kind SET override = '{\"running_per_tenant\": 1}'"),
        (1, 1),
    ),
    "a cap of nothing": (policy("UPDATE bellwire.kind SET running = 0"), (0, 0)),
    "a version whose consumer left": (leave, (0, 0)),
    "a version whose consumer stops": (stop, (0, 0)),
    "a version whose consumer fell silent": (silence, (0, 0)),
}


@pytest.mark.parametrize("cause", BACK)
def test_it_is_taken_back_and_no_rate_token_with_it(scene: Scene, cause: str) -> None:
    happens, left = BACK[cause]
    happens(scene)
    scene.cycle()
    assert (scene.of("a"), scene.of("b")) == left
    scene.cycle()
    assert (scene.of("a"), scene.of("b")) == left, "and stays so"
    assert scene.tokens() == scene.bucket


def test_a_lowered_cap_takes_back_the_last_in_order(scene: Scene) -> None:
    claims = scene.muscle.claim(2)
    running = {claim.job_id for claim in claims}
    scene.conn.execute("UPDATE bellwire.kind SET running = 4")
    scene.cycle()
    rows = scene.conn.execute(
        "SELECT job_id FROM bellwire.outbox WHERE job_id = ANY (%s) ORDER BY rank, job_id", (scene.ids,)
    ).fetchall()
    assert set(admitted(scene.conn)) == {job for (job,) in rows[:2]}, "two run, two more may"
    scene.conn.execute("UPDATE bellwire.kind SET running = 1")
    scene.cycle()
    assert admitted(scene.conn) == [], "more run than may: nothing more goes"
    assert running == {c.job_id for c in claims}, "and what runs goes on"
    assert scene.tokens() == scene.bucket


def test_a_lowered_cap_reaches_over_versions(conn: Conn) -> None:
    add_kind(conn)
    Muscle(conn, slots=20, lines=[("work", 1), ("work", 2)]).beat()
    conn.execute("SELECT bellwire.own(%s, %s, 'host', 1, '1', '1 hour')", (RELAY, TOKEN))
    for version in (1, 2):
        submit(conn, count=4, version=version)
    conn.execute("SELECT bellwire.admit(%s, %s, '{}', '{}', '{}')", (RELAY, TOKEN))
    assert len(admitted(conn)) == 8
    conn.execute("UPDATE bellwire.kind SET running = 3")
    for _ in range(3):
        conn.execute("SELECT bellwire.admit(%s, %s, '{}', '{}', '{}')", (RELAY, TOKEN))
        assert len(admitted(conn)) == 3


def test_another_priority_takes_it_back(scene: Scene) -> None:
    job = scene.ids[0]
    scene.conn.execute(
        "SELECT bellwire.reprioritise(ARRAY[%s]::uuid[], 5::smallint, 'ana', 'urgent')", (job,)
    )
    assert set(admitted(scene.conn)) == set(scene.ids) - {job}
    assert scene.tokens() == scene.bucket


def test_a_replace_takes_it_back(scene: Scene) -> None:
    job = {"kind": "work", "version": 1, "key": "k", "unique_until": "pruned", "on_duplicate": "replace"}
    made = []
    for n in range(2):
        row = scene.conn.execute(
            "SELECT job_id, outcome FROM bellwire.try_submit_many(%s::jsonb)",
            (json.dumps([{**job, "payload": {"n": n}}]),),
        ).fetchone()
        assert row is not None
        made.append(row)
        if n == 0:
            scene.cycle()
            assert made[0][0] in admitted(scene.conn)
    assert made[1] == (made[0][0], "replaced")
    assert set(admitted(scene.conn)) == set(scene.ids)
    assert scene.tokens() == scene.bucket


def test_nothing_else_does(scene: Scene) -> None:
    """Nor a broker that is away, a relay that gives the kind away, publishing again, or trouble with it."""
    conn, ids = scene.conn, scene.ids
    heir, token = uuid4(), uuid4()
    conn.execute("SELECT bellwire.own(%s, %s, 'host', 2, '1', '1 hour', true)", (heir, token))
    conn.execute("SELECT bellwire.note_publish(%s, %s, %s, %s)", (RELAY, TOKEN, ids, ["returned"] * ALL))
    conn.execute("SELECT bellwire.republish(%s, %s, true)", (RELAY, TOKEN))
    conn.execute(
        "SELECT bellwire.own(%s, %s, 'host', 1, '1', '1 hour', false, 'gone', '{work}')", (RELAY, TOKEN)
    )
    assert set(admitted(conn)) == set(ids)
    scene.cycle()
    rows = conn.execute(
        "SELECT kind FROM bellwire.own(%s, %s, 'host', 2, '1', '1 hour', true)", (heir, token)
    ).fetchall()
    assert ("work",) in rows
    conn.execute("SELECT bellwire.republish(%s, %s, true)", (heir, token))
    conn.execute("SELECT bellwire.note_publish(%s, %s, %s, %s)", (heir, token, ids, ["nacked"] * ALL))
    conn.execute("SELECT bellwire.admit(%s, %s, '{}', '{}', '{}', false)", (heir, token))
    conn.execute("UPDATE bellwire.consumer SET hears = false, hears_error = 'gone'")
    conn.execute("SELECT bellwire.admit(%s, %s, '{}', '{}', '{}', false)", (heir, token))
    assert set(admitted(conn)) == set(ids)
    assert scene.tokens() == scene.bucket
