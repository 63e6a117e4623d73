"""Several relays, killed, frozen, and cut off from the broker: each job is hinted by whoever serves its kind,
hints come twice only after a take-over, and no job runs twice or is forgotten.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from bellwire_outbox import Job
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.waiting import Barrier, kill_at, wait_until
from tests.faults.app import Block, Nap, Quick, ThreadNap
from tests.faults.load import Deaf, Load, hinted, repeatedly
from tests.faults.stage import Daemon, Stage

OWNERSHIP = 2.0
BRISK = {"BELLWIRE_RELAY_OWNERSHIP": f"{OWNERSHIP:g}s", "BELLWIRE_AMQP_TIMEOUT": "2s"}
"""The shortest ownership there is, so that a take-over after a kill takes two seconds and not six."""
KINDS: dict[str, type[Job]] = {"quick": Quick, "nap": Nap, "thread_nap": ThreadNap, "block": Block}
BACK = 10.0


def make(kind: str) -> Job:
    return KINDS[kind]()


def any_kind(dice: random.Random) -> list[Job]:
    return [make(dice.choice(list(KINDS)))]


def heard(*consumers: Daemon) -> int:
    """Job ids that hints brought, whatever became of them."""
    results = ("fresh", "stale", "forgotten")
    return sum(
        int(one.metric("bellwire_hint_heard_total", result=result)) for one in consumers for result in results
    )


def gains(*relays: Daemon) -> int:
    """How often a relay began to serve kinds: then it hints all of theirs that is out, heard or not."""
    return sum(len(one.lines(r'"gained": [1-9]')) for one in relays)


# --- B14 ---

RELAYS, ROWS, SLOTS, KILLS = 4, 20_000, 50, 8
WINDOW = 2 * SLOTS
"""At most so many jobs of a kind are out, and are hinted again by who begins to serve it."""
REPEATED = ROWS // 100
"""Jobs that wait unclaimed for five seconds are hinted again. That is rare, but this machine may stall."""


@pytest.mark.slow
def test_four_relays_hint_each_of_20000_jobs_once(stage: Stage) -> None:
    relays = [stage.relay() for _ in range(RELAYS)]
    consumer = stage.consumer(slots=SLOTS)
    for one in stage.daemons:
        one.wait_ready()
    _wait_shared(stage, relays)
    before, gained = heard(consumer), gains(*relays)
    dice = random.Random(14)
    for _ in range(ROWS // 500):
        stage.submit(*[any_kind(dice)[0] for _ in range(500)])
    took = _wait_done(stage, ROWS, deadline=120)
    for kind in KINDS:
        stage.admin.wait_for_queue(stage.queue(kind), depth=0)
    repeated = sum(int(one.metric("bellwire_hint_repeated_total")) for one in relays)
    hints = heard(consumer) - before
    print(f"{ROWS} jobs in {took:.0f} s: {hints} ids hinted, {repeated} of them again by age")
    assert gains(*relays) == gained
    assert hints == ROWS + repeated
    assert repeated <= REPEATED
    stage.finish()


@pytest.mark.slow
def test_relays_killed_at_random_under_20000_jobs(stage: Stage) -> None:
    relays = [stage.relay(env=BRISK) for _ in range(RELAYS)]
    consumer = stage.consumer(slots=SLOTS)
    for one in stage.daemons:
        one.wait_ready()
    _wait_shared(stage, relays)
    before = heard(consumer)
    dice = random.Random(41)
    gone: list[Daemon] = []
    jobs = 100
    with Load(
        stage.database,
        most=ROWS // jobs // 2,
        pause=(0.0, 0.2),
        jobs=lambda d: [any_kind(d)[0] for _ in range(jobs)],
    ) as load:
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.3, 1.5))
            victim = relays.pop(dice.randrange(RELAYS))
            victim.kill()
            gone.append(victim)
            relays.append(stage.relay(env=BRISK))
        committed = load.join()
    assert len(committed) == ROWS
    took = _wait_done(stage, ROWS, deadline=120)
    for kind in KINDS:
        stage.admin.wait_for_queue(stage.queue(kind), depth=0)
    extra = heard(consumer) - before - ROWS
    gained = gains(*relays, *gone)
    polled = stage.claimed_by("poll", consumer)
    print(f"{KILLS} kills, {gained} take-overs: {extra} ids hinted again, {polled} jobs polled; {took:.0f} s")
    # A relay that begins to serve kinds serves at most its share of them.
    assert extra <= gained * WINDOW * -(-len(KINDS) // 2) + REPEATED
    for one in relays:
        one.wait_ready(deadline=BACK)
    stage.finish()


def _wait_done(stage: Stage, count: int, *, deadline: float) -> float:
    began = time.monotonic()
    query = "SELECT count(*) FROM bellwire.job WHERE state = 'succeeded'"

    def done() -> int:
        row = stage.conn.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    wait_until(lambda: done() >= count, deadline=deadline, describe=lambda: f"{count} jobs; {done()} are")
    return time.monotonic() - began


def _owner(stage: Stage, kind: str) -> int | None:
    """The pid of the relay that serves it."""
    row = stage.conn.execute(
        "SELECT r.pid FROM bellwire.kind_owner o JOIN bellwire.relay r ON r.id = o.relay"
        " WHERE o.kind = %s AND o.expires_at > bellwire.now()",
        (kind,),
    ).fetchone()
    return None if row is None else int(row[0])


def _wait_shared(stage: Stage, relays: list[Daemon]) -> None:
    """Five names among them: each relay has one at least, and none begins to serve another for a while."""
    since, last = time.monotonic(), 0

    def settled() -> bool:
        nonlocal since, last
        if (count := gains(*relays)) != last:
            since, last = time.monotonic(), count
        serving = {_owner(stage, kind) for kind in ("*", *KINDS)}
        return len(serving - {None}) >= min(3, len(relays)) and time.monotonic() - since > 3.0

    wait_until(settled, deadline=40, describe=lambda: f"kinds to be shared; {last} gains so far")


# --- B15 ---


def test_a_relay_that_was_frozen_beyond_its_ownership_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    """Frozen between its admission and the hints; the other one has published them when it goes on."""
    stage.conn.execute(
        "CREATE TABLE public.touched (pid integer, at timestamptz DEFAULT clock_timestamp());"
        "CREATE FUNCTION public.touch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$ BEGIN INSERT INTO public.touched VALUES (pg_backend_pid()); RETURN NULL; END $$;"
        "CREATE TRIGGER touch AFTER UPDATE ON bellwire.outbox FOR EACH ROW EXECUTE FUNCTION public.touch()"
    )
    barrier = Barrier(tmp_path, "relay.admitted")
    frozen = stage.relay(env={**BRISK, **barrier.environment}).wait_ready()
    # Of kinds that are shared anew the first in the alphabet stay where they are.
    with Deaf(stage.database, 1, 50, kinds=["block"]):
        ids = stage.submit(*[Block() for _ in range(20)])
        barrier.wait_reached()
        frozen.process.stop()
        old = _sessions(stage)
        other = stage.relay(env=BRISK).wait_ready()
        seen = _wait_hinted(stage, "block", {job.hex for job in ids}, deadline=BACK)
        assert seen == {job.hex for job in ids}
        owner = _owner(stage, "block")
        assert owner == other.process.pid
        (taken,) = stage.conn.execute("SELECT clock_timestamp()").fetchone() or (None,)
        barrier.release()
        frozen.process.cont()
        frozen.process.wait_for_output(
            r'"lost": [1-9]|"gained": [1-9].*\n(.*\n)*.*"event": "serving"', deadline=BACK
        )
        wait_until(
            lambda: _owner(stage, "thread_nap") == frozen.process.pid,
            deadline=BACK,
            describe="the relay that was frozen to have its share again",
        )
        # What it had admitted it still hints, which is harmless; it may be too late for that.
        late = hinted(stage, "block")
        print(f"{len(late)} late hints")
        assert _owner(stage, "block") == owner
        rows = stage.conn.execute(
            "SELECT count(*) FROM public.touched WHERE at > %s AND pid = ANY(%s)", (taken, old)
        ).fetchone()
        assert rows == (0,)
    stage.consumer().wait_ready()
    stage.finish()


def _sessions(stage: Stage) -> list[int]:
    rows = stage.conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND usename = 'bellwire_relay'"
    )
    return [pid for (pid,) in rows.fetchall()]


def _wait_hinted(stage: Stage, kind: str, wanted: set[str], *, deadline: float) -> set[str]:
    seen: set[str] = set()

    def all_seen() -> bool:
        nonlocal seen
        seen |= {job for one in hinted(stage, kind) for job in one}
        return wanted <= seen

    wait_until(
        all_seen, deadline=deadline, describe=lambda: f"hints of {len(wanted)}; there were {len(seen)}"
    )
    return seen


# --- B16 ---

DEATHS, TIMEOUT_MS = 6, 200


@pytest.mark.slow
def test_no_job_is_forgotten_by_relays_that_are_killed_while_their_statements_time_out(stage: Stage) -> None:
    """B16: under a load, with ownership rows that somebody locks for longer than a statement may take."""
    options = quote(f"-c statement_timeout={TIMEOUT_MS}ms")
    env = {
        **BRISK,
        "BELLWIRE_DATABASE_URL": f"{stage.database.url_as('bellwire_relay')}?options={options}",
        "BELLWIRE_LOG_LEVEL": "debug",
    }
    consumer = stage.consumer(slots=20).wait_ready()
    relays = [stage.relay(env=env).wait_ready()]
    dice = random.Random(16)
    with (
        Load(stage.database, jobs=any_kind) as load,
        stage.database.connect(autocommit=False) as other,
        repeatedly(_holding(other, seconds=2 * TIMEOUT_MS / 1000), every=0.4),
    ):
        for _ in range(DEATHS):
            relays[-1].process.wait_for_output('"event": "serving"')
            time.sleep(dice.uniform(0.0, 2.5))
            relays[-1].kill()
            relays.append(stage.relay(env=env))
        committed = load.stop()
    relays[-1].wait_ready()
    stage.wait_done(committed, deadline=BACK)
    timed_out = sum(len(one.lines(r'"error": "QueryCanceled"')) for one in relays)
    print(f"{len(committed)} jobs, {DEATHS} kills, {timed_out} statements timed out")
    assert timed_out >= DEATHS // 2, "the fault was real"
    assert consumer.reds() == {}
    stage.finish()


def _holding(other: psycopg.Connection[Any], *, seconds: float) -> Callable[[], None]:
    def hold() -> None:
        other.execute("SELECT FROM bellwire.kind_owner FOR UPDATE")
        time.sleep(seconds)
        other.rollback()

    return hold


# --- B19 ---

ELSEWHERE = 10.0
"""Seconds until another relay has published: the confirm's deadline (2 s), an ownership's length without one
(2 s), two renewals (1.4 s), and what a loaded machine adds."""


def test_kinds_of_a_relay_whose_publishes_hang_go_to_another(
    stage: Stage, amqp_proxy: Proxy, amqp_proxy_url: str
) -> None:
    """B19, and the last sentence of P31: it lives, its database is well, only its publishes hang."""
    hung = stage.relay(amqp=amqp_proxy_url, env=BRISK).wait_ready()
    other = stage.relay(env=BRISK).wait_ready()
    # With hints only, so that a job that runs was hinted.
    consumer = stage.consumer(env={"BELLWIRE_CONSUMER_POLL": "false"}).wait_ready()
    _wait_shared(stage, [hung, other])
    theirs = [kind for kind in KINDS if _owner(stage, kind) == hung.process.pid]
    assert theirs
    for kind in theirs:
        stage.wait_done(stage.submit(make(kind)), deadline=BACK)
    amqp_proxy.freeze()
    took = stage.wait_done(stage.submit(*[make(kind) for kind in theirs]), deadline=ELSEWHERE)
    print(f"{theirs} published by the other relay after {took:.1f} s")
    assert [_owner(stage, kind) for kind in theirs] == [other.process.pid] * len(theirs)
    assert hung.process.code is None
    hung.wait_red("broker")
    assert other.reds() == {}
    amqp_proxy.thaw()
    hung.wait_ready(deadline=BACK)
    # It has none of them for a minute; nobody is left without.
    stage.wait_done(stage.submit(*[make(kind) for kind in KINDS]), deadline=BACK)
    assert stage.claimed_by("poll", consumer) == 0
    stage.finish()


# --- B22 ---


def test_relays_that_die_between_confirm_and_bookkeeping(stage: Stage) -> None:
    """B22: each hints all that is out and dies of the first confirm. Hints come many times, jobs run once."""
    jobs, deaths = 20, 5
    with Deaf(stage.database, 1, 50):
        ids = stage.submit(*[Quick() for _ in range(jobs)])
        for _ in range(deaths):
            relay = stage.relay(env={**BRISK, **kill_at("relay.published")})
            assert relay.process.wait_exit(within=20) == -9
            relay.hurt = True
        depth = stage.admin.wait_for_queue(stage.queue(), unacked=0).depth
        assert depth > jobs
    consumer = stage.consumer().wait_ready()
    stage.relay(env=BRISK).wait_ready()
    stage.wait_done(ids)
    stage.admin.wait_for_queue(stage.queue(), depth=0)
    stale = consumer.metric("bellwire_hint_heard_total", result="stale")
    print(f"{depth} hints of {jobs} jobs after {deaths} deaths; {stale:.0f} were heard as stale")
    assert stale >= depth - jobs
    stage.finish()
