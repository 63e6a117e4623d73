"""The relay as a process: at most three connections to the database, and loops that fail apart.

Ownership and admission share one connection, so that a slow count elsewhere cannot cost the ownership; the
housekeeping has another; the third only listens. The broker, where one is given, has a connection of its own,
which nothing waits for. A stop lets passes end, gives the kinds back so that others
take over at once, and ends with code 0; a kill lets the ownership run out instead.
"""

import asyncio
import os
import random
import socket
from uuid import UUID, uuid4

import psycopg
import structlog

from bellwire_relay.admission import AdmissionLoop
from bellwire_relay.avoiding import Reporting
from bellwire_relay.claim_rate import ClaimRate
from bellwire_relay.evicting import EvictLoop
from bellwire_relay.housekeeping import ExpireLoop, MendLoop, PromoteLoop, RecoverLoop
from bellwire_relay.measuring import MeasureLoop
from bellwire_relay.ownership import BrokerReport, Identity, Ownership, OwnershipLoop
from bellwire_relay.publishing import Publisher
from bellwire_relay.repeating import RepeatLoop
from bellwire_relay.server_calls import known_lines
from bellwire_relay.settings import RelaySettings
from bellwire_runtime import logs
from bellwire_runtime.database import SupervisedConnection
from bellwire_runtime.exits import Exit
from bellwire_runtime.health import Health, HealthServer
from bellwire_runtime.installation import inspect, reach_database
from bellwire_runtime.lifecycle import Loop, LoopRunner, supervise
from bellwire_runtime.listener import Listener
from bellwire_runtime.signals import StopSignals
from bellwire_runtime.telemetry import Telemetry
from bellwire_runtime.version import distribution_version

__all__ = ["Relay", "channel_of", "run"]

log = structlog.get_logger("bellwire.relay")
_RATE_PERIOD = 10.0
_FIRST_TRY = 5.0


def channel_of(relay: UUID) -> str:
    """Where submits notify a sleeping relay."""
    return f"bellwire_relay_{relay.hex}"


class Relay:
    """All loops of one relay. A daemon runs them side by side; a test drives them with `run_once`."""

    def __init__(
        self,
        settings: RelaySettings,
        *,
        relay_id: UUID | None = None,
        telemetry: Telemetry | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.identity = Identity(
            relay=relay_id or uuid4(),
            token=uuid4(),
            host=socket.gethostname(),
            pid=os.getpid(),
            version=distribution_version(),
        )
        self.ownership = Ownership()
        self.telemetry = telemetry or Telemetry(
            component="relay", instance=str(self.identity.relay), version=self.identity.version
        )
        self._rng = rng or random.Random()  # noqa: S311 (jitter, no secret)
        self.front = self._connection(settings, "bellwire relay")
        self.back = self._connection(settings, "bellwire relay housekeeping")
        length = settings.relay_ownership.total_seconds()
        floor = settings.relay_poll_floor.total_seconds()
        rates = [ClaimRate(), ClaimRate(period=_RATE_PERIOD)]
        broker = settings.broker
        self.publisher = (
            None
            if broker is None
            else Publisher(address=broker, telemetry=self.telemetry, on_well=self._well, rng=self._rng)
        )
        self.admission = AdmissionLoop(
            connection=self.front,
            identity=self.identity,
            ownership=self.ownership,
            rates=rates,
            floor=floor,
            listening=self._listening,
            flag_length=length,
            publisher=self.publisher,
        )
        self.owning = OwnershipLoop(
            connection=self.front,
            identity=self.identity,
            ownership=self.ownership,
            length=length,
            on_gain=self._gained,
            broker=BrokerReport
            if self.publisher is None
            else Reporting(publisher=self.publisher, ownership=self.ownership, patience=length),
            rng=self._rng,
        )
        self.repeating = (
            None
            if self.publisher is None
            else RepeatLoop(
                connection=self.back,
                identity=self.identity,
                ownership=self.ownership,
                publisher=self.publisher,
                telemetry=self.telemetry,
                outstanding=lambda: self.admission.outstanding,
            )
        )
        self.promotion = PromoteLoop(
            connection=self.back,
            ownership=self.ownership,
            floor=floor,
            batch=settings.relay_batch,
            on_ready=self._ready,
        )
        self.recovery = RecoverLoop(
            connection=self.back,
            ownership=self.ownership,
            telemetry=self.telemetry,
            every=settings.relay_recover_every.total_seconds(),
            wait=settings.relay_recover_wait.total_seconds(),
            batch=settings.relay_batch,
            on_ready=self._ready,
            rng=self._rng,
        )
        self.expiry = ExpireLoop(connection=self.back, ownership=self.ownership, batch=settings.relay_batch)
        self.eviction = EvictLoop(waiting=self.back, asking=self.front, ownership=self.ownership)
        self.mending = MendLoop(connection=self.back, ownership=self.ownership, on_ready=self._ready)
        self.measuring = MeasureLoop(
            connection=self.back,
            identity=self.identity,
            ownership=self.ownership,
            telemetry=self.telemetry,
            rates=lambda: _by_kind(rates[1]),
        )
        address = settings.listen_address
        self.listener = None if address is None else self._listen(settings, address)
        self._admit_runner: LoopRunner | None = None
        self._repeat_runner: LoopRunner | None = None

    async def run(self, stop: asyncio.Event, *, health: Health | None = None) -> None:
        """Every loop until `stop`, then the kinds are given back."""
        loops: list[Loop] = [
            self.owning,
            self.admission,
            self.promotion,
            self.recovery,
            self.expiry,
            self.eviction,
            self.mending,
            self.measuring,
        ]
        runners = [LoopRunner(loop, rng=self._rng) for loop in loops]
        self._admit_runner = runners[1]
        if self.listener is not None:
            runners.append(LoopRunner(self.listener, rng=self._rng))
        if self.repeating is not None:
            self._repeat_runner = LoopRunner(self.repeating, rng=self._rng)
            runners.append(self._repeat_runner)
        for runner in runners:
            self.telemetry.loop_age(runner.name, lambda runner=runner: runner.age)  # type: ignore[misc]
            if health is not None:
                health.live_when(f"loop.{runner.name}", lambda runner=runner: runner.broken)  # type: ignore[misc]
                # Without notifications work goes on, at the floor's pace.
                if runner.loop is not self.listener:
                    health.ready_when(f"loop.{runner.name}", lambda runner=runner: runner.late)  # type: ignore[misc]
        if health is not None:
            health.ready_when("database", lambda: self.front.down or self.back.down)
        if self.publisher is not None:
            publisher = self.publisher
            if health is not None:
                health.ready_when("broker", lambda: publisher.down)
            if publisher.installation is None:
                publisher.installation = (await self.front.run(lambda conn: inspect(conn, calls="admit"))).id
            publisher.start()
        try:
            await supervise(runners, stop)
        finally:
            self._admit_runner = self._repeat_runner = None

    async def run_once(self) -> None:
        """One pass of every loop, in the order in which each prepares the next. Waits for nothing."""
        await self.owning.run_once()
        if self.ownership.rest:
            await self.recovery.sweep()
            await self.expiry.sweep()
            await self.promotion.sweep()
            await self.mending.sweep()
        if self.ownership.kinds:
            await self.admission.cycle()
        if self.ownership.rest:
            await self.measuring.sweep()

    async def close(self, *, within: float = 3.0) -> None:
        """Give the kinds back if the database answers in time, and close. Never raises for the database."""
        if self.listener is not None:
            await self.listener.close()
        # A broker that does not answer must not keep the kinds from whoever waits for them.
        ending = None if self.publisher is None else asyncio.ensure_future(self.publisher.close())
        try:
            async with asyncio.timeout(within):
                await self.owning.let_go(within=within)
        except (psycopg.Error, OSError, TimeoutError) as error:
            log.warning("kinds not given back, they run out by themselves", error=type(error).__name__)
        await self.front.close()
        await self.back.close()
        if ending is not None:
            await ending
        self.telemetry.close()

    def _connection(self, settings: RelaySettings, name: str) -> SupervisedConnection:
        return SupervisedConnection(
            url=settings.database_url,
            application_name=name,
            connect_timeout=settings.connect_timeout.total_seconds(),
            call_timeout=settings.call_timeout.total_seconds(),
            prepare=settings.prepared_statements,
            rng=self._rng,
        )

    def _listen(self, settings: RelaySettings, address: str) -> Listener:
        return Listener(
            url=address,
            channel=channel_of(self.identity.relay),
            application_name="bellwire relay listen",
            on_notify=self._notified,
            connect_timeout=settings.connect_timeout.total_seconds(),
        )

    def _listening(self) -> bool:
        return self.listener is not None and self.listener.standing

    def _notified(self, _payload: str) -> None:
        self.admission.nudged()
        self._nudge()

    def _gained(self, _kinds: frozenset[str]) -> None:
        self.admission.restart()
        self._nudge()
        # Whoever had them may have died between an admission and its hint.
        self._well()

    def _well(self) -> None:
        if self.repeating is not None:
            self.repeating.everything()
        if self._repeat_runner is not None:
            self._repeat_runner.nudge()

    def _ready(self) -> None:
        self.admission.made_ready()
        self._nudge()

    def _nudge(self) -> None:
        if self._admit_runner is not None:
            self._admit_runner.nudge()


async def run(settings: RelaySettings, *, stop: asyncio.Event | None = None) -> int:
    """`bellwire relay`: until a signal (or `stop`, which then leaves signals alone). Answers the exit code.

    Raises `ConfigError` (a `QueueMismatch` is one), `NotInstalled`, `MigrationBehind` or
    `DatabaseUnavailable`, all before it serves.
    """
    if stop is not None:
        return await _serve(settings, stop)
    logs.configure(log_format=settings.log_format, log_level=settings.log_level)
    stop = asyncio.Event()
    with StopSignals(stop, grace=settings.shutdown_grace.total_seconds()):
        return await _serve(settings, stop)


async def _serve(settings: RelaySettings, stop: asyncio.Event) -> int:
    relay = Relay(settings)
    health = Health(component="relay")
    server: HealthServer | None = None
    ticking = asyncio.ensure_future(health.keep_ticking())
    try:
        if settings.health_port:
            server = HealthServer(
                host=settings.health_host,
                port=settings.health_port,
                health=health,
                registry=relay.telemetry.registry,
            )
        await reach_database(relay.front, within=settings.startup_timeout.total_seconds(), stop=stop)
        if stop.is_set():
            return Exit.OK
        found = await relay.front.run(lambda conn: inspect(conn, calls="admit"))
        relay.recovery.server_started(found.server_age)
        if relay.publisher is not None:
            relay.publisher.installation = found.id
            await _try_broker(relay, relay.publisher, stop)
        log.info("relay started", relay=str(relay.identity.relay), installation=str(found.id))
        watch = asyncio.ensure_future(_close_listener(relay, stop))
        try:
            await relay.run(stop, health=health)
        finally:
            watch.cancel()
        log.info("relay stopped")
        return Exit.OK
    finally:
        ticking.cancel()
        await relay.close()
        if server is not None:
            server.close()


async def _try_broker(relay: Relay, publisher: Publisher, stop: asyncio.Event) -> None:
    """A queue of ours with other arguments ends the start; a broker that is away hardly delays it."""
    lines = await relay.front.run(known_lines)
    publisher.start(check=lines)
    first = asyncio.ensure_future(publisher.first(within=_FIRST_TRY))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({first, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if first.done():
        first.result()
    else:
        first.cancel()


async def _close_listener(relay: Relay, stop: asyncio.Event) -> None:
    """A listener waits for the server, not for us: its socket is taken away."""
    await stop.wait()
    if relay.listener is not None:
        await relay.listener.close()


def _by_kind(rate: ClaimRate) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (kind, _version), claims in rate.recent().items():
        sums[kind] = sums.get(kind, 0.0) + claims / _RATE_PERIOD
    return sums
