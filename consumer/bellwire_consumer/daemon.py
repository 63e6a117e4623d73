"""The consumer as a process: at most three connections beside the user's own pool, for claims (and LISTEN),
settles, and heartbeats.

A stop has its order: nothing more is claimed; what runs goes on under living leases until the drain is
over; what is left is handed back; the last endings are written; and only then the process leaves the
registry. A kill skips all that, and the leases run out.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import structlog

from bellwire_consumer import server_calls
from bellwire_consumer.app import App
from bellwire_consumer.applied import longest_lease
from bellwire_consumer.bell import Bell
from bellwire_consumer.claimer import Claimer
from bellwire_consumer.heartbeat import Heartbeat
from bellwire_consumer.hints import Announcements, Look
from bellwire_consumer.identity import Identity
from bellwire_consumer.lease import Lease
from bellwire_consumer.leaving import leave_stuck_code_behind, own_executor
from bellwire_consumer.lifespan import LifespanOf
from bellwire_consumer.outcome import Succeed
from bellwire_consumer.runner import Plan, Runner
from bellwire_consumer.settings import ConsumerSettings
from bellwire_consumer.settler import Ended, Settler
from bellwire_consumer.slots import Slots
from bellwire_consumer.threads import Threads
from bellwire_runtime import logs
from bellwire_runtime.database import SupervisedConnection, is_transient
from bellwire_runtime.exits import Exit
from bellwire_runtime.health import Health, HealthServer
from bellwire_runtime.installation import inspect, reach_database
from bellwire_runtime.lifecycle import LoopRunner
from bellwire_runtime.signals import StopSignals
from bellwire_runtime.telemetry import Telemetry
from bellwire_runtime.version import distribution_version
from bellwire_schema.errors import ConfigError
from bellwire_schema.policy import KindPolicy

__all__ = ["Consumer", "run"]

log = structlog.get_logger("bellwire.consumer")
# Of the time between the end of the drain and the forced exit, kept for leaving the registry.
_LEAVE_S = 1.5
_UNWIND_S = 1.0
_HEAR_FIRST_S = 2.0


class Consumer:
    """One consumer of one app. A daemon runs it; a test enters it and drives it with `run_once`.

    Entering raises `ConfigError`, `NotInstalled` or `MigrationBehind` before anything is claimed.
    """

    def __init__(
        self,
        app: App[Any],
        settings: ConsumerSettings,
        *,
        kinds: Sequence[str] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._policies = _chosen(app, kinds)
        self.identity = Identity.fresh(
            app=app.name,
            app_version=settings.app_version,
            slots=settings.slots,
            declared=[(policy.name, version) for policy in self._policies for version in policy.versions],
        )
        self.telemetry = telemetry or Telemetry(
            component="consumer", instance=str(self.identity.id), version=distribution_version()
        )
        self.installation = UUID(int=0)
        self.slots = Slots(total=settings.slots)
        self.front = self._connection("bellwire consumer", settings.listen_address or settings.database_url)
        self.back = self._connection("bellwire consumer settle", settings.database_url)
        self.settler = Settler(
            connection=self.back, slots=self.slots, telemetry=self.telemetry, on_ended=self._note_ended
        )
        self._threads = Threads()
        self.lifespan = LifespanOf(app.name, app.lifespan)
        self._ended: list[Ended] | None = None
        self._stirred = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.claim_runner: LoopRunner | None = None
        self.settle_runner: LoopRunner | None = None
        self._bell: Bell | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def run(self, stop: asyncio.Event, *, health: Health | None = None) -> None:
        """Claim, run and settle until `stop`; then drain, hand back, and write what is left.

        Raises `QueueMismatch`, having set `stop`, where the first try to hear the broker found one.
        """
        claiming = self.claim_runner = LoopRunner(self.claimer)
        settling = self.settle_runner = LoopRunner(self.settler)
        settled = asyncio.Event()
        if health is not None:
            self._report(health, claiming, settling)
        tasks = [asyncio.ensure_future(settling.run(settled))]
        first: asyncio.Task[None] | None = None
        try:
            if self._bell is not None:
                tasks.append(asyncio.ensure_future(self._bell.run(stop)))
                first = asyncio.ensure_future(self._bell.first(stop))
                # A first poll before the broker is heard would only take away what hints are about to bring.
                await asyncio.wait({first}, timeout=_HEAR_FIRST_S)
                first.add_done_callback(lambda task: stop.set() if task.exception() else None)
            tasks.append(claiming_task := asyncio.ensure_future(claiming.run(stop)))
            await stop.wait()
            await self._stop(claiming_task)
            settled.set()
            settling.nudge()
            await asyncio.wait(tasks, timeout=_UNWIND_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=3.0)
            self.claim_runner = self.settle_runner = None
        if first is not None and first.done():
            first.result()

    async def run_once(self, *, ids: Sequence[UUID] | None = None) -> list[Ended]:
        """Claim once what is admitted (of `ids` only, where given), run it to its end, settle it.

        Answers how each attempt ended.
        """
        ended: list[Ended] = []
        self._ended = ended
        try:
            if self.slots.free:
                named = None if ids is None else [job.hex for job in ids]
                await self.claimer.claim(min(self.slots.free, 500), Look(named))
            while self.slots.running:
                self._stirred.clear()
                try:
                    await self.settler.run_once()
                except Exception as error:
                    if not is_transient(error):
                        raise
                    await asyncio.sleep(0.05)
                    continue
                if self.slots.running:
                    await self._stirred.wait()
        finally:
            self._ended = None
        return ended

    # --- what attempts ask ---

    async def committed(self, lease: Lease) -> bool:
        """Whether a completing transaction whose COMMIT was not answered took effect.

        While the server still holds that transaction, the job's row is busy; once it is not, its token says
        it.
        """
        while True:
            try:
                (beat,) = await self.back.run(lambda conn: server_calls.heartbeat(conn, [lease]))
                if beat.status == "lost":
                    answers = await self.back.run(
                        lambda conn: server_calls.succeed(conn, [lease], [Succeed()])
                    )
                    return [answer.status for answer in answers] == ["already"]
                if beat.status != "busy":
                    return False
            except Exception as error:
                if not is_transient(error):
                    raise
            await asyncio.sleep(0.1)

    def committed_from_thread(self, lease: Lease) -> bool:
        """The same, for a handler's thread."""
        assert self._loop is not None  # noqa: S101 (attempts exist only once it was entered)
        return asyncio.run_coroutine_threadsafe(self.committed(lease), self._loop).result()

    # --- start and stop ---

    async def _open(self) -> None:
        found = await self.back.run(lambda conn: inspect(conn, calls="claim"))
        self.installation = found.id
        longest = await self.back.run(
            lambda conn: longest_lease(conn, app=self._app.name, policies=self._policies)
        )
        deps = await self.lifespan.open()
        plans = {
            kind: Plan(handler, hooks)
            for kind, (handler, hooks) in self._app.handlers().items()
            if kind in self.identity.kinds
        }
        address = self._settings.broker
        if address is not None:
            self._bell = Bell(
                address=address,
                identity=self.identity,
                slots=self.slots,
                installation=found.id,
                announcements=self._announcements,
                telemetry=self.telemetry,
                settings=self._settings,
                on_hint=self._claim_again,
                on_change=self._hearing_changed,
            )
        self._runner = Runner(
            plans=plans,
            deps=deps,
            desk=self,
            slots=self.slots,
            settler=self.settler,
            threads=self._threads,
            tell_failures=self._settings.log_failures,
        )
        self.heartbeat = Heartbeat(
            connect=lambda: self._connection("bellwire consumer heartbeat", self._settings.database_url),
            identity=self.identity,
            slots=self.slots,
            longest_lease=longest,
            end=self._runner.watch.end,
            on_looked=self._claim_again,
            hears=self._bell.hears if self._bell else lambda: (None, None),
        )
        self._hints = self._bell.source if self._bell else self._announcements(self._claim_again)
        self.claimer = Claimer(
            connection=self.front,
            identity=self.identity,
            slots=self.slots,
            hints=self._hints,
            runner=self._runner,
            heartbeat=self.heartbeat,
            telemetry=self.telemetry,
        )
        self.slots.on_free = self._freed
        self.settler.on_pending = self._settle_now
        self.heartbeat.start()
        await self.heartbeat.registered.wait()

    async def _stop(self, claiming: "asyncio.Future[None]") -> None:
        began = time.monotonic()
        ends = began + self._settings.shutdown_grace.total_seconds() - _LEAVE_S
        self.heartbeat.stopping()
        # A claim under way is waited for: what it brings has begun, and one cut short would be in doubt.
        await asyncio.wait({claiming}, timeout=2.0)
        claiming.cancel()
        if self.slots.running:
            log.info(
                "waiting for running jobs, then handing back the rest; a second signal leaves at once: their "
                "leases run out, and each costs an attempt",
                jobs=len(self.slots.running),
                seconds=self._settings.drain_seconds,
            )
        await self._empty(began + self._settings.drain_seconds - time.monotonic())
        left = [lease for lease in self.slots.snapshot() if not lease.ended]
        if left:
            log.info("handing back what is still running", jobs=len(left))
            for lease in left:
                self._runner.watch.end(lease, "released")
            await self._empty(_UNWIND_S)
            for lease in left:
                self._runner.abandon(lease)
        await self._empty(max(0.5, ends - time.monotonic()))

    async def _empty(self, within: float) -> None:
        """Wait until no slot is taken, or this time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, within)):
                while self.slots.running:
                    self._stirred.clear()
                    await self._stirred.wait()

    async def _close(self) -> None:
        heartbeat = getattr(self, "heartbeat", None)
        if heartbeat is not None:
            hints = self._hints
            hints.close()
            self._runner.watch.close()
            await heartbeat.close()
        self._threads.close()
        await self.front.close()
        await self.back.close()
        self.telemetry.close()
        await self.lifespan.close()

    def _connection(self, name: str, url: str) -> SupervisedConnection:
        settings = self._settings
        return SupervisedConnection(
            url=url,
            application_name=name,
            connect_timeout=settings.connect_timeout.total_seconds(),
            call_timeout=settings.call_timeout.total_seconds(),
            prepare=settings.prepared_statements,
        )

    # --- wake-ups inside the process ---

    def _announcements(self, on_hint: Callable[[], None]) -> Announcements:
        return Announcements(
            consumer=self.identity.id,
            on_hint=on_hint,
            poll_floor=self._settings.consumer_poll_floor.total_seconds(),
            listen=self._settings.listen_address is not None,
        )

    def _hearing_changed(self) -> None:
        self.heartbeat.register_now()
        self._claim_again()

    def _claim_again(self) -> None:
        if self.claim_runner is not None:
            self.claim_runner.nudge()

    def _freed(self) -> None:
        self._stirred.set()
        if self._bell is not None:
            self._bell.slot_freed()
        if self.claim_runner is not None and self.claimer.more:
            self.claim_runner.nudge()

    def _settle_now(self) -> None:
        self._stirred.set()
        if self.settle_runner is not None:
            self.settle_runner.nudge()

    def _note_ended(self, ended: Ended) -> None:
        if self._ended is not None:
            self._ended.append(ended)

    def _report(self, health: Health, *runners: LoopRunner) -> None:
        for runner in runners:
            self.telemetry.loop_age(runner.name, lambda runner=runner: runner.age)  # type: ignore[misc]
            health.report(runner)
        health.ready_when("database", lambda: self.front.down or self.back.down)
        health.ready_when("heartbeat", lambda: self.heartbeat.down)
        if self._bell is not None:
            health.ready_when("broker", self._bell.down)


async def run(
    app: App[Any],
    settings: ConsumerSettings,
    *,
    kinds: Sequence[str] | None = None,
    stop: asyncio.Event | None = None,
) -> int:
    """`bellwire consumer`: until a signal (or `stop`, which then leaves signals alone). Answers the exit
    code.

    Raises `ConfigError`, `NotInstalled`, `MigrationBehind` or `DatabaseUnavailable`, all before it serves.
    """
    if stop is not None:
        return await _serve(app, settings, kinds, stop)
    logs.configure(log_format=settings.log_format, log_level=settings.log_level)
    stop = asyncio.Event()
    executor = own_executor()
    with StopSignals(stop, grace=settings.shutdown_grace.total_seconds()):
        code = await _serve(app, settings, kinds, stop)
        await leave_stuck_code_behind(code, executor)
        return code


async def _serve(
    app: App[Any], settings: ConsumerSettings, kinds: Sequence[str] | None, stop: asyncio.Event
) -> int:
    consumer = Consumer(app, settings, kinds=kinds)
    health = Health(component="consumer")
    server: HealthServer | None = None
    serving = False
    ticking = asyncio.ensure_future(health.keep_ticking())
    try:
        if settings.health_port:
            server = HealthServer(
                host=settings.health_host,
                port=settings.health_port,
                health=health,
                registry=consumer.telemetry.registry,
            )
        await reach_database(consumer.back, within=settings.startup_timeout.total_seconds(), stop=stop)
        if stop.is_set():
            return Exit.OK
        async with consumer:
            serving = True
            log.info(
                "consumer started",
                consumer=str(consumer.identity.id),
                app=app.name,
                kinds=len(set(consumer.identity.kinds)),
                slots=settings.slots,
            )
            await consumer.run(stop, health=health)
    except Exception as error:
        if not consumer.lifespan.tell(error, debug=settings.log_level == "debug"):
            raise
        return Exit.FAILURE
    else:
        return Exit.OK
    finally:
        ticking.cancel()
        if server is not None:
            server.close()
        if serving:
            log.info("consumer stopped")


def _chosen(app: App[Any], kinds: Sequence[str] | None) -> list[KindPolicy]:
    declared = app.declared()
    if kinds is None:
        return declared
    unknown = sorted(set(kinds) - {policy.name for policy in declared})
    if unknown:
        known = ", ".join(policy.name for policy in declared)
        raise ConfigError(f"App {app.name} has no handler of {', '.join(unknown)}; it has: {known}")
    return [policy for policy in declared if policy.name in set(kinds)]
