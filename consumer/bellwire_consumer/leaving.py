"""The last step of a stop: a handler's code that does not end is left behind.

Event loop and interpreter wait for coroutines and worker threads without bound, so one handler that never
returns would keep the process until the supervisor kills it. What it was doing was handed back already and
is no longer its own, so nothing is lost by leaving at once.
"""

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import structlog

__all__ = ["leave_stuck_code_behind", "own_executor"]

log = structlog.get_logger("bellwire.consumer")
_NAME = "bellwire-to-thread"
_PATIENCE_S = 1.0


def own_executor() -> ThreadPoolExecutor:
    """An executor for the running loop's `asyncio.to_thread`, whose threads can be told from others."""
    executor = ThreadPoolExecutor(thread_name_prefix=_NAME)
    asyncio.get_running_loop().set_default_executor(executor)
    return executor


async def leave_stuck_code_behind(code: int, executor: ThreadPoolExecutor) -> None:
    """Return once all handlers' code has ended; exit the process with `code` where it does not."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    executor.shutdown(wait=False, cancel_futures=True)
    ends = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends:
        busy = any(thread.name.startswith(_NAME) for thread in threading.enumerate())
        if not busy and all(task.done() for task in others):
            return
        await asyncio.sleep(0.02)
    log.warning("a handler's code does not end; leaving it behind")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
