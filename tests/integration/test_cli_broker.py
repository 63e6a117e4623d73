"""What `explain` and `doctor` say of broker and hints: latency is a note, a broker given up is wrong (G9)."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from bellwire_console.cli.run import run
from bellwire_runtime.broker.topology import ARGUMENTS
from bellwire_schema import doorbell
from bellwire_schema.connection import connect
from bellwire_schema.doctor import Finding, examine
from bellwire_schema.explain import Explanation, explain
from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.relay_stage import Muscle, add_kind, submit

Conn = psycopg.Connection[Any]
RELAY, HEIR = UUID(int=5), UUID(int=6)


class Desk:
    """One relay and one consumer, and whoever asks how they stand."""

    def __init__(self, conn: Conn, database: Database) -> None:
        self.conn = conn
        self.database = database
        add_kind(conn)
        self.muscle = Muscle(conn, slots=3).beat()

    def own(self, well: bool | None, error: str | None = None, relay: UUID = RELAY) -> Desk:
        self.conn.execute(
            "SELECT bellwire.own(%s, %s, 'r1', 17, '1', '1 hour', %s, %s)", (relay, relay, well, error)
        )
        return self

    def hears(self, hears: bool | None, error: str | None = None) -> Desk:
        self.conn.execute(
            "SELECT bellwire.beat_consumer(%s, 'test', '1', 'host', 1, 3, '{work}', '{1}', false, %s, %s)",
            (self.muscle.id, hears, error),
        )
        return self

    def admitted(self) -> UUID:
        (job,) = submit(self.conn)
        self.conn.execute("SELECT bellwire.admit(%s, %s, '{}', '{}', '{}')", (RELAY, RELAY))
        return job

    def note(self, *ids: UUID, error: str = "returned: NO_ROUTE") -> None:
        self.conn.execute(
            "SELECT bellwire.note_publish(%s, %s, %s, %s)", (RELAY, RELAY, list(ids), [error] * len(ids))
        )

    def told(self, target: object) -> Explanation:
        with connect(self.database.url, application_name="test") as connection, connection.begin():
            (answer,) = explain(connection, str(target))
            return answer

    def texts(self, target: object) -> dict[str, str]:
        return {reason.code: reason.text for reason in self.told(target).reasons}

    def found(self, check: str) -> list[Finding]:
        with connect(self.database.url, application_name="test") as connection, connection.begin():
            return [finding for finding in examine(connection) if finding.check == check]


@pytest.fixture
def desk(conn: Conn, database: Database) -> Desk:
    return Desk(conn, database)


def test_a_job_says_how_often_its_hint_was_published_again(desk: Desk, clock: Clock) -> None:
    desk.own(True)
    job = desk.admitted()
    assert list(desk.texts(job)) == ["admitted"], "once is nothing to speak of"
    desk.conn.execute("SELECT * FROM bellwire.republish(%s, %s, true)", (RELAY, RELAY))
    assert desk.texts(job)["hint"].startswith("its hint was published again, the last time ")
    for times, said in ((1, "once"), (2, "twice"), (3, "3 times")):
        clock.advance(timedelta(minutes=1))
        desk.muscle.beat()
        desk.conn.execute("SELECT * FROM bellwire.republish(%s, %s)", (RELAY, RELAY))
        text = desk.texts(job)["hint"]
        assert text.startswith(f"its hint was published again {said}, the last time "), times
        assert "trouble" not in text
    # Whole hours: what the test itself takes does not show in them.
    clock.advance(timedelta(hours=4))
    text = desk.texts(job)["hint"]
    assert re.fullmatch(r"its hint was published again 3 times, the last time 4 h( 0 min)? ago", text), text


def test_a_job_says_the_last_trouble_with_its_hint(desk: Desk, clock: Clock) -> None:
    desk.own(True)
    job = desk.admitted()
    for error in ("timed out", "returned: NO_ROUTE"):
        desk.note(job, error=error)
    answer = desk.told(job)
    assert [reason.code for reason in answer.reasons] == ["admitted", "hint"]
    said, _, trouble = answer.reasons[1].text.partition("; ")
    assert re.fullmatch(r"its hint was published again twice, the last time \S+( \S+)? ago", said), said
    assert trouble == "the last trouble: returned: NO_ROUTE"
    assert not answer.wrong, "it runs all the same"


def test_the_broker_is_away(desk: Desk) -> None:
    desk.own(False, "connection refused")
    job = desk.admitted()
    text = desk.texts(job)["broker_away"]
    assert text.startswith("the broker is away (connection refused) since ")
    assert text.endswith(": consumers poll")
    assert desk.texts("work")["broker_away"] == text
    assert not desk.told(job).wrong
    (later,) = submit(desk.conn)
    assert list(desk.texts(later)) == ["next", "broker_away"], "it holds nothing back"
    submit(desk.conn, tenant="91")
    assert desk.texts("91")["broker_away"] == text
    desk.own(True)
    assert "broker_away" not in desk.texts(job)
    assert "broker_away" not in desk.texts("work")


def test_only_the_kinds_own_relay_counts(desk: Desk) -> None:
    desk.own(True)
    desk.own(False, "gone", relay=HEIR)
    job = desk.admitted()
    assert "broker_away" not in desk.texts(job)


def test_without_a_broker_nothing_is_said_of_one(desk: Desk) -> None:
    desk.own(None)
    assert list(desk.texts(desk.admitted())) == ["admitted"]
    (finding,) = desk.found("broker")
    assert finding.level == "ok"
    assert finding.text == "none was given: consumers are told by NOTIFY, and poll"


def test_doctor_says_who_publishes_and_who_hears(desk: Desk) -> None:
    desk.own(True).hears(True)
    (finding,) = desk.found("broker")
    assert (finding.level, finding.text) == (
        "ok",
        "relays that publish hints: 1; consumers that hear them: 1",
    )


def test_doctor_says_where_it_is_away_and_when_somebody_should_act(desk: Desk, clock: Clock) -> None:
    desk.own(False, "connection refused").hears(True)
    (finding,) = desk.found("broker")
    assert finding.level == "note", "a restart is no failure"
    assert finding.text.startswith("away from the relay on r1 (pid 17) since ")
    assert finding.text.endswith(": connection refused; consumers poll")
    assert "BELLWIRE_AMQP_URL" in (finding.mend or "")
    clock.advance(doorbell._AWAY + timedelta(seconds=2))
    desk.own(False, "connection refused").hears(True)
    (finding,) = desk.found("broker")
    assert finding.level == "wrong"
    assert "(5 min 2 s)" in finding.text
    desk.own(True)
    assert [f.level for f in desk.found("broker")] == ["ok"]


def test_doctor_says_which_consumers_do_not_hear(desk: Desk) -> None:
    desk.own(True).hears(False, "frozen")
    (finding,) = desk.found("broker")
    assert finding.level == "note"
    assert finding.text == (
        "1 of 1 consumers do not hear it, such as the one on host (pid 1): frozen; they poll"
    )


@pytest.mark.parametrize(
    ("well", "hears", "said"),
    [(True, None, "1 of 1 consumers were given none"), (None, True, "1 of 1 relays were given none")],
)
def test_doctor_says_when_only_one_side_was_given_a_broker(
    desk: Desk, well: bool | None, hears: bool | None, said: str
) -> None:
    desk.own(well).hears(hears)
    (finding,) = desk.found("broker")
    assert (finding.level, finding.text) == ("note", said)
    assert "alike" in (finding.mend or "")


def test_doctor_counts_hints_that_met_trouble_by_kind_and_error(desk: Desk) -> None:
    add_kind(desk.conn, "mail")
    Muscle(desk.conn, slots=9, lines=[("mail", 1)]).beat()
    desk.own(True)
    first, second = desk.admitted(), desk.admitted()
    (mail,) = submit(desk.conn, "mail")
    desk.admitted()
    desk.note(first, second)
    desk.note(mail, error="nacked")
    found = desk.found("hints")
    assert [finding.level for finding in found] == ["note", "note"]
    assert found[0].text.startswith("work: 2 unclaimed jobs have a hint that met trouble, ")
    assert found[0].text.endswith(" ago the last: returned: NO_ROUTE; they may be polled meanwhile")
    assert "declare it anew" in (found[0].mend or "")
    assert found[1].text.startswith("mail: 1 unclaimed jobs ")
    assert "policy" in (found[1].mend or "")
    desk.muscle.claim(3)
    assert [finding.text[:6] for finding in desk.found("hints")] == ["mail: "], "what was claimed is over"


def test_doctor_names_what_the_queues_do_with_a_hint(desk: Desk) -> None:
    desk.own(True)
    desk.admitted()
    desk.conn.execute("SELECT * FROM bellwire.republish(%s, %s, true)", (RELAY, RELAY))
    desk.admitted()
    (finding,) = desk.found("hints")
    assert finding.level == "ok"
    assert finding.text.startswith("no trouble with any of the 2 that are out, 1 of them published again; ")
    assert f"{ARGUMENTS['x-queue-type']} queue without a dead-letter target" in finding.text
    assert f"lives {int(ARGUMENTS['x-message-ttl']) // 60_000} min" in finding.text
    assert f"at most {ARGUMENTS['x-delivery-limit']} times (delivery limit)" in finding.text
    assert not [name for name in ARGUMENTS if "dead-letter" in name]


def test_the_viewer_may_ask(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """In both forms, with the viewer's rights alone."""
    desk.own(False, "gone")
    job = desk.admitted()
    desk.note(job, error="refused: ACCESS_REFUSED")
    login = f"viewer_{uuid4().hex[:8]}"
    desk.conn.execute(f"CREATE ROLE {login} LOGIN IN ROLE bellwire_viewer".encode())
    try:
        at = ["--database-url", desk.database.url_as(login)]
        assert run(["explain", str(job), *at]) == 0
        assert "the last trouble: refused: ACCESS_REFUSED" in capfd.readouterr().out
        run(["doctor", "--json", *at])
        found = {f["check"]: f for f in json.loads(capfd.readouterr().out)["findings"]}
        assert found["broker"]["level"] == found["hints"]["level"] == "note"
    finally:
        desk.conn.execute(f"DROP ROLE {login}".encode())
