"""How an attempt ends, as a small sum type: handlers and errors answer with one, and the settler alone
writes it.

Each class is one edge of the state table, named as its statement is, and holds exactly that edge's columns.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from bellwire_consumer.error_text import code_of, message_of, storable
from bellwire_consumer.handler import ErrorMapping
from bellwire_schema.errors import (
    HandlerOutcome,
    JobCancelled,
    LeaseLost,
    ResultInvalid,
    RetryableError,
    Snooze,
    TerminalError,
    ThrottledError,
)

__all__ = ["Ending", "Fail", "Release", "Retried", "Snoozed", "Stop", "Succeed", "Throttled", "judge"]


@dataclass(frozen=True, slots=True)
class Succeed:
    """Done. `result` is JSON text, or None for none."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """Failed in a way that another attempt may mend; the edge itself decides whether one follows."""

    error_class: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Throttled:
    code: str
    message: str
    delay: timedelta
    scope: str | None


@dataclass(frozen=True, slots=True)
class Snoozed:
    code: str
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Fail:
    """No retry can help."""

    error_class: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ended at a cancel request."""

    message: str


@dataclass(frozen=True, slots=True)
class Release:
    """Handed back, using up nothing."""


Ending: TypeAlias = Succeed | Retried | Throttled | Snoozed | Fail | Stop | Release

SUCCEEDED = Succeed()
RELEASED = Release()
_LONGEST_DELAY = timedelta(days=3653)
"""As long as any duration that is declared; beyond it a far side may ask for what no calendar knows."""
_THROTTLE_DELAY = timedelta(seconds=30)
"""Where the far side named none; spread, so that those it turned away do not come back together."""


def judge(
    error: BaseException,
    errors: ErrorMapping,
    *,
    cancel_requested: bool,
    rng: Callable[[], float] = random.random,
) -> Ending:
    """The ending that an error out of a handler stands for. Never raises."""
    match error:
        case HandlerOutcome():
            return _declared(error, message_of(error) if error.__cause__ else storable(str(error)), rng)
        case JobCancelled() if cancel_requested:
            return Stop(storable(str(error)))
        case ResultInvalid():
            return Fail("result_invalid", ResultInvalid.code, storable(str(error)))
        case LeaseLost():
            # The database knows better: where the lease is really lost this settles nothing, and is counted.
            return Retried("lease_lost", LeaseLost.code, storable(str(error)))
    return _mapped(error, errors, rng) or Retried("unknown", code_of(error), message_of(error))


def _mapped(error: BaseException, errors: ErrorMapping, rng: Callable[[], float]) -> Ending | None:
    # The method resolution order is from the most specific class on.
    for cls in type(error).__mro__:
        answer = errors.get(cls)
        if answer is None:
            continue
        if isinstance(answer, HandlerOutcome):
            return _declared(answer, message_of(error), rng)
        try:
            outcome = answer(error)
        except Exception as failure:  # noqa: BLE001 (the user's function; the attempt must end all the same)
            return Retried(
                "unknown",
                code_of(error),
                storable(f"{message_of(error)}; errors= raised {message_of(failure)}"),
            )
        if isinstance(outcome, HandlerOutcome):
            return _declared(outcome, message_of(error), rng)
        return Retried(
            "unknown",
            code_of(error),
            storable(f"{message_of(error)}; errors= answered {type(outcome).__name__}"),
        )
    return None


def _declared(outcome: HandlerOutcome, message: str, rng: Callable[[], float]) -> Ending:
    match outcome:
        case ThrottledError():
            delay = outcome.retry_after or _THROTTLE_DELAY * (0.5 + rng())
            return Throttled(outcome.code, message, min(delay, _LONGEST_DELAY), outcome.scope)
        case Snooze():
            return Snoozed(outcome.code, min(outcome.delay, _LONGEST_DELAY))
        case TerminalError():
            return Fail("terminal", outcome.code, message)
        case RetryableError():
            return Retried("retryable", outcome.code, message)
        case _:
            # A class of somebody's own below HandlerOutcome says nothing about what to do.
            return Retried("unknown", outcome.code, message)
