"""Order inside a tenant: sooner for the urgent, and a bound on how long anybody can be overtaken."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bellwire_relay.rank import HIGHEST, LOWEST, overtaking_ends, rank
from tests.unit.rotation_simulator import Arrival, World

instants = st.datetimes(
    min_value=datetime(2020, 1, 1),  # noqa: DTZ001 - Hypothesis wants its bounds without a zone
    max_value=datetime(2040, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
priorities = st.integers(LOWEST, HIGHEST)
agings = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=1))


@given(instants, instants, priorities, agings)
def test_older_goes_first_within_a_priority(
    a: datetime, b: datetime, priority: int, aging: timedelta
) -> None:
    assert (rank(a, priority, aging) <= rank(b, priority, aging)) == (a <= b)


@given(instants, priorities, priorities, agings)
def test_a_point_of_priority_is_a_head_start_of_one_step(
    at: datetime, low: int, high: int, aging: timedelta
) -> None:
    assert rank(at, low, aging) - rank(at, high, aging) == (high - low) * aging


@given(instants, priorities, instants, priorities, agings)
def test_nothing_is_overtaken_for_ever(
    mine: datetime, priority: int, theirs: datetime, other: int, aging: timedelta
) -> None:
    """Whoever overtakes became eligible before the bound, and the bound is at most 200 steps away."""
    if theirs > mine and rank(theirs, other, aging) < rank(mine, priority, aging):
        assert theirs < overtaking_ends(mine, priority, aging)
    assert overtaking_ends(mine, priority, aging) - mine <= (HIGHEST - LOWEST) * aging


def test_the_lowest_priority_gets_its_turn_under_a_steady_stream_of_the_highest() -> None:
    """One slot, one second a job, a job of the highest priority every second, and a few too many."""
    aging = timedelta(seconds=3)
    lowest = Arrival(at=10, tenant="t", priority=LOWEST)
    stream = [Arrival(at=second, tenant="t", priority=HIGHEST) for second in (0, 0, 0, *range(2000))]
    started = World(slots=1, aging=aging).run([lowest, *stream], until=2000)
    mine = next(s for s in started if s.arrival is lowest)
    bound = (HIGHEST - LOWEST) * aging.total_seconds()
    assert bound <= mine.wait <= bound + 15, "200 steps, and the backlog of its time"
