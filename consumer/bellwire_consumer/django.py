"""`attempt.transaction` for Django: its connections go by alias and belong to the thread, so no source is
handed over.

The block is an outermost `atomic(durable=True)`: inside another one its end would be a savepoint, and the
job would be complete while the rows still could roll back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.db import transaction as django_transaction

from bellwire_consumer.attempt import Attempt
from bellwire_consumer.lease import Lease
from bellwire_consumer.transaction import Staged, open_transaction
from bellwire_outbox import Job, OnDuplicate, Receipt
from bellwire_outbox.django import submit
from bellwire_outbox.stacks.django import DjangoStack
from bellwire_schema.errors import ConnectionUnsupported

__all__ = ["DjangoTransaction", "transaction"]


class DjangoTransaction(Staged):
    """The block's transaction on the Django connection `using`; the ORM takes part by itself."""

    def __init__(self, lease: Lease, using: str) -> None:
        super().__init__(lease)
        self.using = using

    def submit(
        self,
        job: Job,
        *,
        job_id: UUID | None = None,
        run_at: datetime | None = None,
        run_in: timedelta | None = None,
        priority: int | None = None,
        deadline: datetime | None = None,
        on_duplicate: OnDuplicate = "existing",
    ) -> Receipt:
        """Submit a job that exists only if this block commits, under this attempt's lease."""
        return submit(
            job,
            using=self.using,
            job_id=job_id,
            run_at=run_at,
            run_in=run_in,
            priority=priority,
            deadline=deadline,
            on_duplicate=on_duplicate,
        )


@contextmanager
def transaction(attempt: Attempt[Any], *, using: str = "default") -> Iterator[DjangoTransaction]:
    """As `attempt.transaction`, on Django's own connection. For plain def handlers: the ORM is
    synchronous."""
    if not isinstance(attempt, Attempt):
        raise ConnectionUnsupported("Django's connections belong to threads: use a plain def handler")
    with open_transaction(attempt._lease, attempt._desk, DjangoUnit(using)) as tx:
        yield tx


class DjangoUnit:
    """One `atomic` block, opened and closed in the handler's thread."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._atomic = django_transaction.atomic(using=using, durable=True)
        self._entered = False
        self.handle = connections[using]
        self.stack = DjangoStack(using)

    def stage(self, lease: Lease) -> DjangoTransaction:
        return DjangoTransaction(lease, self._using)

    def connect(self) -> None:
        self._atomic.__enter__()
        self._entered = True

    def token(self) -> object:
        return self.handle.in_atomic_block

    def flush(self) -> None:
        """A connection holds nothing back."""

    def commit(self) -> None:
        self._entered = False
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        if self._entered:
            self._entered = False
            error = RuntimeError("rolled back")
            self._atomic.__exit__(type(error), error, None)

    def close(self) -> None:
        # Handlers' threads see no end of a request, which is when Django closes connections.
        self.handle.close_if_unusable_or_obsolete()
