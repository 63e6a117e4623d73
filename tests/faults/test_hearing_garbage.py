"""What else may lie in a queue: nothing in a message harms a job, a consumer, or the queue."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID, uuid4

from bellwire_runtime.broker.hint import encode
from bellwire_testkit.waiting import wait_until
from tests.faults.app import Nap, Quick
from tests.faults.stage import Daemon, Stage

MIB = 1024 * 1024
PROPERTIES: list[dict[str, object]] = [
    {},
    {"content_type": "application/json"},
    {"content_type": "application/x-python-pickle", "content_encoding": "gzip"},
    {"headers": {"x": "y", "ids": [1, 2]}, "priority": 9, "type": "?", "expiration": "60000"},
]


def test_garbage_stale_and_foreign_hints(stage: Stage) -> None:
    relay, consumer = stage.relay(), stage.consumer()
    stage.up(relay, consumer)
    done = stage.submit(*[Quick(n=n) for n in range(5)])
    stage.wait_done(done)
    later = stage.submit(Quick(), run_in=timedelta(days=1))
    good = stage.submit(*[Quick(n=n) for n in range(50)])
    whole = json.loads(encode(stage.installation, "quick", 1, done))
    before = {result: _heard(consumer, result) for result in ("garbage", "foreign", "stale")}

    garbage: list[bytes] = [
        b"",
        b"\x00" * (5 * MIB),
        b"\xff\xfe\xfd",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"null",
        b"17",
        b'"quick"',
        b"[]",
        b"{}",
        b'{"installation": NaN}',
        *(json.dumps({**whole, **change}).encode() for change in _changes(done[0])),
        *(json.dumps({k: v for k, v in whole.items() if k != gone}).encode() for gone in whole),
    ]
    foreign = [encode(UUID(int=7), "quick", 1, good)]
    many = [uuid4() for _ in range(1000)]
    naps = stage.submit(Nap())
    stale: list[bytes] = [
        encode(stage.installation, "quick", 1, done),
        encode(stage.installation, "quick", 1, [done[0]] * 10),
        encode(stage.installation, "quick", 1, [uuid4()]),
        encode(stage.installation, "quick", 1, later),
        encode(stage.installation, "quick", 1, many),
        encode(stage.installation, "quick", 2, done),
        encode(stage.installation, "nobody", 1, done),
    ]
    for number, body in enumerate([*garbage, *foreign, *stale]):
        assert stage.admin.publish(stage.queue(), body, PROPERTIES[number % len(PROPERTIES)])
    # Ids of another kind in this kind's queue are a hint like any other.
    stage.hint(naps)

    stage.wait_done([*good, *naps])
    stage.admin.wait_for_queue(stage.queue(), depth=0, unacked=0, deadline=20)
    stage.run_from_hint(consumer)

    def counted(result: str) -> int:
        return _heard(consumer, result) - before[result]

    wait_until(
        lambda: counted("garbage") == len(garbage) and counted("foreign") == len(foreign),
        describe=lambda: (
            f"{len(garbage)} garbage, {len(foreign)} foreign: {counted('garbage')}, {counted('foreign')}"
        ),
    )
    assert counted("stale") > 0
    assert consumer.connects == 1
    assert consumer.reds() == {}
    assert stage.state(later) == {"scheduled": 1}
    told = consumer.lines("no hint of this installation")
    assert 1 <= len(told) <= 8, "sampled: the 1st, 2nd, 4th …"
    assert "DROP TABLE" not in consumer.process.output
    stage.conn.execute("DELETE FROM bellwire.job WHERE id = ANY(%s)", (later,))
    stage.finish()


def test_one_id_two_hundred_times_to_eight_consumers(stage: Stage) -> None:
    relay = stage.relay()
    consumers = [stage.consumer("quick", slots=4) for _ in range(8)]
    for one in (relay, *consumers):
        one.wait_ready()
    stage.admin.wait_for_consumers(stage.queue(), 8, deadline=30)
    for one in consumers:
        one.process.stop()
    ids = stage.submit(Quick())
    wait_until(
        lambda: (
            stage.conn.execute(
                "SELECT count(*) > 0 FROM bellwire.outbox WHERE admitted_at IS NOT NULL"
            ).fetchone()
            == (True,)
        ),
        describe="the job to be admitted",
    )
    for _ in range(200):
        stage.hint(ids)
    for one in consumers:
        one.process.cont()
    stage.wait_done(ids)
    stage.admin.wait_for_queue(stage.queue(), depth=0, unacked=0, deadline=30)

    def heard() -> int:
        return sum(_heard(one, result) for one in consumers for result in ("fresh", "stale"))

    wait_until(lambda: heard() >= 200, describe=lambda: f"200 ids to be heard: {heard()}")
    assert sum(_heard(one, "fresh") for one in consumers) <= 1
    stage.finish(attempts=1)


def _heard(consumer: Daemon, result: str) -> int:
    return int(consumer.metric("bellwire_hint_heard_total", result=result))


def _changes(known: UUID) -> list[dict[str, object]]:
    """What makes a good hint a bad one."""
    return [
        {"version": 0},
        {"version": -1},
        {"version": 10**30},
        {"version": True},
        {"version": 1.0},
        {"version": "1"},
        {"kind": ""},
        {"kind": "Quick"},
        {"kind": None},
        {"kind": "q" * 200},
        {"ids": []},
        {"ids": None},
        {"ids": "0" * 32},
        {"ids": ["0" * 31]},
        {"ids": ["-" + "0" * 31]},
        {"ids": [-1]},
        {"ids": [10**40]},
        {"ids": [known.hex, None]},
        {"ids": [str(known)]},
        {"ids": [known.hex.upper()]},
        {"ids": ["'; DROP TABLE job; --".ljust(32, "x")]},
        {"ids": [uuid4().hex for _ in range(1001)]},
    ]
