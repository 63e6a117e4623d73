"""Doors cost nothing where none is set, and hold for ever where one is."""

import asyncio
from pathlib import Path

import pytest

from bellwire_testkit.waiting import wait_until_async
from examples.statements.pauses import Pauses


async def test_without_doors_nobody_stops() -> None:
    await Pauses.from_environment({}).reach("after_temporary", 91)


async def test_an_attempt_stands_at_its_door_and_others_pass(tmp_path: Path) -> None:
    doors = Pauses(doors=frozenset({("after_temporary", 91), ("before_render", 92)}), folder=tmp_path)
    there = Pauses.from_environment(doors.environment())
    assert there == doors
    await there.reach("after_temporary", 92)
    await there.reach("before_render", 91)
    assert doors.standing() == set()
    held = asyncio.create_task(there.reach("after_temporary", 91))
    await wait_until_async(
        lambda: doors.standing() == {("after_temporary", 91)}, describe="the attempt to stand at its door"
    )
    assert not held.done()
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held


@pytest.mark.parametrize("text", ["after_lunch:91", "before_render", "before_render:x", ":91"])
def test_a_door_that_does_not_exist_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="before_render"):
        Pauses.from_environment({"STATEMENTS_PAUSE": text, "STATEMENTS_PAUSE_FOLDER": str(tmp_path)})


def test_doors_need_a_folder() -> None:
    with pytest.raises(SystemExit, match="STATEMENTS_PAUSE_FOLDER"):
        Pauses.from_environment({"STATEMENTS_PAUSE": "before_render:91"})
