"""The decision what goes next, made as late as possible: an urgent job waits for a slot and not for a queue.

One cycle is one server call over all kinds of this relay. Between cycles it pauses: briefly while slots or a
cap are waited for (nobody announces those), for the poll floor while a submit would notify. The floor finds
whatever no notification announced, so nothing depends on one.
"""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog

from bellwire_relay import server_calls
from bellwire_relay.claim_rate import ClaimRate
from bellwire_relay.drowsiness import Drowsiness
from bellwire_relay.ownership import Identity, Ownership
from bellwire_relay.pace import Look, Pace
from bellwire_relay.publishing import Publisher
from bellwire_relay.server_calls import Admitted
from bellwire_runtime.database import Connection, SupervisedConnection
from bellwire_schema.faultpoints import reach

__all__ = ["AdmissionLoop"]

log = structlog.get_logger("bellwire.relay")


class AdmissionLoop:
    """Admits, and decides how long to look away."""

    name = "admit"

    def __init__(
        self,
        *,
        connection: SupervisedConnection,
        identity: Identity,
        ownership: Ownership,
        rates: Sequence[ClaimRate],
        floor: float,
        listening: Callable[[], bool],
        flag_length: float,
        publisher: Publisher | None = None,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._ownership = ownership
        self._window_rate, *_ = self._rates = rates
        self._floor = floor
        self._listening = listening
        self._flag_length = flag_length
        self._pace = Pace(floor=floor)
        self._drowsiness = Drowsiness()
        self._publisher = publisher
        self.outstanding = 0
        """How many wake-ups were out after the last admission."""

    def nudged(self) -> None:
        """A submit notified: the loop's pause is over."""
        self._drowsiness.nudged()

    def made_ready(self) -> None:
        """This relay itself made jobs ready, which notifies nobody."""
        self._pace.restart()

    def restart(self) -> None:
        """Kinds were gained: look eagerly, and believe no flag, since theirs is down."""
        self._pace.restart()
        self._drowsiness.forget()

    async def run_once(self) -> float | None:
        if not self._ownership.kinds:
            return self._floor
        rows = await self.cycle()
        self._drowsiness.admitted(sum(len(row.job_ids) for row in rows))
        pause = self._pace.after([_look(row) for row in rows])
        if not self._listening():
            self._drowsiness.forget()
            return pause
        match self._drowsiness.wanted(pause):
            case "sleep":
                if await self._sleep():
                    # A submit that read the flag before it was committed did not notify.
                    return 0.0
            case "wake":
                await self._wake()
            case None:
                pass
        return self._drowsiness.pause(pause, pressed=self._pace.pressed, floor=self._floor)

    async def cycle(self) -> list[Admitted]:
        """One admission."""
        rows = await self._connection.run(
            self._admit,
            # Past the ownership's end another relay admits; what this call would still do is refused.
            within=self._flag_length,
        )
        admitted = {(row.kind, row.version): len(row.job_ids) for row in rows if row.job_ids}
        outstanding = {(row.kind, row.version): row.outstanding for row in rows}
        for rate in self._rates:
            rate.saw(admitted, outstanding)
        return rows

    async def _admit(self, conn: Connection) -> list[Admitted]:
        """Admit, and have the hints on their way before anybody else's turn comes."""
        recent, me, publisher = self._window_rate.recent(), self._identity, self._publisher
        rows = await server_calls.admit(
            conn,
            relay=me.relay,
            token=me.token,
            kinds=[kind for kind, _ in recent],
            versions=[version for _, version in recent],
            recent=list(recent.values()),
            # Whoever cannot publish everything has consumers told by the database.
            notify=publisher is None or not publisher.rings,
        )
        if any(row.job_ids for row in rows):
            reach("relay.admitted")
        self.outstanding = sum(row.outstanding for row in rows)
        if publisher is not None:
            for row in rows:
                if row.job_ids:
                    publisher.offer(row.kind, row.version, row.job_ids, least=row.least, hearers=row.hearers)
        return rows

    async def _sleep(self) -> bool:
        me = self._identity
        sent = time.monotonic()
        until = min(sent + self._flag_length, self._ownership.until)
        raised = await self._connection.run(
            lambda conn: server_calls.sleep(
                conn, relay=me.relay, token=me.token, lasting=timedelta(seconds=self._flag_length)
            )
        )
        return raised is not None and self._drowsiness.slept(until)

    async def _wake(self) -> None:
        me = self._identity
        await self._connection.run(lambda conn: server_calls.wake(conn, relay=me.relay, token=me.token))
        self._drowsiness.woke()
        log.debug("awake: notifications come thick")


def _look(row: Admitted) -> Look:
    return Look(admitted=len(row.job_ids), window=row.win, waiting=row.waiting, held=row.held)
