"""How soon the relay looks again, when it raises its flag, and how it sees claims from outside."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bellwire_relay.claim_rate import ClaimRate
from bellwire_relay.drowsiness import Drowsiness
from bellwire_relay.pace import LEAST, Look, Pace

FLOOR = 0.5


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def look(admitted: int, *, window: int = 100, waiting: bool = True, held: str | None = "window") -> Look:
    return Look(admitted=admitted, window=window, waiting=waiting, held=held)


looks = st.builds(
    Look,
    admitted=st.integers(0, 200),
    window=st.integers(0, 200),
    waiting=st.booleans(),
    held=st.sampled_from(["window", "cap", "tenant_cap", "paused", "no_consumer", None]),
)


@given(st.lists(st.lists(looks, max_size=4), max_size=40))
def test_a_pause_is_never_longer_than_the_floor(cycles: list[list[Look]]) -> None:
    pace = Pace(floor=FLOOR)
    for cycle in cycles:
        pause = pace.after(cycle)
        assert 0.0 <= pause <= FLOOR
        assert pause == 0.0 or pause >= LEAST


def test_idle_pauses_double_to_the_floor_and_start_over_with_the_next_find() -> None:
    pace = Pace(floor=FLOOR)
    pauses = [pace.after([]) for _ in range(12)]
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.008]
    assert pauses[-1] == FLOOR
    pace.after([look(3, waiting=False, held=None)])
    assert pace.after([]) < 0.005


def test_under_pressure_it_halves_while_more_than_half_is_taken_and_doubles_while_none_is() -> None:
    pace = Pace(floor=FLOOR)
    first = pace.after([look(100)])
    assert first == LEAST, "from rest the next look follows at once"
    slower = [pace.after([look(0)]) for _ in range(4)]
    assert slower == [2 * LEAST, 4 * LEAST, 8 * LEAST, 16 * LEAST]
    assert pace.after([look(30)]) == 16 * LEAST, "some, but not half: stay"
    assert pace.after([look(60)]) == 8 * LEAST
    assert pace.after([look(100)]) == 2 * LEAST, "all of it: somebody may have waited"


def test_short_pauses_grow_a_little_while_two_thirds_of_the_window_stay_out() -> None:
    pace = Pace(floor=FLOOR)
    pace.after([look(100)])
    assert pace.after([look(20)]) == 1.25 * LEAST
    assert pace.after([look(34)]) == 1.25 * LEAST, "a third: stay"
    pauses = [pace.after([look(5)]) for _ in range(20)]
    assert pauses[-1] < 0.021, "not so long that an urgent job would notice"


@settings(max_examples=30)
@given(st.integers(1, 400), st.floats(0.0005, 0.05))
def test_throughput_is_not_window_divided_by_floor(window: int, service: float) -> None:
    """Consumers that take `window` claims in `service` seconds are served at half of that rate or better."""
    pace, now, taken_at, claimed = Pace(floor=FLOOR), 0.0, 0.0, 0
    out = window
    pause = pace.after([look(window, window=window)])
    while now < 5.0:
        now += max(pause, 0.0005)
        done = min(out, int((now - taken_at) / service * window))
        if done:
            taken_at = now
        claimed += done
        out = window
        pause = pace.after([look(done, window=window)])
    assert claimed >= 0.4 * window * 5.0 / max(service, 0.001) * min(1.0, service / (service + 2 * LEAST))


def test_what_could_go_at_once_does() -> None:
    assert Pace(floor=FLOOR).after([look(10, held=None)]) == 0.0


def test_what_nobody_may_run_keeps_nobody_awake() -> None:
    pace = Pace(floor=FLOOR)
    held = [look(0, held="paused"), look(0, held="no_consumer")]
    assert [pace.after(held) for _ in range(12)][-1] == FLOOR
    assert not pace.pressed


def test_the_flag_is_raised_for_a_long_pause_and_renewed_before_it_ends() -> None:
    clock = Hand()
    drowsiness = Drowsiness(clock=clock)
    assert drowsiness.wanted(0.004) is None, "not worth a write"
    assert drowsiness.wanted(0.5) == "sleep"
    assert drowsiness.slept(clock.now + 6), "it was down: look once more"
    assert drowsiness.pause(0.004, pressed=False, floor=FLOOR) == FLOOR
    assert drowsiness.pause(0.004, pressed=True, floor=FLOOR) == 0.004, "slots are not notified"
    clock.now += 4.0
    assert drowsiness.wanted(0.5) is None
    clock.now += 0.8
    assert drowsiness.wanted(0.5) == "sleep"
    assert not drowsiness.slept(clock.now + 6), "it had been up all the time"


def test_a_pause_ends_with_the_flag() -> None:
    clock = Hand()
    drowsiness = Drowsiness(clock=clock)
    drowsiness.slept(clock.now + 0.2)
    assert drowsiness.pause(0.5, pressed=False, floor=FLOOR) == pytest.approx(0.2)


def test_a_storm_lowers_the_flag_for_longer_each_time() -> None:
    clock = Hand()
    drowsiness = Drowsiness(clock=clock)
    awake = []
    for _ in range(3):
        drowsiness.slept(clock.now + 60)
        clock.now += 1.0
        for _ in range(30):
            clock.now += 0.01
            drowsiness.nudged()
        assert drowsiness.wanted(0.5) == "wake"
        drowsiness.woke()
        assert drowsiness.pause(0.5, pressed=False, floor=FLOOR) == 0.05, "nobody notifies now: look often"
        since = clock.now
        while drowsiness.wanted(0.5) is None:
            clock.now += 0.1
        awake.append(clock.now - since)
    assert awake == pytest.approx([2.0, 4.0, 8.0], abs=0.3)


def test_the_flag_stays_down_while_jobs_go_thick() -> None:
    """Else it is tried again and again in mid-load, and each try has all who submit wait for each other."""
    clock = Hand()
    drowsiness = Drowsiness(clock=clock)
    for lap in range(300):
        clock.now += 0.1
        drowsiness.admitted(3)
        assert lap < 8 or drowsiness.wanted(0.5) is None
    assert drowsiness.pause(0.5, pressed=False, floor=FLOOR) == 0.05, "nobody notifies now: look often"
    since = clock.now
    while drowsiness.wanted(0.5) is None:
        clock.now += 0.1
        drowsiness.admitted(0)
    assert clock.now - since == pytest.approx(1.5, abs=0.5)
    for _ in range(30):
        clock.now += 0.1
        drowsiness.admitted(1)
        assert drowsiness.wanted(0.5) == "sleep", "ten a second are few"


@given(st.lists(st.tuples(st.floats(0, 0.4), st.booleans(), st.floats(0, 0.5)), max_size=200))
def test_it_is_written_at_most_once_a_second(steps: list[tuple[float, bool, float]]) -> None:
    clock = Hand()
    drowsiness = Drowsiness(clock=clock)
    writes = []
    for passed, nudged, pause in steps:
        clock.now += passed
        if nudged:
            drowsiness.nudged()
        match drowsiness.wanted(pause):
            case "sleep":
                drowsiness.slept(clock.now + 6)
            case "wake":
                drowsiness.woke()
            case None:
                continue
        writes.append(clock.now)
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(writes))


LINE = ("work", 1)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=50))
def test_claims_are_what_was_out_and_is_no_more(steps: list[tuple[int, int]]) -> None:
    clock = Hand()
    rate = ClaimRate(period=1000.0, clock=clock)
    out = claimed = 0
    for wanted, admits in steps:
        claims = min(wanted, out)
        out += admits - claims
        claimed += claims
        clock.now += 0.01
        rate.saw({LINE: admits} if admits else {}, {LINE: out} if out else {})
        assert sum(rate.recent().values()) == claimed


def test_only_the_last_second_counts() -> None:
    clock = Hand()
    rate = ClaimRate(clock=clock)
    rate.saw({LINE: 10}, {LINE: 10})
    clock.now += 0.5
    rate.saw({}, {LINE: 4})
    assert rate.recent() == {LINE: 6}
    clock.now += 0.9
    rate.saw({}, {LINE: 1})
    assert rate.recent() == {LINE: 9}
    clock.now += 0.2
    assert rate.recent() == {LINE: 3}
    clock.now += 1.0
    assert rate.recent() == {}


def test_what_another_relay_admitted_counts_only_once_it_is_taken() -> None:
    rate = ClaimRate(clock=Hand())
    rate.saw({}, {LINE: 8})
    assert rate.recent() == {}
    rate.saw({}, {})
    assert rate.recent() == {LINE: 8}
