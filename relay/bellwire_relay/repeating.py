"""What stays admitted is published again: by its age, and all at once when that was the only sign of it.

A hint may be lost anywhere, so nothing depends on one: each second, while anything is out, the database is
asked what has waited too long. After a take-over, and when the broker is back, nobody knows what was heard,
so everything that is out goes again. While nothing is out nothing is asked.
"""

from collections.abc import Callable

from bellwire_relay import server_calls
from bellwire_relay.ownership import Identity, Ownership
from bellwire_relay.publishing import Publisher
from bellwire_runtime.database import SupervisedConnection
from bellwire_runtime.telemetry import Telemetry

__all__ = ["RepeatLoop"]

_LIMIT = 5000


class RepeatLoop:
    """Repeats hints, and writes down what went wrong with them. `outstanding`: how many are out, as admission
    last saw it.
    """

    name = "republish"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        identity: Identity,
        ownership: Ownership,
        publisher: Publisher,
        telemetry: Telemetry,
        outstanding: Callable[[], int],
        every: float = 1.0,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._ownership = ownership
        self._publisher = publisher
        self._telemetry = telemetry
        self._outstanding = outstanding
        self._every = every
        self._everything = False

    def everything(self) -> None:
        """At the next pass, or as soon as it can be published: all that is out."""
        self._everything = True

    async def run_once(self) -> float | None:
        if not self._ownership.kinds:
            return self._every
        self._publisher.queues.retry(self._ownership.kinds)
        await self._write_trouble()
        if self._publisher.well:
            if self._everything:
                await self._repeat_all()
            elif self._outstanding() > 0:
                await self.repeat()
        return self._every

    async def repeat(self, *, everything: bool = False) -> int:
        """One batch, now: how many job ids."""
        me = self._identity
        rows = await self._connection.run(
            lambda conn: server_calls.republish(
                conn, relay=me.relay, token=me.token, everything=everything, limit=_LIMIT
            )
        )
        for row in rows:
            self._publisher.offer(row.kind, row.version, row.job_ids, least=row.least, hearers=row.hearers)
        count = sum(len(row.job_ids) for row in rows)
        if count:
            self._telemetry.repeated(count)
        return count

    async def _repeat_all(self) -> None:
        self._everything = False
        try:
            # The oldest told come first, so batches that are full go on where the last one stopped.
            batches = 1 + self._outstanding() // _LIMIT
            while await self.repeat(everything=True) >= _LIMIT and batches > 0:
                batches -= 1
        except BaseException:
            self._everything = True
            raise

    async def _write_trouble(self) -> None:
        noted = self._publisher.trouble.take()
        if not noted:
            return
        me = self._identity
        await self._connection.run(
            lambda conn: server_calls.note_publish(
                conn, relay=me.relay, token=me.token, ids=list(noted), errors=list(noted.values())
            )
        )
