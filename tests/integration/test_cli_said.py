"""What the commands say to people: whole ids on a narrow screen, one name for a key, and true words."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from bellwire_console.cli import output
from bellwire_console.cli.run import run
from bellwire_testkit.databases import Database

Told = Callable[..., tuple[int, str]]


@pytest.fixture
def told(database: Database, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Told:
    """The exit code of a command line, and what it printed."""
    monkeypatch.setenv("BELLWIRE_DATABASE_URL", database.url)

    def command(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = run(arguments)
        out, err = capfd.readouterr()
        assert err == ""
        return code, out

    return command


@pytest.fixture
def failed(conn: psycopg.Connection[Any]) -> list[str]:
    """Three failed jobs with long names, the newest first."""
    rows = conn.execute(
        """SELECT job_id::text FROM generate_series(1, 3) AS n, bellwire.submit(
               'statements.render_monthly', 1, '{}', tenant => 'acme', key => 'account-' || n,
               unique_until => 'pruned')"""
    ).fetchall()
    conn.execute(
        """WITH numbered AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM bellwire.job)
           UPDATE bellwire.job j
              SET state = 'failed', reason = 'exhausted', finished_at = now(), key = NULL,
                  last_code = 'mail_down', label = 'account-' || n,
                  last_message = 'the mail server did not answer for ' || j.id
             FROM numbered WHERE numbered.id = j.id"""
    )
    conn.execute("DELETE FROM bellwire.outbox")
    return sorted((row[0] for row in rows), reverse=True)


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 200])
def test_ids_stay_whole_on_any_screen(
    told: Told, failed: list[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(output, "_screen", lambda: columns)
    lines = told("jobs", "list")[1].splitlines()
    for job in failed:
        (line,) = (line for line in lines if job in line)
        assert "failed" in line
        assert len(line) <= columns or columns < 80
    assert any("not shown here" in line for line in lines) == (columns < 140)
    assert failed[0] in told("jobs", "list", "--group-by", "error")[1]
    assert failed[0] in told("jobs", "show", failed[0])[1]


def test_ids_stay_whole_at_a_real_terminal(told: Told, failed: list[str]) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "bellwire_console.cli", "jobs", "list"],
        stdout=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:
            # How Linux says that the other end of a terminal was closed.
            pass
        os.close(ours)
    assert process.returncode == 0
    assert all(job in said.decode() for job in failed)


def test_a_key_is_called_key_everywhere(told: Told, failed: list[str]) -> None:
    for command in (("jobs", "list"), ("jobs", "show", failed[0])):
        code, text = told(*command)
        assert (code, "label" in text, "key" in text) == (0, False, True)
    (newest, *_) = json.loads(told("jobs", "list", "--json")[1])["jobs"]
    shown = json.loads(told("jobs", "show", failed[0], "--json")[1])
    # The key stays on record where the job has let go of it.
    assert newest["key"] == shown["key"] == "account-3"
    assert shown["key_held"] is False
    assert "label" not in newest | shown


def test_output_that_nobody_reads_ends_quietly(told: Told, conn: psycopg.Connection[Any]) -> None:
    conn.execute("SELECT bellwire.submit('greet', 1, '{}') FROM generate_series(1, 2000)")
    for form in ([], ["--json"]):
        with subprocess.Popen(
            [sys.executable, "-m", "bellwire_console.cli", "jobs", "list", "--limit", "2000", *form],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


def test_redrive_says_what_became_of_each(
    told: Told, failed: list[str], conn: psycopg.Connection[Any]
) -> None:
    again = ("--reason", "mail is back", "--actor", "ana")
    code, text = told("jobs", "redrive", failed[0], failed[0], *again)
    assert (code, "redriven" in text) == (0, True)
    # Somebody took the key of the second; the third goes all the same.
    row = conn.execute(
        """SELECT job_id::text FROM bellwire.submit('statements.render_monthly', 1, '{}', tenant => 'acme',
               key => 'account-2', unique_until => 'pruned')"""
    ).fetchone()
    assert row is not None
    unknown = str(uuid4())
    code, text = told("jobs", "redrive", *failed, unknown, *again, "--json")
    assert code == 1
    assert [(one["job_id"], one["outcome"], one["holder"]) for one in json.loads(text)["jobs"]] == [
        (failed[0], "not_redrivable", None),
        (failed[1], "key_taken", row[0]),
        (failed[2], "redriven", None),
        (unknown, "not_found", None),
    ]
    code, text = told("jobs", "redrive", failed[1], *again)
    assert (code, f"job {row[0]} has its key" in text) == (1, True)
    audit = conn.execute(
        "SELECT actor, reason, job_id::text FROM bellwire.audit WHERE action = 'redrive' ORDER BY id"
    ).fetchall()
    assert audit == [("ana", "mail is back", failed[0]), ("ana", "mail is back", failed[2])]


def test_a_tenant_whose_work_is_done_is_known(told: Told, failed: list[str]) -> None:
    code, text = told("explain", "acme")
    assert code == 0
    assert f"nothing is ready or runs; its newest job {failed[0]}" in text
    assert "(statements.render_monthly) failed " in text


def test_a_version_is_one_of_those_applied(told: Told, conn: psycopg.Connection[Any]) -> None:
    conn.execute("INSERT INTO bellwire.kind (name, app, versions) VALUES ('greet', 'shop', '{1,3}')")
    bare = ("submit", "greet", "--no-key", "--payload", "{}")
    assert told(*bare)[0] == 0
    assert told(*bare, "--version", "1")[0] == 0
    assert told(*bare, "--version", "2", "--unapplied")[0] == 0
    rows = conn.execute("SELECT version FROM bellwire.job ORDER BY id").fetchall()
    assert rows == [(3,), (1,), (2,)]


def test_migrate_as_sql_answers_with_no_rows(told: Told) -> None:
    """What it selects goes into psql's variables, so that `psql -q` has nothing to print."""
    text = told("migrate", "--sql")[1]
    bare = [line for line in text.splitlines() if line.startswith("SELECT")]
    assert [line for line in bare if "AS missing" not in line and "AS current" not in line] == []
