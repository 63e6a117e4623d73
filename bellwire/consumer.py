"""For handlers: what runs a job, and what a handler raises to say how its attempt ends."""

from bellwire._extras import missing

try:
    from bellwire_consumer import (
        App,
        AsyncAttempt,
        AsyncConnectionTransaction,
        AsyncSessionTransaction,
        Attempt,
        CancelRequest,
        ConnectionTransaction,
        Limits,
        Process,
        Rate,
        Retention,
        Retry,
        SessionTransaction,
    )
except ModuleNotFoundError as error:
    raise missing(__name__, "bellwire[consumer]", error) from None

from bellwire_schema.errors import (
    HandlerOutcome,
    JobCancelled,
    LeaseLost,
    ResultInvalid,
    RetryableError,
    Snooze,
    TerminalError,
    ThrottledError,
    WrongDatabase,
)

__all__ = [
    "App",
    "AsyncAttempt",
    "AsyncConnectionTransaction",
    "AsyncSessionTransaction",
    "Attempt",
    "CancelRequest",
    "ConnectionTransaction",
    "HandlerOutcome",
    "JobCancelled",
    "LeaseLost",
    "Limits",
    "Process",
    "Rate",
    "ResultInvalid",
    "Retention",
    "Retry",
    "RetryableError",
    "SessionTransaction",
    "Snooze",
    "TerminalError",
    "ThrottledError",
    "WrongDatabase",
]
