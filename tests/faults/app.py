"""The app of the fault tests' consumers; which handler, and how long, is in the payload."""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import AsyncIterator
from datetime import timedelta

from bellwire_consumer import App, AsyncAttempt, Attempt, Retry
from bellwire_outbox import Job, JobConfig

APP = "tests.faults.app:app"


class Quick(Job):
    """Ends at once."""

    job_config = JobConfig(kind="quick", version=1, key=None)
    n: int = 0


class Nap(Job):
    """Takes its time, and lets others have the event loop."""

    job_config = JobConfig(kind="nap", version=1, key=None)
    seconds: float = 0.0


class ThreadNap(Job):
    """The same in a thread."""

    job_config = JobConfig(kind="thread_nap", version=1, key=None)
    seconds: float = 0.0


class Block(Job):
    """What nobody should write: it sleeps on the event loop."""

    job_config = JobConfig(kind="block", version=1, key=None)
    seconds: float = 0.0


@contextlib.asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    """With `BELLWIRE_TEST_COLLECT` set, garbage is collected whenever so many seconds are over."""

    async def collect(every: float) -> None:
        while True:
            gc.collect()
            await asyncio.sleep(every)

    collecting = asyncio.ensure_future(collect(float(os.environ.get("BELLWIRE_TEST_COLLECT", "3600"))))
    yield
    collecting.cancel()


app = App("faults", lifespan=lifespan)
# A killed consumer's jobs come back quickly, and as often as a test likes.
HARDY = Retry(max_attempts=40, base=timedelta(milliseconds=50), cap=timedelta(milliseconds=200), deaths=40)


@app.handler(Quick, lease=timedelta(seconds=3), retry=HARDY)
async def quick(job: Quick, attempt: AsyncAttempt) -> None:
    pass


@app.handler(Nap, lease=timedelta(seconds=5), retry=HARDY, timeout=timedelta(minutes=5))
async def nap(job: Nap, attempt: AsyncAttempt) -> None:
    await asyncio.sleep(job.seconds)


@app.handler(ThreadNap, lease=timedelta(seconds=5), retry=HARDY, timeout=timedelta(minutes=5))
def thread_nap(job: ThreadNap, attempt: Attempt) -> None:
    time.sleep(job.seconds)


@app.handler(Block, lease=timedelta(seconds=5), retry=HARDY, timeout=timedelta(minutes=5))
async def block(job: Block, attempt: AsyncAttempt) -> None:
    time.sleep(job.seconds)  # noqa: ASYNC251 (the fault itself)
