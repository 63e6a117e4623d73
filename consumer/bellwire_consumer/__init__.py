"""The consumer: claims for free slots only, runs handlers, settles each attempt once."""

from bellwire_consumer.app import App
from bellwire_consumer.attempt import AsyncAttempt, Attempt
from bellwire_consumer.lease import CancelRequest
from bellwire_consumer.options import Limits, Process, Rate, Retention, Retry
from bellwire_consumer.transaction import (
    AsyncConnectionTransaction,
    AsyncSessionTransaction,
    ConnectionTransaction,
    SessionTransaction,
)

__all__ = [
    "App",
    "AsyncAttempt",
    "AsyncConnectionTransaction",
    "AsyncSessionTransaction",
    "Attempt",
    "CancelRequest",
    "ConnectionTransaction",
    "Limits",
    "Process",
    "Rate",
    "Retention",
    "Retry",
    "SessionTransaction",
]
