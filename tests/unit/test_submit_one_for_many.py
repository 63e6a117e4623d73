"""One job where many are wanted: a job iterates over its fields, and the error must not speak of those."""

import pytest

from bellwire_outbox import Job, JobConfig, calls
from bellwire_outbox.submission import Options
from bellwire_schema.errors import ArgumentInvalid


class Render(Job):
    job_config = JobConfig(kind="render", version=1, key=None)
    n: int = 0


def test_one_job_for_many_is_refused_by_name() -> None:
    with pytest.raises(ArgumentInvalid, match="jobs: give a list of jobs, not one Render"):
        calls.submit_many(Render(), Options())  # type: ignore[arg-type]
