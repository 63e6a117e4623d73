"""Order across tenants: shares by weight, and a bound on what a neighbour's flood costs."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellwire_relay.rotation import Place, Queue, rotate
from tests.unit.rotation_simulator import Arrival, World

names = st.text(alphabet="abcdefghij", min_size=0, max_size=2)
queues = st.dictionaries(
    names,
    st.builds(
        Queue,
        waiting=st.integers(0, 30),
        allowed=st.none() | st.integers(-2, 30),
        weight=st.integers(1, 5),
    ),
    max_size=12,
)
places = st.builds(Place, tenant=names, spent=st.integers(0, 5))


@given(queues, places, st.integers(0, 200))
def test_deals_out_exactly_what_there_is(tenants: dict[str, Queue], place: Place, quota: int) -> None:
    turns = rotate(tenants, place, quota)
    assert sum(turns.taken.values()) == min(quota, sum(q.available for q in tenants.values()))
    assert all(0 < n <= tenants[name].available for name, n in turns.taken.items())


@given(queues, places, st.lists(st.integers(0, 6), max_size=12))
def test_many_small_cycles_deal_as_one_large_one(
    tenants: dict[str, Queue], place: Place, quotas: list[int]
) -> None:
    """The remembered place loses nothing: neither a tenant's turn nor the rest of its weight."""
    whole = rotate(tenants, place, sum(quotas))
    left = dict(tenants)
    taken: Counter[str] = Counter()
    for quota in quotas:
        turns = rotate(left, place, quota)
        place = turns.place
        for name, n in turns.taken.items():
            taken[name] += n
            queue = left[name]
            left[name] = Queue(queue.available - n, weight=queue.weight)
    assert dict(taken) == dict(whole.taken)


@given(st.dictionaries(names, st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 400))
def test_shares_follow_weights(weights: dict[str, int], quota: int) -> None:
    """With enough waiting everywhere, nobody is ever more than one turn from its share."""
    tenants = {name: Queue(waiting=10_000, weight=weight) for name, weight in weights.items()}
    taken = rotate(tenants, Place(), quota).taken
    rounds, _ = divmod(quota, sum(weights.values()))
    for name, weight in weights.items():
        assert rounds * weight <= taken.get(name, 0) <= (rounds + 1) * weight


@given(queues, places)
def test_between_two_turns_of_a_tenant_all_others_have_had_theirs(
    tenants: dict[str, Queue], place: Place
) -> None:
    left = {name: Queue(queue.available, weight=queue.weight) for name, queue in tenants.items()}
    passed: dict[str, int] = dict.fromkeys(left, 0)
    """How many jobs of others went since each tenant's last one."""
    while turns := rotate(left, place, 1).taken:
        (name,), place = turns, rotate(left, place, 1).place
        left[name] = Queue(left[name].waiting - 1, weight=left[name].weight)
        for other, queue in left.items():
            passed[other] = 0 if other == name or not queue.waiting else passed[other] + 1
            assert passed[other] <= sum(q.weight for n, q in tenants.items() if n != other)


@pytest.mark.parametrize("flood", [10, 1000, 10_000])
def test_a_flood_costs_its_neighbour_one_turn_whatever_its_size(flood: int) -> None:
    arrivals = [Arrival(at=0, tenant="flood") for _ in range(flood)]
    lone = Arrival(at=5, tenant="quiet")
    started = World(slots=4, ahead=1).run([*arrivals, lone], until=50)
    assert next(s.wait for s in started if s.arrival is lone) <= 2


def test_a_flood_delays_each_of_many_tenants_by_a_bounded_amount() -> None:
    """50 tenants of one job a minute beside a flood, 5 slots: at worst one round of everybody waiting."""
    flood = [Arrival(at=0, tenant="flood") for _ in range(20_000)]
    quiet = [Arrival(at=minute * 60, tenant=f"t{i:02}") for minute in range(5) for i in range(50)]
    started = World(slots=5).run([*flood, *quiet], until=400)
    waits = [s.wait for s in started if s.arrival.tenant != "flood"]
    assert len(waits) == len(quiet)
    assert max(waits) <= (50 + 5) / 5 + 1


def test_weights_hold_when_one_job_is_admitted_at_a_time() -> None:
    """The common case: long jobs and few slots, so each cycle admits one."""
    arrivals = [Arrival(at=0, tenant=name) for name in "ab" for _ in range(400)]
    started = World(slots=1, ahead=0, weights={"a": 3}).run(arrivals, until=200)
    shares = Counter(s.arrival.tenant for s in started)
    assert shares["a"] == pytest.approx(3 * shares["b"], abs=3)
