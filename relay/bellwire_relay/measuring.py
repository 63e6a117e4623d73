"""Backlog and ages are counted once, by the relay that serves `*`, and read by everybody from its rows.

Metrics, console, submit's capacity check and `doctor` all read the same numbers, so ten pollers cost no more
than one. A relay that no longer serves `*` stops showing what it measured: two would be counted double.
"""

from collections.abc import Callable

from bellwire_relay import server_calls
from bellwire_relay.ownership import Identity, Ownership
from bellwire_runtime.database import Connection, SupervisedConnection
from bellwire_runtime.telemetry import Backlog, Telemetry

__all__ = ["MeasureLoop"]

_READ = """
    SELECT kind, ready, running,
           coalesce(greatest(0, extract(epoch FROM bellwire.now() - oldest_ready_at)), 0)::float8
      FROM bellwire.measure WHERE measured_at > bellwire.now() - interval '1 minute'
     ORDER BY ready DESC, kind LIMIT %s
"""
# Anybody who may submit can make up kinds; metrics must not grow with them.
_SHOWN = 1000


class MeasureLoop:
    """Measures, and shows what was measured."""

    name = "measure"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        identity: Identity,
        ownership: Ownership,
        telemetry: Telemetry,
        rates: Callable[[], dict[str, float]],
        every: float = 5.0,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._ownership = ownership
        self._telemetry = telemetry
        self._rates = rates
        self._every = every

    async def run_once(self) -> float | None:
        if self._ownership.rest:
            await self.sweep()
        else:
            self._telemetry.backlog({})
        return self._every

    async def sweep(self) -> int:
        """Measure now: how many kinds."""
        me, rates = self._identity, self._rates()

        async def measured(conn: Connection) -> tuple[int, dict[str, Backlog]]:
            count = await server_calls.measure(
                conn, relay=me.relay, token=me.token, kinds=list(rates), rates=list(rates.values())
            )
            rows = await (await conn.execute(_READ, (_SHOWN,))).fetchall()
            return count, {
                kind: Backlog(ready=ready, running=running, ready_age=age)
                for kind, ready, running, age in rows
            }

        count, backlog = await self._connection.run(measured)
        self._telemetry.backlog(backlog)
        return count
