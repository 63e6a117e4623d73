"""A relay that can publish nothing of a kind lets it go to one whose broker is well, for a minute (P31).

Only the calls are made here, as relays make them: each names how its broker is and which kinds it avoids.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from bellwire_testkit.clock import Clock
from tests.integration.relay_stage import Conn, add_kind

KINDS = [f"k{n}" for n in range(7)]
EVERY = {*KINDS, "*"}
LEASE = timedelta(seconds=6)


@dataclass
class Owner:
    """One relay's view of its broker, and what it serves."""

    conn: Conn
    well: bool | None = None
    error: str | None = None
    avoid: Sequence[str] = ()
    id: UUID = field(default_factory=uuid4)
    token: UUID = field(default_factory=uuid4)

    def own(self) -> set[str]:
        rows = self.conn.execute(
            "SELECT kind FROM bellwire.own(%s, %s, 'host', 1, '1', %s, %s, %s, %s)",
            (self.id, self.token, LEASE, self.well, self.error, list(self.avoid)),
        ).fetchall()
        return {kind for (kind,) in rows}

    def mute(self, *kinds: str) -> Owner:
        self.well, self.error, self.avoid = False, "connection refused", kinds
        return self

    def recovered(self) -> Owner:
        self.well, self.error, self.avoid = True, None, ()
        return self

    def said(self) -> tuple[Any, ...]:
        row = self.conn.execute(
            "SELECT broker_well, broker_error, broker_since FROM bellwire.relay WHERE id = %s", (self.id,)
        ).fetchone()
        assert row is not None
        return tuple(row)


@pytest.fixture
def pair(conn: Conn) -> tuple[Owner, Owner]:
    """Two relays that share eight names evenly; nobody has a broker."""
    for kind in KINDS:
        add_kind(conn, kind)
    a, b = Owner(conn), Owner(conn)
    assert a.own() == EVERY
    b.own()
    assert len(a.own()) == len(b.own()) == 4
    return a, b


def test_the_mute_kinds_go_to_the_relay_that_is_well(pair: tuple[Owner, Owner]) -> None:
    a, b = pair
    before = a.own()
    mute = sorted(before - {"*"})[:2]
    b.recovered().own()
    assert a.mute(*mute).own() == before - {*mute}
    assert b.own() == EVERY - (before - {*mute}), "all that was let go, at its next renewal"
    assert a.own() == before - {*mute}, "not taken back while it is avoided"


def test_all_kinds_may_go_and_the_rest_stays(pair: tuple[Owner, Owner]) -> None:
    """What belongs to no kind has no queue, so nobody lets it go for the broker."""
    a, b = pair
    a_kept = a.own() & {"*"}
    b.recovered().own()
    assert a.mute(*EVERY).own() == a_kept
    assert b.own() == EVERY - a_kept


def test_without_a_relay_that_is_well_nobody_lets_go(pair: tuple[Owner, Owner]) -> None:
    a, b = pair
    before = a.own(), b.own()
    assert (a.mute(*KINDS).own(), b.own()) == before, "the other one has no broker: consumers poll"
    b.mute(*KINDS)
    assert (b.own(), a.own()) == (before[1], before[0]), "both are unwell"


def test_one_that_was_well_and_died_counts_for_an_ownership_only(
    pair: tuple[Owner, Owner], clock: Clock
) -> None:
    a, b = pair
    b.recovered().own()
    a.mute(*KINDS).own()
    assert EVERY - a.own() == b.own()
    clock.advance(LEASE + timedelta(seconds=1))
    assert a.own() == EVERY, "alone, it serves what it cannot publish: consumers poll"


def test_it_has_them_back_after_its_minute(pair: tuple[Owner, Owner]) -> None:
    a, b = pair
    b.recovered().own()
    a.mute(*KINDS).own()
    b.own()
    a.recovered().own()
    b.own()
    a.own()
    served = a.own(), b.own()
    assert served[0] | served[1] == EVERY
    assert len(served[0]) == len(served[1]) == 4


def test_well_ones_share_among_themselves_what_the_mute_let_go(conn: Conn, pair: tuple[Owner, Owner]) -> None:
    a, b = pair
    c = Owner(conn)
    for relay in (b.recovered(), c.recovered()):
        relay.own()
    for _ in range(2):
        for relay in (a, b, c):
            relay.own()
    a.mute(*KINDS)
    for _ in range(2):
        for relay in (a, b, c):
            relay.own()
    served = [relay.own() for relay in (a, b, c)]
    assert served[0] <= {"*"}
    assert set().union(*served) == EVERY
    assert max(len(kinds) for kinds in served[1:]) <= 4, "eight names over the two that are well"


def test_an_unwell_relay_keeps_its_share_and_no_more(conn: Conn) -> None:
    """What it avoids does not count for its share, and it takes no more than if all were well."""
    for kind in KINDS:
        add_kind(conn, kind)
    a, b = Owner(conn), Owner(conn)
    assert a.mute(*KINDS[:4]).own() == EVERY
    b.recovered().own()
    assert a.own() == {"*", *KINDS[4:]}
    assert b.own() == {*KINDS[:4]}
    b.conn.execute("DELETE FROM bellwire.kind_owner WHERE relay = %s", (b.id,))
    a.mute()
    assert a.own() == {"*", *KINDS[4:]}, "four of eight"
    assert b.own() == {*KINDS[:4]}


def test_avoiding_without_being_unwell_is_no_avoiding(pair: tuple[Owner, Owner]) -> None:
    """Nobody would make room for what is let go: a share counts those that are not unwell."""
    a, b = pair
    before = a.own()
    b.recovered().own()
    a.well, a.avoid = True, KINDS
    assert a.own() == before
    a.well = None
    assert a.own() == before


@pytest.mark.parametrize("seed", range(12))
def test_nothing_ever_stays_unowned(conn: Conn, seed: int) -> None:
    """Whatever three relays say of their broker and avoid: after two rounds each name is served, once."""
    rng = random.Random(seed)
    for kind in KINDS:
        add_kind(conn, kind)
    relays = [Owner(conn) for _ in range(3)]
    for _ in range(6):
        for relay in relays:
            relay.well = rng.choice((True, False, False, None))
            relay.error = None if relay.well else "gone"
            relay.avoid = rng.sample(KINDS, rng.randint(0, len(KINDS))) if relay.well is False else ()
        for _ in range(2):
            rng.shuffle(relays)
            served = [(relay, relay.own()) for relay in relays]
        served = [(relay, relay.own()) for relay in relays]
        names = [name for _, kinds in served for name in kinds]
        assert sorted(names) == sorted(EVERY), [(r.well, r.avoid, k) for r, k in served]
        if any(relay.well for relay in relays):
            for relay, kinds in served:
                assert not kinds & {*relay.avoid}, "avoided while another one is well"


def test_it_is_said_since_when_the_broker_is_as_it_is(conn: Conn, clock: Clock) -> None:
    relay = Owner(conn)
    relay.own()
    assert relay.said() == (None, None, None)
    relay.recovered().own()
    well, error, since = relay.said()
    assert (well, error) == (True, None)
    assert abs(clock.now() - since) < timedelta(seconds=5)
    clock.advance(timedelta(minutes=1))
    relay.own()
    assert relay.said() == (True, None, since), "the same state, the same beginning"
    relay.mute().own()
    away, error, later = relay.said()
    assert (away, error) == (False, "connection refused")
    assert later >= since + timedelta(minutes=1)
    clock.advance(timedelta(minutes=1))
    relay.error = "x" * 900
    relay.own()
    assert relay.said() == (False, "x" * 240, later), "another error, and still away"
