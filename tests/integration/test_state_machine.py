"""All edges in any order, against a real PostgreSQL with a clock that is moved: nothing but by the table.

After every step each job's old and new state must be a move that `states.EDGES` allows to the edge that was
called, and what holds between the tables must hold. The same run every time; with `BELLWIRE_TEST_EXPLORE=N`
it is N times as long and never the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bellwire_schema import states
from bellwire_schema import transitions as edges
from bellwire_schema.statements import Claimed, Settled
from bellwire_schema.states import EDGES, Move, edge
from bellwire_testkit.clock import Clock
from tests.integration.edge_stage import CONSUMER, Conn, Stage, submission

EXPLORE = int(os.environ.get("BELLWIRE_TEST_EXPLORE", "0"))
SETTINGS = settings(
    deadline=None,
    derandomize=not EXPLORE,
    max_examples=200 * max(EXPLORE, 1),
    stateful_step_count=80,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink] if EXPLORE else [Phase.generate],
    database=None,
)
# What each fails by itself, it follows up.
FAILING = {"fail", "retry", "throttle", "snooze", "release", "recover", "expire"}
SMALL = st.integers(0, 40)
FEW = st.integers(1, 4)
DELAYS = st.sampled_from([None, None, None, "20 seconds", "5 minutes"])
KEYS = st.sampled_from([None, None, "a", "b", "c"])
UNTIL = st.sampled_from(states.UNIQUE_UNTIL)
WAIT = timedelta(seconds=40)
DAY = timedelta(days=1)
# What ends many jobs at once is called less often, so that others live to be run.
SELDOM = st.integers(0, 3).map(lambda n: n == 0)

BROKEN = """
SELECT 'wake-up iff ready' AS rule, COALESCE(j.id, o.job_id) AS job
  FROM bellwire.job j FULL JOIN bellwire.outbox o ON o.job_id = j.id
 WHERE (o.job_id IS NOT NULL) <> COALESCE(j.state = 'ready', false)
UNION ALL
SELECT 'token iff running', id FROM bellwire.job WHERE (token IS NOT NULL) <> (state = 'running')
UNION ALL
SELECT 'finish iff terminal', id FROM bellwire.job
 WHERE (finished_at IS NOT NULL) <> (state IN ('succeeded', 'failed', 'cancelled'))
UNION ALL
SELECT 'one row an ended attempt', j.id FROM bellwire.job j
  LEFT JOIN LATERAL (SELECT count(*) AS n, count(DISTINCT number) AS numbers, max(number) AS last
                       FROM bellwire.attempt a WHERE a.job_id = j.id) AS a ON true
 WHERE a.n <> j.attempt - (j.state = 'running')::integer OR a.n <> a.numbers OR COALESCE(a.last, 0) <> a.n
UNION ALL
SELECT 'no attempt without its job', a.job_id FROM bellwire.attempt a
 WHERE NOT EXISTS (SELECT FROM bellwire.job j WHERE j.id = a.job_id)
UNION ALL
SELECT 'a key is let go in time', id FROM bellwire.job
 WHERE key IS NOT NULL AND (state = 'running' AND unique_until = 'started'
                            OR finished_at IS NOT NULL AND unique_until <> 'pruned')
UNION ALL
SELECT 'bounds are kept', j.id FROM bellwire.job j JOIN bellwire.kind k ON k.name = j.kind
 WHERE j.attempts_used > k.max_attempts OR j.waits > k.max_waits + 1 OR j.releases > k.max_releases + 1
    OR j.deaths > k.max_deaths OR (j.finished_at IS NULL AND j.attempts_used >= k.max_attempts)
UNION ALL
SELECT 'what uses up an attempt is counted', j.id FROM bellwire.job j
 WHERE j.attempts_used < (SELECT count(*) FROM bellwire.attempt a
                           WHERE a.job_id = j.id AND a.generation = j.generation
                             AND a.outcome IN ('succeeded', 'retry', 'recovered'))
UNION ALL
SELECT 'a request outlives nothing', id FROM bellwire.job
 WHERE cancel_requested_at IS NOT NULL AND state IN ('ready', 'scheduled')
UNION ALL
SELECT 'a number for every success', id FROM bellwire.job WHERE state = 'succeeded' AND attempt = 0
"""


class Edges(RuleBasedStateMachine):
    """Rules are edges; `fired` counts, over all runs, how often each changed something."""

    fired: Counter[str]
    stage: Stage
    clock: Clock

    @initialize()
    def empty(self) -> None:
        self.leases: list[Claimed] = []
        self.stale: list[Claimed] = []
        self.stage.conn.execute(
            "TRUNCATE bellwire.job, bellwire.outbox, bellwire.attempt, bellwire.effect, bellwire.hold"
        )
        self.seen: dict[UUID, dict[str, Any]] = {}

    # --- what every step goes through

    def look(self) -> dict[UUID, dict[str, Any]]:
        rows = self.stage.rows("SELECT id, kind, state, attempt, generation, run_at FROM bellwire.job")
        return {row["id"]: row for row in rows}

    @contextmanager
    def step(self, *names: str) -> Iterator[None]:
        """The first edge named is the one called; others may be called by it."""
        before = self.seen
        yield
        self.seen = after = self.look()
        allowed = {move for name in names for move in edge(name).moves}
        failed = 0
        for job_id in before.keys() | after.keys():
            old, new = before.get(job_id), after.get(job_id)
            move = Move(old["state"] if old else None, new["state"] if new else None)
            if old and new:
                assert new["attempt"] >= old["attempt"]
                reopened = move.source in states.TERMINAL and move.target in states.LIVE
                assert new["generation"] == old["generation"] + reopened
                assert move.source != "succeeded" or move.target == "succeeded"
            if old is None and new is not None and new["kind"] == "follow":
                failed -= 1
                continue
            failed += move.target == "failed" != move.source and new is not None and new["kind"] == "work"
            if move.source != move.target:
                assert move in allowed, f"{names[0]} made {move} of {job_id}"
                self.fired[names[0]] += 1
        if FAILING & set(names):
            assert failed == 0, "a follow-up for each failure, and for nothing else"

    def pick(self, n: int, *wanted: str) -> list[UUID]:
        """Some jobs, of these states where there are any."""
        jobs = sorted(i for i, row in self.seen.items() if not wanted or row["state"] in wanted)
        return [jobs[(n + k * 7) % len(jobs)] for k in range(min(3, len(jobs)))]

    def take(self, n: int) -> list[Claimed]:
        """Up to two living leases, and a stale one that must change nothing."""
        taken = [self.leases.pop(n % len(self.leases)) for _ in range(min(2, len(self.leases)))]
        self.stale += taken
        return taken

    def settle(self, name: str, n: int, run: Callable[[Sequence[Claimed]], list[Settled]]) -> None:
        stale = self.stale[-3:-1]
        taken = self.take(n)
        with self.step(name, *({"submit"} & FAILING)):
            answers = {a.attempt_id: a.status for a in run([*stale, *taken])}
        for claim in taken:
            assert answers[claim.attempt_id] == "settled"
        for claim in stale:
            assert answers[claim.attempt_id] in {"already", "lost"}

    # --- the application

    @rule(key=KEYS, until=UNTIL, run_in=DELAYS, max_age=DELAYS, count=FEW)
    def submit(
        self, key: str | None, until: str, run_in: str | None, max_age: str | None, count: int
    ) -> None:
        job = submission(key, unique_until=until, run_in=run_in, max_age=max_age)
        with self.step("submit"):
            receipts = edges.submit(self.stage.conn, [job] * count)
        codes = {r.code for r in receipts}
        assert codes == {None} or (codes <= {"key_conflict", "not_submitted"} and key is not None)
        if key is not None and codes == {None}:
            assert len({r.job_id for r in receipts}) == 1

    @rule(
        key=st.sampled_from("abc"),
        until=UNTIL,
        how=st.sampled_from(["replace", "supersede", "reopen"]),
        run_in=DELAYS,
        n=SMALL,
    )
    def submit_over(self, key: str, until: str, how: str, run_in: str | None, n: int) -> None:
        job = submission(key, unique_until=until, run_in=run_in, payload={"n": n % 2}, on_duplicate=how)
        also = "redrive" if how == "reopen" else how
        with self.step("submit", also):
            (receipt,) = edges.submit(self.stage.conn, [job])
        assert (receipt.code is None) != (receipt.outcome is None)
        if receipt.outcome == "replaced":
            self.fired["replace"] += 1

    @rule(n=SMALL, run_in=DELAYS)
    def replace(self, n: int, run_in: str | None) -> None:
        ids = self.pick(n)
        at = self.clock.now() + (timedelta(minutes=3) if run_in else timedelta(0))
        job = {"kind": "work", "version": 1, "payload": {"n": n}, "run_at": at.isoformat()}
        with self.step("replace"):
            done = edges.replace(self.stage.conn, ids, [job] * len(ids))
        self.fired["replace"] += len(done)

    @rule(n=SMALL, sure=SELDOM)
    def cancel(self, n: int, sure: bool) -> None:
        if not sure:
            return
        ids = self.pick(n, "ready", "scheduled", "running")
        with self.step("cancel"):
            outcomes = self.stage.cancel(*ids)
        self.fired["cancel"] += outcomes.count("requested")

    @rule(n=SMALL, sure=SELDOM)
    def supersede(self, n: int, sure: bool) -> None:
        if not sure:
            return
        ids = self.pick(n, "ready", "scheduled", "running")[:1]
        with self.step("supersede"):
            rows = edges.supersede(self.stage.conn, ids, [uuid4() for _ in ids])
        self.fired["supersede"] += len(rows)

    # --- the consumer

    @rule(n=FEW, polled=st.booleans())
    def claim(self, n: int, polled: bool) -> None:
        if not (ids := self.pick(n, "ready")):
            with self.step("submit"):
                ids = self.stage.submit(n)
        self.stage.admit(ids)
        with self.step("claim"):
            claimed = self.stage.claim(None if polled else ids, limit=n)
        assert len({c.job_id for c in claimed} & {c.job_id for c in self.leases}) == 0
        self.leases += claimed

    @precondition(lambda self: self.leases)
    @rule(progress=st.integers(0, 5))
    def heartbeat(self, progress: int) -> None:
        everyone = [*self.leases, *self.stale[-2:]]
        with self.step("heartbeat"):
            beats = edges.heartbeat(self.stage.conn, everyone, progress=[progress] * len(everyone))
        status = {b.token: b.status for b in beats}
        assert {status[c.token] for c in self.leases} <= {"alive", "timed_out"}
        assert {status[c.token] for c in self.stale[-2:]} <= {"lost"}
        self.fired["heartbeat"] += sum(b.status == "alive" for b in beats)

    @precondition(lambda self: self.leases)
    @rule(n=SMALL)
    def succeed(self, n: int) -> None:
        self.settle("succeed", n, lambda c: edges.succeed(self.stage.conn, c))

    @precondition(lambda self: self.leases)
    @rule(n=SMALL, error=st.sampled_from(["retryable", "unknown", "process_died"]))
    def retry(self, n: int, error: str) -> None:
        def run(claims: Sequence[Claimed]) -> list[Settled]:
            k = len(claims)
            return edges.retry(
                self.stage.conn,
                claims,
                classes=[error] * k,
                codes=["trouble"] * k,
                messages=[None] * k,
                randoms=[n / 41] * k,
            )

        self.settle("retry", n, run)

    @precondition(lambda self: self.leases)
    @rule(n=SMALL, scope=st.sampled_from([None, "tenant", "kind"]))
    def throttle(self, n: int, scope: str | None) -> None:
        self.settle("throttle", n, lambda c: self.stage.throttle(c, scope=scope))

    @precondition(lambda self: self.leases)
    @rule(n=SMALL)
    def snooze(self, n: int) -> None:
        self.settle("snooze", n, self.stage.snooze)

    @precondition(lambda self: self.leases)
    @rule(n=SMALL)
    def fail(self, n: int) -> None:
        self.settle("fail", n, self.stage.fail)

    @precondition(lambda self: self.leases)
    @rule(n=SMALL)
    def stop(self, n: int) -> None:
        with self.step("cancel"):
            self.stage.cancel(*[c.job_id for c in self.leases])
        self.settle("stop", n, lambda c: edges.stop(self.stage.conn, c))

    @precondition(lambda self: self.leases)
    @rule(n=SMALL)
    def release(self, n: int) -> None:
        self.settle("release", n, lambda c: edges.release(self.stage.conn, c))

    @precondition(lambda self: self.leases)
    @rule(n=SMALL)
    def release_in_doubt(self, n: int) -> None:
        taken = self.take(n)
        with self.step("release"):
            edges.release_doubtful(self.stage.conn, consumer=CONSUMER, tokens=[c.token for c in taken])

    @precondition(lambda self: self.leases)
    @rule(n=SMALL, committed=st.booleans())
    def complete(self, n: int, committed: bool) -> None:
        lease = self.leases[n % len(self.leases)]
        with self.step("succeed"):
            try:
                with self.stage.conn.transaction():
                    assert edges.checkpoint(self.stage.conn, lease, value="1")
                    assert edges.complete(self.stage.conn, lease) == "settled"
                    if not committed:
                        raise _RolledBack
            except _RolledBack:
                return
        self.leases.remove(lease)
        self.stale.append(lease)

    # --- the relay

    @rule()
    def promote(self) -> None:
        with self.step("promote"):
            edges.promote(self.stage.conn, limit=3)

    @rule(silent=st.booleans())
    def recover(self, silent: bool) -> None:
        """The consumers go silent first, or they don't."""
        if silent:
            self.clock.advance(WAIT)
        with self.step("recover"):
            taken = {r.job_id for r in edges.recover(self.stage.conn, limit=3, randoms=[0.5])}
        self.stale += [c for c in self.leases if c.job_id in taken]
        self.leases = [c for c in self.leases if c.job_id not in taken]

    @rule(late=SELDOM)
    def expire(self, late: bool) -> None:
        if late:
            self.clock.advance(WAIT)
        with self.step("expire"):
            edges.expire(self.stage.conn, limit=3)

    @rule(late=SELDOM)
    def prune(self, late: bool) -> None:
        if late:
            self.clock.advance(40 * DAY)
        with self.step("prune"):
            edges.prune(self.stage.conn, limit=3)

    @rule(by=st.sampled_from([timedelta(seconds=1), timedelta(seconds=25), timedelta(minutes=6)]))
    def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    @rule()
    def mend(self) -> None:
        (row,) = self.stage.rows("SELECT orphans, missing FROM bellwire.mend(NULL, NULL, 1000)")
        assert (row["orphans"], row["missing"]) == (0, 0), "nothing needs mending"

    # --- the operator

    @rule(n=SMALL, right=st.booleans())
    def redrive(self, n: int, right: bool) -> None:
        ids = self.pick(n, "failed", "cancelled", "succeeded")
        generations = [self.seen[i]["generation"] + (not right) for i in ids]
        with self.step("redrive"):
            outcomes = self.stage.redrive(*ids, generations=generations)
        assert set(outcomes) <= {"not_redrivable"} | (
            {"redriven", "key_taken"} if right else {"generation_differs"}
        )

    @rule(n=SMALL)
    def hasten(self, n: int) -> None:
        with self.step("hasten"):
            edges.hasten(self.stage.conn, self.pick(n, "scheduled"), actor="ana", reason="now")

    @rule(n=SMALL, priority=st.integers(-100, 100))
    def reprioritise(self, n: int, priority: int) -> None:
        ids = self.pick(n)
        with self.step("reprioritise"):
            done = edges.reprioritise(self.stage.conn, ids, priority=priority, actor="ana", reason="now")
        self.fired["reprioritise"] += len(done)

    # --- what always holds

    @invariant()
    def nothing_is_broken(self) -> None:
        assert self.stage.rows(BROKEN) == []


class _RolledBack(Exception):
    pass


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_edge_in_any_order(conn: Conn, clock: Clock) -> None:
    stage = Stage(conn)
    stage.kind(
        max_attempts=4,
        max_unknown=2,
        max_deaths=3,
        max_waits=2,
        max_releases=2,
        retry_base="30 seconds",
        on_failed_kind="follow",
        on_failed_version=1,
        retain_succeeded="1 hour",
    )
    fired: Counter[str] = Counter()

    class OnThisDatabase(Edges):
        pass

    OnThisDatabase.stage, OnThisDatabase.clock, OnThisDatabase.fired = stage, clock, fired
    run_state_machine_as_test(OnThisDatabase, settings=SETTINGS)
    print("\nhow often each edge fired:")
    for each in EDGES:
        print(f"  {each.name:<12} {fired[each.name]:>6,}")
    assert not [each.name for each in EDGES if not fired[each.name]], "never fired"
