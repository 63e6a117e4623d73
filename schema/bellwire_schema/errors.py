"""Every error that Bellwire raises on purpose descends from one root and carries a stable `code`.

Callers branch on the class or on the code, never on the text, so the text may improve at any time. Every code
has a paragraph in docs/reference/errors.md, and a test holds the two together.

    BellwireError
    ├── ConfigError              config_invalid        a class, a handler or a setting that cannot work
    │   └── QueueMismatch        queue_mismatch        .queue, .argument, .wanted, .found
    ├── InputError               what was handed in is refused before any SQL
    │   ├── ArgumentInvalid      argument_invalid      .field
    │   ├── PayloadInvalid       payload_invalid       .field
    │   └── PayloadTooLarge      payload_too_large     .size, .limit
    ├── SubmitRefused            (the row's code)      nothing was written; the transaction is still usable
    │   ├── KeyConflict          key_conflict          .job_id, .fields
    │   └── OverCapacity         over_capacity         .backlog, .drain_estimate
    ├── NotInTransaction         not_in_transaction    the connection would commit on its own
    ├── ConnectionUnsupported    connection_unsupported
    ├── DatabaseUnavailable      database_unavailable  not reached within the time allowed at start
    ├── NotInstalled             not_installed         no schema `bellwire` in this database
    ├── MigrationBehind          migration_behind      .found, .needed
    ├── WrongDatabase            wrong_database
    ├── LeaseLost                lease_lost            the attempt no longer owns its job
    ├── JobCancelled             job_cancelled         .actor, .reason: raised by attempt.raise_if_cancelled()
    ├── ResultInvalid            result_invalid        a result or checkpoint that is no JSON, or too large
    └── HandlerOutcome           raised by a handler to say how its attempt ends
        ├── RetryableError       (given)
        ├── ThrottledError       (given)               .retry_after, .scope
        ├── TerminalError        (given)
        └── Snooze               (given)               .delay
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal
from uuid import UUID

DOCS = "docs/reference/errors.md"
_CODE = re.compile(r"[a-z][a-z0-9_.]{0,62}")


def _rebuild(cls: type["BellwireError"], args: tuple[Any, ...], state: dict[str, Any]) -> "BellwireError":
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class BellwireError(Exception):
    """The root. `code` is stable; `docs` is the anchor of its paragraph."""

    code: str = "error"

    @property
    def docs(self) -> str:
        return f"{DOCS}#{self.code}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (child processes, test workers); pickle's default would call
        # __init__ with the message alone.
        return (_rebuild, (type(self), self.args, self.__dict__))


class ConfigError(BellwireError):
    """A class, a handler or a setting cannot work as written. Raised when it is defined, not when used."""

    code = "config_invalid"


class QueueMismatch(ConfigError):
    """A queue of ours exists at the broker with other arguments than both daemons declare.

    Submitting and running jobs do not depend on it: consumers that cannot hear poll.
    """

    code = "queue_mismatch"

    def __init__(self, *, queue: str, argument: str, wanted: str, found: str) -> None:
        super().__init__(
            f"queue {queue}: argument {argument} is {found}, wanted is {wanted}; nothing in it is needed, so "
            f"delete it and it is declared anew: rabbitmqctl delete_queue {queue}; where a policy or another "
            "program made it so, mend that first"
        )
        self.queue = queue
        self.argument = argument
        self.wanted = wanted
        self.found = found


class InputError(BellwireError):
    """What was handed in is refused before any SQL: the transaction is untouched."""

    code = "input_invalid"


class ArgumentInvalid(InputError):
    """An argument of a call (or a value derived for it, such as the tenant) is refused; `field` names it."""

    code = "argument_invalid"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class PayloadInvalid(InputError):
    """A payload value cannot be stored or cannot be what the job class asks for; `field` is its path."""

    code = "payload_invalid"

    def __init__(self, field: str, reason: str, *, kind: str | None = None) -> None:
        super().__init__(f"{kind + ': ' if kind else ''}{field}: {reason}")
        self.field = field
        self.reason = reason
        self.kind = kind


class PayloadTooLarge(InputError):
    """The encoded payload is over the limit. Sizes are bytes of UTF-8 JSON."""

    code = "payload_too_large"

    def __init__(self, size: int, limit: int, *, field: str, kind: str | None = None) -> None:
        super().__init__(
            f"{kind + ': ' if kind else ''}the payload takes {size} bytes, the limit is {limit}; its largest "
            f"field is {field}: keep large input in a store and pass its address and checksum"
        )
        self.size = size
        self.limit = limit
        self.field = field
        self.kind = kind


class SubmitRefused(BellwireError):
    """The database refused a submit. Nothing was written, and the caller's transaction is still usable."""

    code = "submit_refused"

    def __init__(self, message: str, *, code: str | None = None, ordinal: int | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.ordinal = ordinal
        """Which job of a `submit_many` was refused, counted from 0; None for a single submit."""


class KeyConflict(SubmitRefused):
    """The key is held by a job with other arguments. `job_id` is the holder, `fields` are those that differ.

    `fields` is empty where the holder's payload is gone or encrypted and only digests could be compared.
    """

    code = "key_conflict"

    def __init__(self, job_id: UUID, fields: Sequence[str], *, ordinal: int | None = None) -> None:
        differing = ", ".join(fields) or "the arguments (compared by digest)"
        super().__init__(
            f"the key is held by job {job_id} with other arguments: {differing}; find_job() shows it, and "
            "on_duplicate='replace' or 'supersede' would put this one in its place",
            ordinal=ordinal,
        )
        self.job_id = job_id
        self.fields: tuple[str, ...] = tuple(fields)


class OverCapacity(SubmitRefused):
    """The kind's backlog is at its limit. `drain_estimate` is None where no rate was measured yet."""

    code = "over_capacity"

    def __init__(
        self, backlog: int | None, drain_estimate: timedelta | None, *, ordinal: int | None = None
    ) -> None:
        drain = f"about {drain_estimate} to drain" if drain_estimate is not None else "drain time unknown"
        super().__init__(
            f"{backlog if backlog is not None else 'too many'} jobs of this kind wait ({drain}): try again "
            "later, or raise the limit",
            ordinal=ordinal,
        )
        self.backlog = backlog
        self.drain_estimate = drain_estimate


class NotInTransaction(BellwireError):
    """The connection commits each statement by itself: the job could outlive a rollback of the caller."""

    code = "not_in_transaction"


class ConnectionUnsupported(BellwireError):
    """The object given is none of the sessions and connections Bellwire knows."""

    code = "connection_unsupported"


class DatabaseUnavailable(BellwireError):
    """The database could not be reached within the time allowed at start."""

    code = "database_unavailable"


class NotInstalled(BellwireError):
    """The database has no schema `bellwire`, or the role may not see it."""

    code = "not_installed"


class MigrationBehind(BellwireError):
    """The database's schema is older than this code needs."""

    code = "migration_behind"

    def __init__(self, found: str | None, needed: str) -> None:
        super().__init__(
            f"the database is at revision {found or 'none'}, this code needs {needed}: run 'bellwire migrate'"
        )
        self.found = found
        self.needed = needed


class WrongDatabase(BellwireError):
    """The session given to `attempt.transaction` is of another database than the job: no common COMMIT."""

    code = "wrong_database"


class LeaseLost(BellwireError):
    """The attempt no longer owns its job, and another one may be running. Let go of temporary output."""

    code = "lease_lost"


class JobCancelled(BellwireError):
    """Raised by `attempt.raise_if_cancelled()`; a handler lets it pass, and the job ends as cancelled."""

    code = "job_cancelled"

    def __init__(self, *, actor: str | None = None, reason: str | None = None) -> None:
        super().__init__(f"cancelled by {actor or 'unknown'}{': ' + reason if reason else ''}")
        self.actor = actor
        self.reason = reason


class ResultInvalid(BellwireError):
    """A result, checkpoint or progress note cannot be stored as JSON, or is too large."""

    code = "result_invalid"


class HandlerOutcome(BellwireError):
    """What a handler raises, or its `errors=` mapping answers, to say how the attempt ends.

    The code is the caller's own word, kept with the attempt and grouped by operators, so it is a name and not
    a sentence. Texts go into `message`.
    """

    code = "handler_outcome"

    def __init__(self, code: str, message: str = "") -> None:
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise ConfigError(
                f"{type(self).__name__}: the code {code!r} must match {_CODE.pattern}; put text into message="
            )
        super().__init__(message or code)
        self.code = code
        self.message = message


class RetryableError(HandlerOutcome):
    """Try again after a backoff; uses up an attempt."""


class ThrottledError(HandlerOutcome):
    """The far side asked us to slow down: uses up no attempt. A scope holds back the tenant or kind too."""

    SCOPES: ClassVar[tuple[str | None, ...]] = (None, "tenant", "kind")

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        retry_after: timedelta | None = None,
        scope: Literal["tenant", "kind"] | None = None,
    ) -> None:
        super().__init__(code, message)
        if retry_after is not None and (not isinstance(retry_after, timedelta) or retry_after < timedelta(0)):
            raise ConfigError(
                f"ThrottledError: retry_after must be a timedelta of zero or more, got {retry_after!r}"
            )
        if scope not in self.SCOPES:
            raise ConfigError(f"ThrottledError: scope must be None, 'tenant' or 'kind', got {scope!r}")
        self.retry_after = retry_after
        self.scope = scope


class TerminalError(HandlerOutcome):
    """No retry can help: the job fails now."""


class Snooze(HandlerOutcome):
    """Not yet: look again after `delay`. Uses up no attempt, but is counted, and bounded."""

    def __init__(self, delay: timedelta, message: str = "", *, code: str = "snoozed") -> None:
        super().__init__(code, message)
        if not isinstance(delay, timedelta) or delay <= timedelta(0):
            raise ConfigError(f"Snooze: the delay must be a timedelta above zero, got {delay!r}")
        self.delay = delay
