"""In which order a consumer looks: hints, the net under them, and the net's patience with who is busy."""

from datetime import timedelta

from bellwire_consumer.hints import Announcements, Doorbell, Look
from bellwire_consumer.inbox import Inbox

NET = Look(min_age=timedelta(seconds=1))
LOST = Look(min_age=timedelta(seconds=10))
SLOTS = 4


class Channel:
    def acknowledge(self, tag: int) -> None:
        pass


class Bell:
    """A doorbell under a clock, and the slots of its consumer."""

    def __init__(self, *, poll: bool = True) -> None:
        self.now = 0.0
        self.free = SLOTS
        self.hearing = True
        self.inbox = Inbox(
            on_hint=lambda: None, on_late=lambda: None, on_forgotten=lambda _: None, known=SLOTS
        )
        self.door = Doorbell(
            inbox=self.inbox,
            announcements=Announcements.__new__(Announcements),  # never asked here
            hearing=lambda: self.hearing,
            free=lambda: self.free,
            poll=poll,
            poll_floor=1.0,
            clock=lambda: self.now,
        )

    def ring(self, *ids: str) -> None:
        self.inbox.hear(ids, Channel(), 1)

    def look(self, *, claimed: int | None = None) -> Look | None:
        """One claim, of as many as were named unless told otherwise."""
        look = self.door.look(self.free)
        if look is not None:
            got = len(look.ids or ()) if claimed is None else claimed
            wanted, self.free = self.free, self.free - got
            self.door.answered(look, wanted=wanted, claimed=got)
        return look

    def end(self, count: int = 1) -> None:
        self.free += count
        self.door.freed()


async def test_the_net_is_cast_twice_a_second_under_steady_flow() -> None:
    bell = Bell()
    seen = [(0.0, bell.look())]
    for step in range(40):
        bell.now = step / 10
        bell.ring(f"{step}")
        while (look := bell.look()) is not None:
            seen.append((bell.now, look))
        bell.end()
    assert [when for when, look in seen if look == NET] == [n / 2 for n in range(8)]
    assert [look.ids for _, look in seen if look is not None and look != NET] == [[f"{n}"] for n in range(40)]


async def test_the_net_does_not_wait_for_quiet() -> None:
    bell = Bell()
    bell.free = 1000
    looks = []
    for step in range(100):
        bell.now = step / 50
        bell.ring(f"{step}a", f"{step}b")
        looks.append((bell.now, bell.door.look(1)))  # the inbox never runs empty
        bell.door.answered(looks[-1][1] or NET, wanted=1, claimed=0)
    assert [when for when, look in looks if look == NET] == [0.0, 0.5, 1.0, 1.5]


async def test_hints_fill_the_slots_of_who_is_busy() -> None:
    bell = Bell()
    assert bell.look() == NET
    bell.now = 5.0
    bell.ring("a", "b", "c", "d")
    assert bell.look() == NET, "by the clock, whatever else there is"
    assert bell.look() == Look(["a", "b", "c", "d"])
    assert bell.free == 0
    bell.now = 9.0
    bell.ring("e", "f")
    bell.end()
    assert bell.look() == LOST
    assert bell.look() == Look(["e"]), "hints get their chance first"
    bell.now = 9.6
    bell.end()
    assert bell.look() == Look(["f"])


async def test_a_free_slot_and_nothing_heard_is_what_the_net_is_for() -> None:
    bell = Bell()
    assert bell.look() == NET
    bell.ring("a", "b", "c", "d")
    bell.look()
    assert bell.free == 0
    bell.now = 1.5
    bell.end()
    assert bell.look() is None, "a hint may be on its way"
    assert bell.door.pause == 0.5
    bell.now += 0.501
    assert bell.look() == NET, "though all slots were taken a moment ago"
    assert bell.look() is None
    bell.now += bell.door.pause + 0.001
    assert bell.look() == NET


def ages(bell: Bell, *, seconds: float, polled: int, heard: int) -> list[float]:
    """The ages that the casts of that time ask for; each brings `polled` jobs, beside `heard` by hints."""
    found = []
    ends = bell.now + seconds
    bell.free = 1000
    while bell.now < ends:
        if heard:
            bell.ring(*[f"{bell.now}-{n}" for n in range(heard)])
        for look in (bell.door.look(1000), bell.door.look(1000)):
            if look is not None and look.ids is None:
                found.append(look.min_age.total_seconds())
                bell.door.answered(look, wanted=1000, claimed=polled)
            elif look is not None:
                bell.door.answered(look, wanted=1000, claimed=heard)
        bell.now += 0.05
    return found


async def test_where_hints_are_lost_the_net_is_cast_sooner_and_for_younger_ones() -> None:
    bell = Bell()
    lost = ages(bell, seconds=10, polled=3, heard=0)
    assert lost[0] == 1.0
    assert lost[-1] == Doorbell.LEAST_S
    assert bell.door.losing > 5
    half = ages(bell, seconds=10, polled=1, heard=1)
    assert half[-1] == Doorbell.LEAST_S, "half of them lost is as bad for those"
    healed = ages(bell, seconds=30, polled=0, heard=1)
    assert healed[-1] == 1.0
    assert bell.door.losing == 0


async def test_what_was_polled_while_the_broker_was_away_is_no_lost_hint() -> None:
    bell = Bell()
    bell.free = 1000
    bell.hearing = False
    for _ in range(100):
        bell.now += 0.1
        assert (look := bell.look(claimed=5)) == Look()
        assert look is not None
    bell.hearing = True
    bell.door.registered()
    assert set(ages(bell, seconds=12, polled=0, heard=1)) <= {1.0, 10.0}
    assert bell.door.losing == 0
    # What fell through before it was known to be away is forgotten as well.
    ages(bell, seconds=12, polled=3, heard=0)
    assert bell.door.losing > 5
    bell.door.registered()
    assert bell.door.losing == 0


async def test_a_relay_that_notifies_loses_no_hints() -> None:
    """It cannot publish, and that is told elsewhere; what nobody was notified of the net finds."""
    bell = Bell()
    for _ in range(20):
        bell.door.announced()
        ages(bell, seconds=1, polled=3, heard=0)
        assert bell.door.losing == 0


async def test_a_lost_hint_now_and_then_changes_nothing() -> None:
    bell = Bell()
    bell.free = 1000
    ages(bell, seconds=5, polled=0, heard=5)
    rare = ages(bell, seconds=0.6, polled=1, heard=5) + ages(bell, seconds=5, polled=0, heard=5)
    assert set(rare) == {1.0}
    assert bell.door.losing == 0


async def test_idle_for_long_it_forgets_what_was_lost() -> None:
    bell = Bell()
    ages(bell, seconds=5, polled=3, heard=0)
    assert ages(bell, seconds=60, polled=0, heard=0)[-1] == 1.0
    assert bell.door.losing == 0


async def test_a_claim_of_all_slots_counts_though_some_end_meanwhile() -> None:
    bell = Bell()
    look = bell.door.look(SLOTS)
    assert look == NET
    bell.end(0)
    bell.free = 1  # four were claimed, and one of them has ended already
    bell.door.answered(look, wanted=SLOTS, claimed=SLOTS)
    bell.now = 0.9
    bell.ring("a")
    assert bell.look() == Look(["a"])


async def test_who_registers_asks_for_the_old_ones_at_once_and_a_second_later_for_all() -> None:
    bell = Bell()
    bell.now = 100.0
    bell.look()
    bell.now = 100.1
    bell.door.registered()
    assert bell.look() == LOST
    assert bell.look() is None
    bell.now = 101.2
    assert NET in {bell.look(), bell.look()}


async def test_while_the_broker_is_away_it_polls_at_once() -> None:
    bell = Bell()
    bell.look(claimed=SLOTS)
    bell.end()
    bell.hearing = False
    assert bell.look() == Look()
    assert bell.door.pause == Doorbell.AWAY_S


async def test_without_polling_only_hints_count() -> None:
    bell = Bell(poll=False)
    bell.door.registered()
    assert bell.look() is None
    bell.door.announced()
    bell.now = 60.0
    assert bell.look() is None
    bell.ring("a")
    assert bell.look() == Look(["a"])
