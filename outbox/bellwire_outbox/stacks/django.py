"""Django connections, by alias. Outside `atomic()` each statement commits: a submit there is refused."""

from typing import Any

from django.db import connections

from bellwire_outbox.call import Call, rows
from bellwire_outbox.stacks import SyncStack, not_in_transaction
from bellwire_schema.errors import ConnectionUnsupported


class DjangoStack(SyncStack):
    def __init__(self, using: str) -> None:
        self._using = using

    def run(self, call: Call) -> list[dict[str, Any]]:
        connection = connections[self._using]
        if connection.vendor != "postgresql":
            raise ConnectionUnsupported(f"Django's database {self._using!r} is no PostgreSQL")
        if call.writes and not connection.in_atomic_block and connection.get_autocommit():
            raise not_in_transaction(f"wrap the call in transaction.atomic(using={self._using!r})")
        with connection.cursor() as cursor:
            cursor.execute(call.sql("format"), call.parameters())
            return rows(cursor.fetchall())
