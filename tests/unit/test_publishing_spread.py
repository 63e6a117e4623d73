"""What goes into each hint, what is remembered of trouble, and when kinds are let go: pure decisions."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bellwire_relay.avoiding import Avoidance
from bellwire_relay.spreading import spread
from bellwire_relay.trouble import Trouble
from bellwire_runtime.broker.hint import MAX_IDS


def jobs(count: int) -> list[UUID]:
    return [UUID(int=n) for n in range(count)]


def sizes(count: int, *, least: int, hearers: int) -> list[int]:
    return [len(part) for part in spread(jobs(count), least=least, hearers=hearers)]


def test_one_job_goes_alone_and_a_backlog_is_dealt_out() -> None:
    assert sizes(1, least=100, hearers=1) == [1]
    assert sizes(3, least=100, hearers=4) == [1, 1, 1]
    assert sizes(40, least=100, hearers=4) == [10, 10, 10, 10]
    assert sizes(41, least=100, hearers=4) == [11, 11, 11, 8]
    assert sizes(400, least=100, hearers=1) == [100, 100, 100, 100]
    assert sizes(400, least=1000, hearers=1) == [MAX_IDS] * 4
    assert sizes(5, least=1, hearers=1) == [1] * 5
    assert sizes(0, least=1, hearers=1) == []
    assert sizes(2, least=0, hearers=0) == [1, 1], "no consumer left since: nothing breaks"


@given(count=st.integers(0, 700), least=st.integers(0, 300), hearers=st.integers(0, 40))
def test_every_id_goes_out_once_and_no_hint_is_too_big(count: int, least: int, hearers: int) -> None:
    parts = spread(jobs(count), least=least, hearers=hearers)
    assert [job for part in parts for job in part] == jobs(count)
    assert all(1 <= len(part) <= max(1, min(least, MAX_IDS)) for part in parts)
    if hearers and least >= MAX_IDS and count <= MAX_IDS:
        assert len(parts) <= hearers, "no more hints than hearers, where their slots allow it"


def test_trouble_is_bounded_and_the_last_word_counts() -> None:
    trouble = Trouble(most=5)
    trouble.note(jobs(3), "nacked")
    trouble.note(jobs(2), "returned: " + "x" * 900)
    trouble.note([UUID(int=n) for n in range(10, 20)], "timed out")
    taken = trouble.take()
    assert len(taken) <= 5
    assert taken[UUID(int=0)] == ("returned: " + "x" * 900)[:200]
    assert taken[UUID(int=2)] == "nacked"
    assert not len(trouble)
    assert trouble.take() == {}


def test_kinds_are_avoided_after_patience_and_for_a_minute() -> None:
    clock = [0.0]
    avoidance = Avoidance(patience=6.0, away=60.0, clock=lambda: clock[0])
    assert avoidance.look(owned={"a", "b"}, mute={"a", "b"}) == []
    clock[0] = 5.9
    assert avoidance.look(owned={"a", "b"}, mute={"a", "b"}) == []
    clock[0] = 6.0
    assert avoidance.look(owned={"a", "b"}, mute={"a", "b"}) == ["a", "b"]
    # "a" went to another relay; the broker is back a second later.
    clock[0] = 7.0
    assert avoidance.look(owned={"b"}, mute=()) == ["a"], "what nobody took is not avoided any longer"
    clock[0] = 65.9
    assert avoidance.look(owned={"b"}, mute=()) == ["a"]
    clock[0] = 66.1
    assert avoidance.look(owned={"b"}, mute=()) == []


def test_a_blip_avoids_nothing() -> None:
    clock = [0.0]
    avoidance = Avoidance(patience=6.0, clock=lambda: clock[0])
    for second in range(20):
        clock[0] = float(second)
        mute = {"a"} if second % 5 else set()
        assert avoidance.look(owned={"a"}, mute=mute) == []
