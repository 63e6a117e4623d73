"""Waiting ends when the condition holds, and a timeout says what did not come true."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from bellwire_testkit.waiting import Barrier, kill_at, wait_until, wait_until_async


def test_answers_what_the_condition_answered() -> None:
    counted = count()
    assert wait_until(lambda: next(counted) >= 3 and "three", describe="three") == "three"


def test_looks_once_more_when_time_is_up() -> None:
    assert wait_until(lambda: True, deadline=0, describe="the truth") is True


def test_timeout_names_the_last_state() -> None:
    with pytest.raises(TimeoutError, match=r"in vain for 3 rows; 0 are there"):
        wait_until(lambda: False, deadline=0.03, describe=lambda: "3 rows; 0 are there")


def test_a_failing_condition_is_not_a_false_one() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, deadline=5, describe="nonsense")


async def test_async_takes_both_kinds_of_condition() -> None:
    counted = count()

    async def third() -> bool:
        return next(counted) >= 3

    assert await wait_until_async(third, describe="the third look")
    assert await wait_until_async(lambda: next(counted), describe="the next")
    with pytest.raises(TimeoutError, match="nothing"):
        await wait_until_async(lambda: False, deadline=0.03, describe="nothing")


def test_barrier_is_seen_when_reached(tmp_path: Path) -> None:
    barrier = Barrier(tmp_path, "consumer.claimed")
    assert not barrier.reached
    _name, _pause, path = barrier.environment["BELLWIRE_TEST_FAULTPOINT"].split(":")
    threading.Timer(0.05, Path(f"{path}.reached").touch).start()
    barrier.wait_reached(deadline=5)
    barrier.release()
    assert Path(f"{path}.go").exists()


def test_kill_at_names_the_place() -> None:
    assert kill_at("relay.admitted") == {"BELLWIRE_TEST_FAULTPOINT": "relay.admitted:kill"}
