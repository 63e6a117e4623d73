"""A hint that found no queue, or that the broker refused, was not published: the job stays admitted, the
trouble is counted and said, and when the cause is gone each job runs once.
"""

from __future__ import annotations

import time
from uuid import UUID, uuid4

from bellwire_testkit.rabbitmq import RabbitServer
from bellwire_testkit.waiting import wait_until
from tests.conftest import vhost_of
from tests.faults.app import Quick
from tests.faults.load import Deaf, Load, hinted, repeatedly, said_of
from tests.faults.stage import Daemon, Stage

SAID = 5.0
"""Seconds until doctor and explain say it: trouble is written down once a second."""
BACK = 10.0
"""Seconds from the end of the fault until hints flow."""
LOST, BOUNDED = 20, 100
LENGTH = 10


def test_a_queue_that_was_deleted_is_declared_anew(stage: Stage) -> None:
    """B11: what came back is published once more, and nobody need know."""
    relay = stage.relay().wait_ready()
    with Deaf(stage.database, 1, 100):
        stage.submit(Quick())
        wait_until(lambda: hinted(stage), deadline=BACK, describe="the first hint")
        stage.admin.delete_queue(stage.queue())
        ids = [stage.submit(Quick())[0] for _ in range(LOST)]
        _wait_hinted(stage, ids)
        assert relay.metric("bellwire_hint_published_total", result="returned") >= 1
        assert relay.reds() == {}
        assert relay.connects == 1
    stage.consumer().wait_ready()
    stage.finish()


def test_a_queue_that_cannot_be_had(stage: Stage, rabbitmq: RabbitServer) -> None:
    """B11: deleted, and the relay's user may not declare it."""
    vhost, user = vhost_of(stage.amqp), f"relay-{uuid4().hex[:8]}"
    rabbitmq.admin.call("PUT", "users", user, body={"password": "secret", "tags": ""})

    def allow(*, configure: str) -> None:
        rights = {"configure": configure, "write": ".*", "read": ".*"}
        rabbitmq.admin.call("PUT", "permissions", vhost, user, body=rights)

    allow(configure=".*")
    relay = stage.relay(amqp=stage.amqp.replace("guest:guest@", f"{user}:secret@")).wait_ready()
    with Deaf(stage.database, 1, 100):
        stage.submit(Quick())
        wait_until(lambda: hinted(stage), deadline=BACK, describe="the first hint")
        confirmed = relay.metric("bellwire_hint_published_total", result="confirmed")
        allow(configure="^$")
        stage.admin.delete_queue(stage.queue())
        # What the broker knows of a user's rights a channel may have kept for as long as it lives.
        ids = [stage.submit(Quick())[0] for _ in range(LOST)]
        _wait_counted(relay, ("returned", "refused"), LOST)
        assert relay.metric("bellwire_hint_published_total", result="confirmed") == confirmed
        _trouble_is_said(stage, ("returned", "refused"), ids, at_least=LOST)
        assert "ACCESS_REFUSED" in relay.wait_red("broker", deadline=SAID)
        wait_until(
            lambda: "away from the relay" in stage.doctor("broker")[0].text,
            deadline=SAID,
            describe=lambda: f"doctor to say it; it says {stage.doctor('broker')}",
        )
        allow(configure=".*")
        # It is tried again each minute, and on each new connection.
        stage.admin.close_connections()
        _wait_hinted(stage, ids)
        relay.wait_ready(deadline=BACK)
        assert "again" in said_of(stage, ids[0])
    stage.consumer().wait_ready()
    stage.finish()
    rabbitmq.admin.call("DELETE", "users", user)


def test_a_queue_that_is_deleted_again_and_again(stage: Stage) -> None:
    """Under a load, with consumers whose subscriptions go with it."""
    relay, consumer = stage.relay(), stage.consumer()
    relay.wait_ready()
    consumer.wait_ready()
    with (
        Load(stage.database, pause=(0.0, 0.02)) as load,
        repeatedly(lambda: stage.admin.delete_queue(stage.queue()), every=0.15) as deleted,
    ):
        wait_until(lambda: deleted() >= 30, deadline=30, describe="30 deletions")
    began = time.monotonic()
    committed = load.stop()
    stage.wait_done(committed, deadline=BACK)
    stage.run_from_hint(consumer, deadline=BACK - (time.monotonic() - began))
    print(
        f"{len(committed)} jobs, {stage.claimed_by('hint', consumer)} by hints;"
        f" {relay.metric('bellwire_hint_published_total', result='returned'):.0f} hints came back"
    )
    relay.wait_ready(deadline=BACK)
    consumer.wait_ready(deadline=BACK)
    assert [one for one in stage.doctor() if one.level == "wrong"] == []
    stage.finish()


def test_a_queue_that_takes_ten(stage: Stage) -> None:
    """B23: an operator's policy bounds the length, and the broker refuses the rest."""
    relay = stage.relay().wait_ready()
    with Deaf(stage.database, 1, 2 * BOUNDED):
        stage.submit(Quick())
        wait_until(lambda: hinted(stage), deadline=BACK, describe="the first hint")
        stage.admin.set_policy({"max-length": LENGTH, "overflow": "reject-publish"})
        wait_until(
            lambda: {one.policy for one in stage.admin.queues().values()} == {"test"},
            deadline=BACK,
            describe="the policy to hold",
        )
        ids = [stage.submit(Quick())[0] for _ in range(BOUNDED)]
        # A quorum queue notices a little late that it is full.
        _wait_counted(relay, ("nacked",), BOUNDED - 3 * LENGTH)
        _trouble_is_said(stage, ("nacked",), ids[-1:], at_least=BOUNDED - 3 * LENGTH)
        mends = [one.mend or "" for one in stage.doctor("hints")]
        assert "does a policy bound the length of queues" in mends[0]
        assert stage.state(ids) == {"ready": BOUNDED}
        assert relay.reds() == {}, "most hints being refused is no reason to take the relay for broken"
    stage.consumer().wait_ready()
    stage.wait_done(ids)
    stage.finish()


def _wait_hinted(stage: Stage, ids: list[UUID]) -> None:
    seen: set[str] = set()

    def all_seen() -> bool:
        nonlocal seen
        seen |= {job for one in hinted(stage) for job in one}
        return {job.hex for job in ids} <= seen

    wait_until(
        all_seen, deadline=BACK, describe=lambda: f"hints of {len(ids)} jobs; of {len(seen)} there were"
    )


def _wait_counted(relay: Daemon, results: tuple[str, ...], count: int) -> None:
    def counts() -> dict[str, float]:
        return {one: relay.metric("bellwire_hint_published_total", result=one) for one in results}

    relay.process.wait_for(
        lambda: sum(counts().values()) >= count, deadline=SAID, describe=f"{count} hints counted {results}"
    )


def _trouble_is_said(stage: Stage, troubles: tuple[str, ...], ids: list[UUID], *, at_least: int) -> None:
    """By doctor, of how many jobs; by explain, of each of these."""

    def noted() -> int:
        texts = [one.text for one in stage.doctor("hints") if one.level == "note"]
        told = [text for text in texts if any(trouble in text for trouble in troubles)]
        return sum(int(text.split()[1].replace(",", "")) for text in told)

    def said() -> bool:
        return all(any(trouble in said_of(stage, job) for trouble in troubles) for job in ids)

    wait_until(
        lambda: noted() >= at_least and said(),
        deadline=SAID,
        describe=lambda: f"{at_least} of {troubles}; doctor says {stage.doctor('hints')}",
    )
