"""What a broker's gauges do not show the database does: nobody schedules, hints go where nobody hears them,
the history grows. Depth at the broker is zero in all of them.
"""

from __future__ import annotations

import statistics
import time
import uuid
from typing import Any

import psycopg

from bellwire_schema.transitions import prune
from bellwire_testkit.rabbitmq import RabbitServer
from bellwire_testkit.waiting import wait_until
from tests.faults.app import Quick
from tests.faults.load import Load, quantile, slowest_start
from tests.faults.stage import Stage

SEEN = 15.0
"""Seconds until the age is measured (every five) and over the kind's objective."""
OBJECTIVE_S = 3
START = 2.0
"""Seconds from submit to start where no hint arrives."""


def test_consumers_without_a_relay(stage: Stage) -> None:
    """B17: the consumer is registered at the broker and hears nothing, since nobody decides what goes."""
    consumer = stage.consumer().wait_ready()
    ids = stage.submit(*[Quick() for _ in range(5)])
    found = {one.check: one for one in stage.doctor() if one.level == "wrong"}
    assert "none was ever seen" in found["relays"].text
    stage.admin.wait_for_consumers(stage.queue(), 1)
    stage.admin.wait_for_queue(stage.queue(), depth=0)
    relay = stage.relay()
    relay.wait_ready()
    stage.wait_done(ids)
    relay.kill()
    late = stage.submit(Quick())
    wait_until(
        lambda: "no relay is alive" in _wrong(stage, "relays"),
        deadline=30,
        describe="doctor to miss the relay",
    )
    assert stage.state(late) == {"ready": 1}
    # Nobody measures without a relay: that is what the alert on an absent metric is for.
    assert "bellwire_job_ready_age" not in consumer.get("/metrics")[1]
    stage.relay().wait_ready()
    stage.finish()


def test_a_relay_at_another_virtual_host(stage: Stage, rabbitmq: RabbitServer) -> None:
    """B17: it publishes, and is confirmed, to where nobody listens. Those who poll do not even notice."""
    vhost = f"test-{uuid.uuid4().hex[:12]}"
    rabbitmq.admin.create_vhost(vhost)
    try:
        stage.conn.execute("UPDATE bellwire.kind SET objective = make_interval(secs => %s)", (OBJECTIVE_S,))
        relay = stage.relay(amqp=rabbitmq.vhost_url(vhost)).wait_ready()
        deaf = stage.consumer(env={"BELLWIRE_CONSUMER_POLL": "false"}).wait_ready()
        ids = stage.submit(*[Quick() for _ in range(5)])
        relay.process.wait_for(
            lambda: relay.metric("bellwire_job_ready_age_seconds", kind="quick") > OBJECTIVE_S,
            deadline=SEEN,
            describe="the age to grow",
        )
        age = relay.metric("bellwire_job_ready_age_seconds", kind="quick")
        wait_until(lambda: "quick" in _wrong(stage, "waiting"), deadline=SEEN, describe="doctor to say it")
        relay.process.wait_for(
            lambda: relay.metric("bellwire_job_ready_age_seconds", kind="quick") > age,
            deadline=SEEN,
            describe="the age to grow on",
        )
        assert stage.admin.queue(stage.queue()) is not None
        stage.admin.wait_for_queue(stage.queue(), depth=0)
        assert deaf.metric("bellwire_hint_heard_total") == 0
        consumer = stage.consumer(slots=100).wait_ready()
        stage.wait_done(ids)
        ids = [stage.submit(Quick())[0] for _ in range(50)]
        stage.wait_done(ids)
        assert slowest_start(stage, ids) < START
        assert stage.claimed_by("hint", consumer) == 0
        assert _wrong(stage, "waiting") == ""
        stage.finish()
    finally:
        rabbitmq.admin.delete_vhost(vhost)


OLD, BATCH = 100_000, 500
PRUNE_FOR = 8.0
READ = 0.1
"""Seconds of a relay's admission, of half of all, on any machine; that it reads no more for a long history is
shown by what the server counts."""


def test_a_long_history_is_pruned_under_a_load_and_slows_no_admission(stage: Stage) -> None:
    """B20, as far as it is built: wake-ups are deleted at the claim, so only the history can grow. Nothing of
    a relay calls `prune` yet; here the test does, in small batches, as a loop of it would.
    """
    stage.conn.execute(
        "WITH old AS (SELECT gen_random_uuid() AS id,"
        " bellwire.now() - interval '100 days' + n * interval '1 s' AS at FROM generate_series(1, %s) AS n),"
        " jobs AS (INSERT INTO bellwire.job (id, kind, version, payload, codec, tenant, state, priority,"
        " attempt, attempts_used, run_at, eligible_at, created_at, finished_at) SELECT id, 'quick', 1, '{}',"
        " 'json', '', 'succeeded', 0, 1, 1, at, at, at, at FROM old)"
        " INSERT INTO bellwire.attempt (id, job_id, number, generation, started_at, ended_at, outcome)"
        " SELECT gen_random_uuid(), id, 1, 1, at, at, 'succeeded' FROM old",
        (OLD,),
    )
    relay, consumer = stage.relay(), stage.consumer(slots=50)
    relay.wait_ready()
    consumer.wait_ready()
    stage.run_from_hint(consumer)
    reads: list[float] = []
    pruned = 0
    scans = _scans(stage)
    with Load(stage.database, writers=4, pause=(0.0, 0.02)) as load, stage.database.connect() as conn:
        ends = time.monotonic() + PRUNE_FOR
        while time.monotonic() < ends:
            pruned += prune(conn, limit=BATCH)
            began = time.monotonic()
            _admit(conn)
            reads.append(time.monotonic() - began)
        committed = load.stop()
    assert _scans(stage) == scans, "nobody read the whole table"
    stage.wait_done(committed)
    left = stage.conn.execute(
        "SELECT count(*) FROM bellwire.job WHERE finished_at < bellwire.now() - interval '1 day'"
    ).fetchone()
    assert left == (OLD - pruned,)
    rate = len(committed) / PRUNE_FOR
    print(
        f"{pruned} pruned in {PRUNE_FOR:g} s under {rate:.0f} submits/s; admission median"
        f" {statistics.median(reads) * 1000:.1f} ms, 99th percentile {quantile(reads, 0.99) * 1000:.1f} ms"
    )
    assert pruned / PRUNE_FOR > rate, "else the history would grow"
    assert statistics.median(reads) < READ
    stage.finish()


def _admit(conn: psycopg.Connection[Any]) -> None:
    """What the relay asks again and again, in its name, and taken back."""
    with conn.transaction(force_rollback=True):
        conn.execute(
            "SELECT count(*) FROM bellwire.kind_owner o CROSS JOIN LATERAL"
            " bellwire.admit(o.relay, o.token, '{}', '{}', '{}', false) WHERE o.kind = 'quick'"
        )


def _scans(stage: Stage) -> int:
    row = stage.conn.execute(
        "SELECT seq_scan FROM pg_stat_user_tables WHERE relid = 'bellwire.job'::regclass"
    ).fetchone()
    assert row is not None
    return int(row[0])


def _wrong(stage: Stage, check: str) -> str:
    return "; ".join(one.text for one in stage.doctor(check) if one.level == "wrong")
