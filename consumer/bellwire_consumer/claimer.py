"""Claims for free slots only, one statement in flight, and again at once while there is more.

Ids and tokens are drawn before the claim is sent. If its answer is lost, what it may have brought is in
doubt: the heartbeat asks for those tokens until a lease has passed, and hands back what is found; nothing
is claimed anew before the first such look, so the slots are never exceeded.
"""

import time
from collections.abc import Callable, Sequence

import psycopg

from bellwire_consumer import server_calls
from bellwire_consumer.heartbeat import Heartbeat
from bellwire_consumer.hints import HintSource, Look
from bellwire_consumer.identity import Identity
from bellwire_consumer.ids import draw
from bellwire_consumer.runner import Runner
from bellwire_consumer.server_calls import Claimed
from bellwire_consumer.slots import Slots
from bellwire_runtime.database import Connection, SupervisedConnection
from bellwire_runtime.telemetry import Telemetry
from bellwire_schema.faultpoints import reach

__all__ = ["Claimer"]

MAX_BATCH = 500
_FULL_S = 0.5


class Claimer:
    """A loop: each `run_once` claims what fits, and starts it."""

    name = "claim"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        identity: Identity,
        slots: Slots,
        hints: HintSource,
        runner: Runner,
        heartbeat: Heartbeat,
        telemetry: Telemetry,
        ids: Callable[[int], tuple[list[str], list[str]]] = draw,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._slots = slots
        self._hints = hints
        self._runner = runner
        self._heartbeat = heartbeat
        self._telemetry = telemetry
        self._ids = ids
        # Half of the slots a claim: one half is claimed while the other is settled, on its own connection.
        self._batch = min(MAX_BATCH, (slots.total + 1) // 2)

    @property
    def more(self) -> bool:
        """Whether a freed slot is worth another claim at once."""
        return self._hints.waiting

    async def run_once(self) -> float | None:
        """One claim. Answers when the next is due; a hint or a freed slot may say sooner."""
        if self._heartbeat.in_doubt:
            return 0.05
        wanted = min(self._slots.free, self._batch)
        if wanted < 1:
            # A freed slot says so; this is only the belt to it.
            return max(_FULL_S, self._hints.pause)
        look = self._hints.look(wanted)
        if look is None:
            return self._hints.pause
        claimed = 0
        try:
            claimed = await self.claim(wanted, look)
        finally:
            self._hints.answered(look, wanted=wanted, claimed=claimed)
        return None if self.more and self._slots.free > 0 else self._hints.pause

    async def claim(self, wanted: int, look: Look) -> int:
        """Claim at most `wanted` of the jobs that `look` says, and start them. Answers how many."""
        if look.ids is not None:
            wanted = min(wanted, len(look.ids))
        attempts, tokens = self._ids(wanted)
        sent = time.monotonic()

        async def call(conn: Connection) -> list[Claimed]:
            nonlocal sent
            await self._hints.before_claim(conn)
            sent = time.monotonic()
            rows = await self._send(conn, attempts, tokens, look)
            # Only now: a connection whose call was cut short is thrown away, and a watch would outlive it.
            self._hints.after_claim(conn)
            return rows

        self._slots.reserve(wanted)
        try:
            rows = await self._connection.run(call)
            reach("consumer.claimed")
            self._runner.start(rows, sent=sent)
        except BaseException as error:
            if not _refused(error):
                self._heartbeat.doubt(tokens)
            raise
        finally:
            self._slots.unreserve(wanted)
        if rows:
            self._heartbeat.watch_over(min(row.lease for row in rows))
        self._count(rows, look)
        return len(rows)

    async def _send(
        self, conn: Connection, attempts: Sequence[str], tokens: Sequence[str], look: Look
    ) -> list[Claimed]:
        who = self._identity
        return await server_calls.claim(
            conn,
            consumer=who.id,
            version=who.app_version,
            host=who.host,
            kinds=who.kinds,
            versions=who.versions,
            attempts=attempts,
            tokens=tokens,
            ids=look.ids,
            min_age=look.min_age,
        )

    def _count(self, rows: Sequence[Claimed], look: Look) -> None:
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.kind] = counts.get(row.kind, 0) + 1
            self._telemetry.started(row.kind, row.delay)
        for kind, count in counts.items():
            self._telemetry.claimed(kind, count, source=look.source)
        if look.ids is not None:
            self._telemetry.heard("fresh", len(rows))
            self._telemetry.heard("stale", len(look.ids) - len(rows))


def _refused(error: BaseException) -> bool:
    """Whether the server itself said that the claim failed; any other error may hide one that committed."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    # A session that the server ends (57P01 and its kin) may end between the commit and the answer.
    return state is not None and not state.startswith(("08", "57P"))
