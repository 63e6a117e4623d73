"""Hints are handed round in turn: a consumer whose slots are taken for long must not go on getting its share,
since what it cannot claim would wait for another's net.
"""

import time

from tests.faults.app import Nap, Quick
from tests.faults.stage import Stage

NAP_S = 20.0
UNTIL_IT_GIVES_UP_S = 15.0


def test_a_full_consumer_leaves_the_hints_to_others_and_comes_back(stage: Stage) -> None:
    relay = stage.relay()
    full = stage.consumer("nap", "quick", slots=2)
    free = stage.consumer("quick", slots=5)
    stage.up(relay, full, free)
    napping = stage.submit(Nap(seconds=NAP_S), Nap(seconds=NAP_S))
    stage.wait_running(napping)

    ends = time.monotonic() + UNTIL_IT_GIVES_UP_S
    while len(stage.admin.consumers(stage.queue())) > 1:
        stage.run_one()
        assert time.monotonic() < ends, "the full consumer goes on taking hints"

    hints, polls = stage.claimed_by("hint", free), stage.claimed_by("poll", free)
    for n in range(10):
        stage.wait_done(stage.submit(Quick(n=n)))
    assert stage.claimed_by("hint", free) == hints + 10
    assert stage.claimed_by("poll", free) == polls
    assert stage.state(napping)["running"] == 2, "it was full all the time"

    stage.wait_done(napping, deadline=NAP_S + 20)
    stage.admin.wait_for_consumers(stage.queue(), 2)
    stage.run_from_hint(full)
    stage.finish()
