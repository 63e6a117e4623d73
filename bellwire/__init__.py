"""Durable jobs that commit with your own rows: what an application imports.

Handlers import `bellwire.consumer`, tests `bellwire.testing`, Django projects `bellwire.django`, Alembic
environments `bellwire.alembic`. Each of them only re-exports, or says which extra is missing.
"""

from bellwire_outbox import (
    CancelOutcome,
    FailedJob,
    Job,
    JobConfig,
    JobView,
    OnDuplicate,
    Outcome,
    Receipt,
    State,
    UniqueUntil,
    cancel,
    drain_estimate,
    find_job,
    get_job,
    submit,
    submit_many,
    upgrade,
)
from bellwire_schema.errors import (
    ArgumentInvalid,
    BellwireError,
    ConfigError,
    ConnectionUnsupported,
    InputError,
    KeyConflict,
    NotInTransaction,
    OverCapacity,
    PayloadInvalid,
    PayloadTooLarge,
    SubmitRefused,
)

__all__ = [
    "ArgumentInvalid",
    "BellwireError",
    "CancelOutcome",
    "ConfigError",
    "ConnectionUnsupported",
    "FailedJob",
    "InputError",
    "Job",
    "JobConfig",
    "JobView",
    "KeyConflict",
    "NotInTransaction",
    "OnDuplicate",
    "Outcome",
    "OverCapacity",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Receipt",
    "State",
    "SubmitRefused",
    "UniqueUntil",
    "cancel",
    "drain_estimate",
    "find_job",
    "get_job",
    "submit",
    "submit_many",
    "upgrade",
]
