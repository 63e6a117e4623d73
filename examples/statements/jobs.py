"""The job, as both sides see it: the web application that submits it and the consumer that runs it.

Its key is the artifact's identity: one statement for each account and period. `pruned` makes a repeated
request find the accepted job for as long as that job is kept. The tenant is the bank's customer, so one
customer's month-end run does not hold up another's single statement.
"""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from bellwire import Job, JobConfig, upgrade

Period = Annotated[str, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]


class RenderStatement(Job):
    """Draw the statement of one account's closed period. `version` is also the format version of the file."""

    job_config = JobConfig(
        kind="render_statement",
        version=3,
        key=("account_id", "period"),
        unique_until="pruned",
        tenant="customer",
        max_age=timedelta(days=2),
    )
    customer: str
    account_id: Annotated[int, Field(gt=0)]
    period: Period
    # Not in the key: the other paper for the same account and period is a conflict, not a second statement.
    paper: Literal["A4", "Letter"] = "A4"


@upgrade(RenderStatement, from_version=2)
def _paper_came_with_version_3(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "paper": "A4"}
