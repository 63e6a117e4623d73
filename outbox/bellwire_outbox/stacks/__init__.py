"""One small adapter a client stack: run one call on what the caller holds, in the caller's transaction.

An adapter never begins, commits or flushes anything itself, and refuses a write that the connection would
commit on its own, by the driver's own flag. Drivers are looked at only where the object came from them, so
none is imported that the application does not use.
"""

from importlib import import_module
from typing import Any

from bellwire_outbox.call import Call
from bellwire_schema.errors import ConnectionUnsupported, NotInTransaction

_MODULES = {
    "psycopg": "bellwire_outbox.stacks.psycopg",
    "sqlalchemy": "bellwire_outbox.stacks.sqlalchemy",
}


class SyncStack:
    """Plain base classes: every submit asks which of the two it has, and a protocol answers slowly."""

    def run(self, call: Call) -> list[dict[str, Any]]:
        raise NotImplementedError


class AsyncStack:
    async def arun(self, call: Call) -> list[dict[str, Any]]:
        raise NotImplementedError


def stack_of(target: object) -> SyncStack | AsyncStack:
    """The adapter for a session or connection; `ConnectionUnsupported` for anything else."""
    for cls in type(target).__mro__:
        module = _MODULES.get(cls.__module__.partition(".")[0])
        if module is not None:
            adopted: SyncStack | AsyncStack | None = import_module(module).adopt(target)
            if adopted is not None:
                return adopted
    raise ConnectionUnsupported(
        f"{type(target).__module__}.{type(target).__qualname__} is no session or connection that can be "
        "written to: "
        "give a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, or a psycopg Connection or "
        "AsyncConnection; for Django call bellwire.django.submit"
    )


def not_in_transaction(mend: str) -> NotInTransaction:
    return NotInTransaction(
        f"the connection is in autocommit, so the job would stay even if your rows roll back; {mend}"
    )
