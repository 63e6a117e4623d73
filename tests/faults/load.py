"""Work that goes on while something is hurt, and what is known of it: commits, latencies, hints.

What was committed is written down by whoever committed it, after COMMIT answered; a test that asked the
tables instead could not see a job that was lost.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import LiteralString, Self
from uuid import UUID

from bellwire_outbox import Job, submit_many
from bellwire_runtime.broker.hint import Hint, decode
from bellwire_schema.connection import connect
from bellwire_schema.explain import explain
from bellwire_testkit.databases import Database
from bellwire_testkit.rabbitmq import AdminRefused
from tests.faults.app import Quick
from tests.faults.stage import Stage
from tests.integration.relay_stage import Muscle

__all__ = ["Deaf", "Load", "hinted", "quantile", "repeatedly", "said_of", "slowest_start"]

BEAT_S = 4.0
"""A registered consumer counts as alive for 15 s."""


class Load:
    """Writers in threads, each on a connection of its own, that submit until `stop` or `most` jobs each.

    `pause` is drawn between transactions, `linger` between a submit and its COMMIT; that share of them is
    rolled back instead. `also` is a statement that each transaction runs as well.
    """

    def __init__(
        self,
        database: Database,
        *,
        writers: int = 2,
        pause: tuple[float, float] = (0.0, 0.05),
        linger: tuple[float, float] = (0.0, 0.0),
        rollback: float = 0.0,
        most: int | None = None,
        jobs: Callable[[random.Random], Sequence[Job]] = lambda _: [Quick()],
        also: LiteralString | None = None,
        seed: int = 7,
    ) -> None:
        self._database = database
        self._pause, self._linger, self._rollback = pause, linger, rollback
        self._most = most
        self._jobs = jobs
        self._also = also
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.committed: list[UUID] = []
        self.rolled_back: list[UUID] = []
        self.latencies: list[float] = []
        """Seconds from BEGIN to the answer of COMMIT."""
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(seed + n),), daemon=True)
            for n in range(writers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        if kind is None:
            assert self.errors == [], "a submit failed"

    def stop(self) -> list[UUID]:
        """No more of it; answers what was committed in all."""
        self.__exit__(None, None, None)
        return self.committed

    def join(self, *, deadline: float = 60.0) -> list[UUID]:
        """Wait for writers that end by themselves; the same."""
        ends = time.monotonic() + deadline
        for thread in self._threads:
            thread.join(ends - time.monotonic())
            assert not thread.is_alive(), f"not all submitted within {deadline:g} s"
        return self.stop()

    def _write(self, dice: random.Random) -> None:
        try:
            with self._database.connect(application_name="load", autocommit=False) as conn:
                done = 0
                while not self._stop.is_set() and (self._most is None or done < self._most):
                    began = time.monotonic()
                    ids = [one.job_id for one in submit_many(conn, list(self._jobs(dice)))]
                    if self._also is not None:
                        conn.execute(self._also)
                    if self._linger[1]:
                        time.sleep(dice.uniform(*self._linger))
                    back = dice.random() < self._rollback
                    (conn.rollback if back else conn.commit)()
                    with self._lock:
                        self.latencies.append(time.monotonic() - began)
                        (self.rolled_back if back else self.committed).extend(ids)
                    done += 1
                    self._stop.wait(dice.uniform(*self._pause))
        except BaseException as error:  # noqa: BLE001 (told to whoever stops the load)
            self.errors.append(error)


class Deaf:
    """Consumers that live by the registry and take nothing, so that what is admitted stays out.

    One of each number of slots. Windows, ids a hint and the kinds that are admitted follow from them.
    """

    def __init__(self, database: Database, *slots: int, kinds: Sequence[str] = ("quick",)) -> None:
        self._conn = database.connect()
        self._muscles = [Muscle(self._conn, slots=n, lines=[(kind, 1) for kind in kinds]) for n in slots]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        for muscle in self._muscles:
            muscle.beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        for muscle in self._muscles:
            muscle.leave()
        self._conn.close()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            for muscle in self._muscles:
                muscle.beat()


def hinted(stage: Stage, kind: str = "quick") -> list[tuple[str, ...]]:
    """Take all hints out of a kind's queue; the job ids (32 digits) that each names. No queue: none yet."""
    found: list[tuple[str, ...]] = []
    while bodies := _bodies(stage, kind):
        for body in bodies:
            hint = decode(body, stage.installation)
            assert isinstance(hint, Hint), body
            found.append(hint.ids)
    return found


def _bodies(stage: Stage, kind: str) -> list[bytes]:
    try:
        return stage.admin.take(stage.queue(kind), 1000)
    except AdminRefused as refused:
        # Not declared yet; or declared just now, and its process is not up (541).
        if refused.status != 404 and "541" not in refused.reason:
            raise
        return []


def slowest_start(stage: Stage, ids: Sequence[UUID]) -> float:
    """Seconds from submit to the start of the first attempt, of the job that waited longest."""
    row = stage.conn.execute(
        "SELECT max(extract(epoch FROM a.started_at - j.created_at)) FROM bellwire.job j"
        " JOIN bellwire.attempt a ON a.job_id = j.id AND a.number = 1 WHERE j.id = ANY(%s)",
        (list(ids),),
    ).fetchone()
    assert row is not None
    return float(row[0])


def said_of(stage: Stage, target: object) -> str:
    """All that `bellwire explain` says."""
    with connect(stage.database.url, application_name="test") as connection, connection.begin():
        return "\n".join(reason.text for one in explain(connection, str(target)) for reason in one.reasons)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all is not above; of 0.99, that of the 99th percentile."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


@contextmanager
def repeatedly(act: Callable[[], object], *, every: float) -> Iterator[Callable[[], int]]:
    """Call it again and again in a thread; answers how often so far. Its failure fails the test."""
    stop = threading.Event()
    count = 0
    failed: list[Exception] = []

    def run() -> None:
        nonlocal count
        while not stop.wait(every):
            try:
                act()
            except Exception as error:  # noqa: BLE001 (raised where the block ends)
                failed.append(error)
                return
            count += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield lambda: count
    finally:
        stop.set()
        thread.join(15)
    if failed:
        raise failed[0]
