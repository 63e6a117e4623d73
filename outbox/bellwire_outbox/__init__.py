"""Writing intent: a submit runs in the caller's own transaction, and commits or vanishes with its rows."""

from bellwire_outbox.config import JobConfig, UniqueUntil
from bellwire_outbox.job import FailedJob, Job, upgrade
from bellwire_outbox.receipt import CancelOutcome, JobView, Outcome, Receipt, State
from bellwire_outbox.submission import OnDuplicate
from bellwire_outbox.submit import cancel, drain_estimate, find_job, get_job, submit, submit_many

__all__ = [
    "CancelOutcome",
    "FailedJob",
    "Job",
    "JobConfig",
    "JobView",
    "OnDuplicate",
    "Outcome",
    "Receipt",
    "State",
    "UniqueUntil",
    "cancel",
    "drain_estimate",
    "find_job",
    "get_job",
    "submit",
    "submit_many",
    "upgrade",
]
