"""The app under load: a handler that does nothing but leave a line outside the database.

A line holds the job's id and the machine-wide monotonic clock at its start, so that runs can be counted and
dated without asking Bellwire.
"""

import os
import time

from bellwire import Job, JobConfig
from bellwire.consumer import App, AsyncAttempt

LINES = "BENCH_LINES"


class Noop(Job):
    job_config = JobConfig(kind="noop", version=1, key=None)
    n: int


app = App("bench")
_lines = os.open(os.environ.get(LINES, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.handler(Noop)
async def noop(_job: Noop, attempt: AsyncAttempt) -> None:
    os.write(_lines, f"{attempt.job_id} {time.monotonic_ns()}\n".encode())
