"""What `explain` and `doctor` say of standings made by plain SQL: a job that waits has a reason (G1, G9)."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from bellwire_console.cli.run import run
from bellwire_schema import doctor
from bellwire_schema.connection import connect
from bellwire_schema.doctor import Finding, examine
from bellwire_schema.explain import Explanation, explain
from bellwire_testkit.databases import Database

Conn = psycopg.Connection[Any]
RELAY = "00000000-0000-7000-8000-00000000000a"
CONSUMER = "00000000-0000-7000-8000-00000000000b"


@pytest.fixture
def told(database: Database) -> Iterator[Callable[[object], Explanation]]:
    """Explains a target that there is one answer to."""
    with connect(database.url, application_name="test") as connection:

        def one(target: object) -> Explanation:
            with connection.begin():
                (answer,) = explain(connection, str(target))
                return answer

        yield one


@pytest.fixture
def examined(database: Database) -> Iterator[Callable[[], dict[str, Finding]]]:
    """The worst finding of each check."""
    with connect(database.url, application_name="test") as connection:

        def all_of_them() -> dict[str, Finding]:
            worst: dict[str, Finding] = {}
            order = ("ok", "note", "wrong")
            with connection.begin():
                for finding in examine(connection, data=True):
                    known = worst.get(finding.check)
                    if known is None or order.index(finding.level) > order.index(known.level):
                        worst[finding.check] = finding
            return worst

        yield all_of_them


def submit(conn: Conn, *, tenant: str = "", **options: str) -> str:
    extra = "".join(f", {name} => '{value}'" for name, value in options.items())
    query = f"SELECT job_id FROM bellwire.submit('greet', 1, '{{}}', tenant => '{tenant}'{extra})"
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


def applied(conn: Conn, **columns: str) -> None:
    conn.execute("INSERT INTO bellwire.kind (name, app) VALUES ('greet', 'shop')")
    for name, value in columns.items():
        conn.execute(f"UPDATE bellwire.kind SET {name} = {value}".encode())


def relay(conn: Conn) -> None:
    conn.execute("SELECT bellwire.own(%s, %s, 'r1', 1, '1', '6 seconds')", (RELAY, RELAY))


def consumer(conn: Conn, *, slots: int = 2, version: int = 1, stopping: bool = False) -> None:
    conn.execute(
        "SELECT bellwire.beat_consumer(%s, 'shop', '1', 'c1', 1, %s, '{greet}', ARRAY[%s]::smallint[], %s)",
        (CONSUMER, slots, version, stopping),
    )


def admit(conn: Conn) -> None:
    conn.execute("SELECT * FROM bellwire.admit(%s, %s, '{}', '{}', '{}')", (RELAY, RELAY))


def claim(conn: Conn, slots: int = 1) -> None:
    conn.execute(
        """SELECT * FROM bellwire.claim(%s, '1.2', 'c1', '{greet}', '{1}',
               ARRAY(SELECT gen_random_uuid() FROM generate_series(1, %s)),
               ARRAY(SELECT gen_random_uuid() FROM generate_series(1, %s)))""",
        (CONSUMER, slots, slots),
    )


def settle(conn: Conn, edge: str) -> None:
    conn.execute(
        f"""SELECT s.* FROM (
                SELECT array_agg(id) AS ids, array_agg(token) AS tokens, array_agg(attempt_id) AS attempts
                  FROM bellwire.job WHERE state = 'running') AS r, bellwire.{edge}""".encode()
    )


def codes(answer: Explanation) -> list[str]:
    return [reason.code for reason in answer.reasons]


def test_nobody_is_there(conn: Conn, told: Callable[[object], Explanation]) -> None:
    answer = told(submit(conn))
    assert codes(answer) == ["waiting", "no_relay", "kind_never_applied", "no_consumer"]
    assert answer.wrong
    assert codes(told("greet")) == ["no_relay", "kind_never_applied", "no_consumer", "oldest_ready"]


def test_everybody_is_there(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(conn)
    job = submit(conn)
    relay(conn)
    consumer(conn)
    assert codes(told(job)) == ["next"]
    admit(conn)
    assert codes(told(job)) == ["admitted"]
    claim(conn)
    answer = told(job)
    assert codes(answer)[:2] == ["running", "alive"]
    assert "on c1" in answer.reasons[0].text
    assert "version 1.2" in answer.reasons[0].text
    assert not answer.wrong
    settle(conn, "succeed(r.ids, r.tokens, r.attempts, ARRAY[NULL]::jsonb[]) AS s")
    answer = told(job)
    assert codes(answer) == ["succeeded"]
    assert answer.history[-1].startswith("attempt 1 at")


def test_the_kind_is_known_to_no_version_that_runs(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(conn)
    relay(conn)
    consumer(conn, version=2)
    answer = told(submit(conn))
    assert codes(answer) == ["waiting", "no_consumer_for_version"]
    assert "the live ones run 2" in answer.reasons[1].text


def test_a_consumer_that_stops_runs_nothing_new(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(conn)
    relay(conn)
    consumer(conn, stopping=True)
    assert "no_consumer" in codes(told(submit(conn)))


def test_slots_are_busy(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(conn)
    relay(conn)
    consumer(conn, slots=1)
    submit(conn)
    admit(conn)
    claim(conn)
    assert "slots_busy" in codes(told(submit(conn)))


def test_limits(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(conn, running="3", running_per_tenant="1")
    relay(conn)
    consumer(conn, slots=9)
    submit(conn, tenant="91")
    admit(conn)
    job = submit(conn, tenant="91")
    answer = told(job)
    assert "tenant_limit" in codes(answer)
    assert "tenant 91 limit 1 of 1" in [reason.text for reason in answer.reasons]
    conn.execute("UPDATE bellwire.kind SET override = '{\"running\": 1}'")
    assert "greet limit 1 of 1 running or on their way" in [reason.text for reason in told(job).reasons]
    conn.execute("UPDATE bellwire.kind SET override_until = now() - interval '1 s'")
    assert "limit" not in codes(told(job))


def test_pauses_and_holds(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(
        conn,
        paused_at="now()",
        paused_until="now() + interval '1 h'",
        paused_by="'ana'",
        paused_reason="'PSP outage'",
    )
    relay(conn)
    consumer(conn)
    job = submit(conn, tenant="17")
    text = next(reason.text for reason in told(job).reasons if reason.code == "paused")
    assert text.startswith("the kind greet paused by ana until")
    assert text.endswith('"PSP outage"')
    conn.execute("UPDATE bellwire.kind SET paused_until = now() - interval '1 s'")
    assert "paused" not in codes(told(job))
    conn.execute("INSERT INTO bellwire.kind_tenant (kind, tenant, paused_at) VALUES ('greet', '17', now())")
    assert "tenant 17 of greet paused by somebody" in [reason.text for reason in told(job).reasons]
    conn.execute(
        """INSERT INTO bellwire.hold (kind, tenant, until, code)
           VALUES ('greet', '17', now() + interval '1 h', 'c')"""
    )
    assert "held" in codes(told("17"))
    assert "held" in codes(told("greet"))


def test_scheduled(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(conn)
    job = submit(conn, run_in="1 hour")
    (reason,) = told(job).reasons
    assert reason.code == "scheduled"
    assert "it was submitted for then" in reason.text
    conn.execute("UPDATE bellwire.job SET run_at = now() - interval '1 min'")
    assert codes(told(job)) == ["due", "no_relay"]


def test_retried_and_failed(conn: Conn, told: Callable[[object], Explanation]) -> None:
    applied(conn, max_attempts="2")
    job = submit(conn)
    relay(conn)
    consumer(conn)
    for _ in range(2):
        conn.execute("UPDATE bellwire.job SET run_at = now() - interval '1 s' WHERE state = 'scheduled'")
        conn.execute("SELECT * FROM bellwire.promote(10)")
        admit(conn)
        claim(conn)
        settle(
            conn,
            "retry(r.ids, r.tokens, r.attempts, '{unknown}', '{mail_down}', '{no answer}', '{0}', '{1h}') s",
        )
        if told(job).headline.endswith("scheduled (retry)"):
            assert "the backoff (mail_down)" in told(job).reasons[0].text
            line = told(job).history[-1]
            assert re.search(r": ran \d+ m?s, failed: mail_down, no answer; next try .* \(in ", line), line
    answer = told(job)
    assert codes(answer) == ["failed", "last_error"]
    assert answer.reasons[0].text.endswith(": exhausted")
    assert answer.reasons[1].text == "last error mail_down: no answer"
    assert len(answer.history) == 3


def test_a_dead_consumer_and_an_expired_lease(
    conn: Conn, told: Callable[[object], Explanation], examined: Callable[[], dict[str, Finding]]
) -> None:
    applied(conn)
    job = submit(conn)
    relay(conn)
    consumer(conn)
    admit(conn)
    claim(conn)
    conn.execute("SELECT bellwire.cancel(ARRAY[%s]::uuid[], 'ana', 'closed')", (job,))
    conn.execute(
        """UPDATE bellwire.job
              SET started_at = now() - interval '9 min', heartbeat_at = now() - interval '8 min',
                  created_at = now() - interval '10 min', lease_expires_at = now() - interval '7 min'"""
    )
    conn.execute("UPDATE bellwire.consumer SET beat_at = now() - interval '8 min'")
    answer = told(job)
    assert codes(answer) == ["running", "lease_expired", "consumer_gone", "cancel_requested"]
    assert answer.reasons[-1].text.startswith("asked to stop by ana")
    assert answer.wrong
    found = examined()
    assert found["leases"].level == "wrong"
    assert job in found["leases"].text


def test_tables_out_of_step(
    conn: Conn, told: Callable[[object], Explanation], examined: Callable[[], dict[str, Finding]]
) -> None:
    applied(conn)
    lost, kept = submit(conn), submit(conn)
    conn.execute("DELETE FROM bellwire.outbox WHERE job_id = %s", (lost,))
    assert codes(told(lost))[0] == "no_wake_up"
    conn.execute("DELETE FROM bellwire.job WHERE id = %s", (kept,))
    found = examined()
    assert found["wake-ups"].text == "1 wake-ups without a ready job, 1 ready jobs without a wake-up"
    assert found["data: a ready job has a wake-up"].level == "wrong"
    assert lost in found["data: a ready job has a wake-up"].text
    assert found["data: a wake-up has a ready job"].level == "wrong"


def test_what_is_set_aside(
    conn: Conn, told: Callable[[object], Explanation], examined: Callable[[], dict[str, Finding]]
) -> None:
    job = submit(conn)
    conn.execute("INSERT INTO bellwire.stuck VALUES (%s, 'claim', 'no such codec', now())", (job,))
    assert codes(told(job))[0] == "stuck"
    assert examined()["stuck"].level == "wrong"


def test_a_session_that_keeps_jobs_locked(
    conn: Conn,
    database: Database,
    examined: Callable[[], dict[str, Finding]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a minute is not waited for here."""
    monkeypatch.setattr(doctor, "_IDLE", timedelta(0))
    job = submit(conn)
    with database.connect(application_name="forgotten", autocommit=False) as other:
        other.execute("SELECT FROM bellwire.job WHERE id = %s FOR UPDATE", (job,))
        pid = other.info.backend_pid
        finding = examined()["locks"]
        other.rollback()
    assert finding.level == "wrong"
    assert "forgotten" in finding.text
    assert f"pg_terminate_backend({pid})" in (finding.mend or "")


def test_a_well_installation(conn: Conn, examined: Callable[[], dict[str, Finding]]) -> None:
    applied(conn)
    relay(conn)
    consumer(conn)
    for role in ("bellwire_relay", "bellwire_consumer"):
        # A database cloned from a template does not bring the roles' settings along.
        for name, value in (
            ("default_transaction_isolation", "read committed"),
            ("synchronous_commit", "on"),
            ("idle_in_transaction_session_timeout", "25s"),
            ("tcp_user_timeout", "25s"),
            ("statement_timeout", "30s"),
        ):
            conn.execute(f"ALTER ROLE {role} IN DATABASE {conn.info.dbname} SET {name} = '{value}'".encode())
    job = submit(conn)
    admit(conn)
    claim(conn)
    settle(conn, "succeed(r.ids, r.tokens, r.attempts, ARRAY[NULL]::jsonb[]) AS s")
    assert job
    found = examined()
    assert {check for check, finding in found.items() if finding.level == "wrong"} == set()
    assert found["consumers"].level == "ok"


def test_the_commands_say_it_in_both_forms(
    conn: Conn, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    job = submit(conn)
    at = ["--database-url", database.url]
    assert run(["explain", job, *at]) == 0
    assert "! no relay is alive" in capfd.readouterr().out
    assert run(["explain", "greet", "--json", *at]) == 0
    (answer,) = json.loads(capfd.readouterr().out)["explanations"]
    assert answer["counts"] == {"ready": 1, "running": 0}
    assert run(["doctor", "--json", *at]) == 1
    assert json.loads(capfd.readouterr().out)["wrong"] >= 1
    assert run(["doctor", *at]) == 1
    assert "WRONG relays: no relay is alive" in capfd.readouterr().out
