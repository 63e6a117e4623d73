"""Threads are used again, end by themselves, and are replaced when they are stuck."""

import asyncio
import contextvars
import threading
from contextlib import suppress

import pytest

from bellwire_consumer.threads import Threads
from bellwire_testkit.waiting import wait_until_async

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("WORD", default="")


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("bellwire-handler")]


async def gone() -> None:
    await wait_until_async(lambda: not handler_threads(), describe="the threads to end")


async def test_one_thread_serves_calls_in_turn() -> None:
    threads = Threads()
    idents = {await threads.run(threading.get_ident) for _ in range(20)}
    threads.close()
    await gone()
    # A thread is idle a moment after its answer, so on a busy machine a second or third may have been made.
    assert len(idents) < 10


async def test_calls_run_side_by_side_in_the_callers_context() -> None:
    threads = Threads()
    barrier = threading.Barrier(8, timeout=5)
    WORD.set("here")

    def call() -> str:
        barrier.wait()
        return WORD.get()

    assert await asyncio.gather(*[threads.run(call) for _ in range(8)]) == ["here"] * 8
    threads.close()
    await gone()


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration(), SystemExit(1), KeyboardInterrupt()])
async def test_whatever_is_raised_comes_back(error: BaseException) -> None:
    threads = Threads()

    def call() -> None:
        raise error

    async def run() -> BaseException | None:
        try:
            await threads.run(call)
        except BaseException as raised:  # noqa: BLE001 (the point)
            return raised
        return None

    raised = await run()
    assert raised is error or isinstance(raised, RuntimeError)
    threads.close()
    await gone()


async def test_a_stuck_thread_is_written_off() -> None:
    threads = Threads()
    release = threading.Event()
    stuck = [asyncio.ensure_future(threads.run(release.wait, 10)) for _ in range(3)]
    await asyncio.sleep(0.05)
    for task in stuck:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert [await threads.run(lambda: n) for n in range(3)]  # noqa: B023 (called at once)
    release.set()
    threads.close()
    await gone()


async def test_a_call_for_which_no_thread_can_be_had_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads()
    ran: list[str] = []

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await threads.run(ran.append, "refused")
    await threads.run(ran.append, "next")
    assert ran == ["next"]
    threads.close()
    await gone()
