"""What a test asks: what was submitted, how does it run, what if it crashes here, what if it is later.

Everything happens in the test's own database, by the statements that production runs. The harness is the
only one who drives daemons there, so it may give back what a killed process held without waiting.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

import psycopg

from bellwire_consumer.app import App
from bellwire_outbox import Job, submit
from bellwire_outbox.call import Call, Style
from bellwire_outbox.payload import decode
from bellwire_outbox.stacks import AsyncStack, stack_of
from bellwire_schema import policy
from bellwire_schema.connection import connect, libpq_url
from bellwire_schema.errors import ArgumentInvalid
from bellwire_schema.faultpoints import PLACES
from bellwire_testkit import clock
from bellwire_testkit.address import AppAddress
from bellwire_testkit.drive import bury, drive
from bellwire_testkit.processes import Process
from bellwire_testkit.result import Result, result_of_job, results_of
from bellwire_testkit.victim import instructions
from bellwire_testkit.waiting import kill_at as killed_at

if TYPE_CHECKING:
    from bellwire_outbox.submit import SyncTarget

__all__ = ["Harness", "Result"]

JobT = TypeVar("JobT", bound=Job)
_SLOTS = 10
# With one job to run, the others are to be no obstacle: as many slots as there may be jobs before it.
_SLOTS_FOR_ONE = 1_000
_ENDED = frozenset({"succeeded", "failed", "cancelled"})


class Harness:
    """The fixture `bellwire`. `url` is the address (`postgresql://…`) of the test's migrated database."""

    def __init__(self, url: str) -> None:
        self.url = libpq_url(url)
        self._conn = psycopg.connect(self.url, autocommit=True, application_name="bellwire-test")
        try:
            clock.install(self._conn)
        except BaseException:
            self._conn.close()
            raise

    def submitted(self, job_class: type[JobT], session: SyncTarget | None = None) -> list[JobT]:
        """The jobs of this class's kind, in the order of their ids, whatever became of them.

        Those that are committed; with `session`, those that its transaction sees. Payloads of older versions
        are upgraded, as they would be for the handler. Payloads that were purged are left out.
        """
        stack = stack_of(self._conn if session is None else session)
        if isinstance(stack, AsyncStack):
            raise ArgumentInvalid("session", "is asynchronous: commit it, and ask without it")
        call = _Submitted("job", (("kind", "text", job_class.job_config.kind),))
        return [decode(job_class, row["payload"], version=row["version"]) for row in stack.run(call)]

    async def run(
        self, app: App[Any], job: Job, *, kill_at: str | None = None, deadline: float = 60.0
    ) -> Result:
        """Run one attempt of `job`, which is submitted unless its key says that it is there.

        kill_at: the name of a fault point. The attempt runs in a process of its own, which imports the app
            and is killed there; the result is "process_died". `AssertionError` if it gets by without.

        Raises `TimeoutError` after `deadline` seconds, `RuntimeError` where the job may not run now (it has
        ended, is not due, or is held back), and what `submit` raises.
        """
        self._apply(app)
        job_id = self._submit(job)
        if kill_at is not None:
            return await self._killed(app, job_id, kill_at, deadline)
        async with (
            asyncio.timeout(deadline),
            drive(app, self.url, self._conn, slots=_SLOTS_FOR_ONE) as driven,
        ):
            ended = await driven.job(job_id)
        if ended is not None:
            (result,) = results_of(self._conn, [ended])
            return result
        without = result_of_job(self._conn, job_id, "failed")
        if without.state in _ENDED:
            return without
        raise RuntimeError(f"job {job_id} ({without.kind}) {self._why_not(job_id)}")

    async def drain(self, app: App[Any], *, deadline: float = 60.0) -> list[Result]:
        """Run the app's jobs until nothing is due; answers every attempt in the order in which they ended.

        What is scheduled for later stays: move the clock. What is held back (a pause, a limit) or has no
        handler in this app stays too. Raises `TimeoutError` after `deadline` seconds.
        """
        self._apply(app)
        results: list[Result] = []
        async with asyncio.timeout(deadline), drive(app, self.url, self._conn, slots=_SLOTS) as driven:
            async for ended in driven.all():
                results += results_of(self._conn, ended)
        return results

    def advance(self, by: timedelta) -> None:
        """Move the database's clock, for everybody who works on it."""
        clock.advance(self._conn, by)

    def close(self) -> None:
        """Put the production clock back, for databases that outlive the test."""
        if not self._conn.closed:
            try:
                clock.uninstall(self._conn)
            finally:
                self._conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _apply(self, app: App[Any]) -> None:
        with connect(self.url, application_name="bellwire-test") as connection, connection.begin():
            policy.apply(connection, app=app.name, declared=app.declared(), actor="test")

    def _submit(self, job: Job) -> UUID:
        with self._conn.transaction():
            receipt = submit(self._conn, job)
        if receipt.state in _ENDED:
            raise RuntimeError(f"job {receipt.job_id} has {receipt.state} already, and its key is still held")
        return receipt.job_id

    def _why_not(self, job_id: UUID) -> str:
        row = self._conn.execute(
            "SELECT state, run_at, lease_expires_at, bellwire.now() FROM bellwire.job WHERE id = %s",
            (job_id,),
        ).fetchone()
        match row:
            case ("scheduled", at, _, now):
                return f"is not due before {at - now} from now: advance the clock"
            case ("running", _, until, now):
                return f"runs under a lease for another {until - now}: advance the clock"
            case (state, *_):
                return f"is {state} and held back: by a pause, a limit, or a job before it in its order"
            case _:
                return "is gone"

    async def _killed(self, app: App[Any], job_id: UUID, name: str, deadline: float) -> Result:
        if name not in PLACES:
            raise ValueError(
                f"there is no place called {name!r} to die at; the places are {', '.join(PLACES)}"
            )
        with tempfile.TemporaryDirectory(prefix="bellwire-test-") as folder:
            told = Path(folder) / "instructions.json"
            told.write_text(instructions(url=self.url, address=AppAddress.of(app), job_id=job_id))
            environment = {**os.environ, **killed_at(name)}
            argv = ("python", "-m", "bellwire_testkit.victim", str(told))
            with Process(*argv, folder=Path(folder), env=environment) as victim:
                code = await asyncio.to_thread(victim.wait_exit, within=deadline)
                said = victim.tail(60)
        bury(self._conn)
        if code == 0:
            raise AssertionError(f"the fault point {name!r} was never reached:\n{said}")
        if code != -signal.SIGKILL:
            raise AssertionError(f"the process ended with {code} before it reached {name!r}:\n{said}")
        return result_of_job(self._conn, job_id, "process_died")


class _Submitted(Call):
    """A read of what no function shows, because production never reads payloads back to the submitter."""

    def sql(self, style: Style) -> str:
        del style  # synchronous drivers have one
        return (
            "SELECT row_to_json(r)::text FROM (SELECT version, payload FROM bellwire.job"
            " WHERE kind = %s::text AND payload IS NOT NULL ORDER BY id) AS r"
        )
