"""Both sides well, and at different virtual hosts: no hint ever comes, and nothing is refused. Polling must
carry everything at a pace that nobody minds, and the stall must be said.
"""

import time

from bellwire_testkit.rabbitmq import Admin
from bellwire_testkit.waiting import wait_until
from tests.conftest import vhost_of
from tests.faults.app import Quick
from tests.faults.stage import Stage

JOBS = 300
ALL_BY_POLLS_S = 10.0
"""Without a broker they take about a second; waiting a second for each window of them would take 25 s."""
SAID_S = 40.0


def test_hints_that_go_elsewhere_cost_little_and_are_missed(stage: Stage, amqp_admin: Admin) -> None:
    other = f"{vhost_of(stage.amqp)}-other"
    amqp_admin.create_vhost(other)
    relay = stage.relay().wait_ready()
    elsewhere = f"{stage.amqp.rpartition('/')[0]}/{other}"
    consumer = stage.consumer("quick", amqp=elsewhere).wait_ready()
    took = stage.wait_done(stage.submit(*[Quick(n=n) for n in range(JOBS)]), deadline=60)
    stage.measured(f"{JOBS} jobs whose hints went elsewhere", took, bound=ALL_BY_POLLS_S)

    ends = time.monotonic() + SAID_S
    while "broker" not in (consumer.reds() or {}):
        stage.run_one()
        assert time.monotonic() < ends, "nobody says that hints do not come"
    reason = (consumer.reds() or {})["broker"]
    assert "same broker and virtual host" in reason
    assert relay.reds() == {}
    wait_until(
        lambda: any("same broker and virtual host" in found.text for found in stage.doctor("broker")),
        deadline=15,
        describe="doctor to say it",
    )
    stage.finish()
    amqp_admin.delete_vhost(other)
