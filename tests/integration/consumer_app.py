"""The app of consumers that are real processes; what its handlers did is told by lines in a file."""

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path

from bellwire_consumer import App, AsyncAttempt, Attempt, Retry
from bellwire_outbox import Job, JobConfig

LINES = "BELLWIRE_TEST_LINES"
APP = "tests.integration.consumer_app:app"


class Nap(Job):
    """Sleeps; `where` is "loop" or "thread"."""

    job_config = JobConfig(kind="nap", version=1, key=None)
    seconds: float = 0.0


class ThreadNap(Job):
    job_config = JobConfig(kind="thread_nap", version=1, key=None)
    seconds: float = 0.0


app = App("naps")
QUICK = Retry(max_attempts=10, base=timedelta(milliseconds=10), cap=timedelta(milliseconds=10), deaths=10)


def line(text: str) -> None:
    with Path(os.environ[LINES]).open("a") as lines:
        lines.write(f"{text}\n")


@app.handler(Nap, lease=timedelta(seconds=1), retry=QUICK)
async def nap(job: Nap, attempt: AsyncAttempt) -> None:
    line(f"start {attempt.job_id} {attempt.number}")
    await asyncio.sleep(job.seconds)
    line(f"end {attempt.job_id} {attempt.number}")


@app.handler(ThreadNap, lease=timedelta(seconds=1), retry=QUICK)
def thread_nap(job: ThreadNap, attempt: Attempt) -> None:
    line(f"start {attempt.job_id} {attempt.number}")
    time.sleep(job.seconds)
    line(f"end {attempt.job_id} {attempt.number}")
