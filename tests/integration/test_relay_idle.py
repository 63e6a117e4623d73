"""What an installation costs while nothing happens: at most 20 statements a second in all."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest

from bellwire_testkit.databases import Database
from bellwire_testkit.processes import Processes
from bellwire_testkit.waiting import wait_until
from tests.integration.relay_stage import Conn, add_kind

KINDS, RELAYS, CONSUMERS, MEASURED_S = 200, 2, 4, 15.0

APP = """
from bellwire import Job, JobConfig
from bellwire.consumer import App, AsyncAttempt

app = App("idle")

def declare(name: str) -> None:
    class Idle(Job):
        job_config = JobConfig(kind=name, version=1, key=None)

    async def handle(job: Idle, attempt: AsyncAttempt[None]) -> None: ...

    handle.__annotations__ = {"job": Idle, "attempt": AsyncAttempt[None], "return": None}
    app.handler(Idle)(handle)

for number in range(%d):
    declare(f"idle_{number:03}")
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_idle_installation(database: Database, conn: Conn, processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "idle_app.py").write_text(textwrap.dedent(APP % KINDS))
    for number in range(KINDS):
        add_kind(conn, f"idle_{number:03}", app="idle")
    conn.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    relays = [
        processes.start("bellwire", "relay", env={"BELLWIRE_DATABASE_URL": database.url_as("bellwire_relay")})
        for _ in range(RELAYS)
    ]
    for _ in range(CONSUMERS):
        processes.start(
            "bellwire",
            "consumer",
            "--app",
            "idle_app:app",
            env={
                "BELLWIRE_DATABASE_URL": database.url_as("bellwire_consumer"),
                "PYTHONPATH": str(tmp_path),
            },
        )

    def settled_in() -> bool:
        row = conn.execute(
            "SELECT (SELECT count(*) FROM bellwire.consumer),"
            " (SELECT count(DISTINCT relay) FROM bellwire.kind_owner),"
            " (SELECT count(*) FROM bellwire.kind_owner WHERE asleep_until > now())"
        ).fetchone()
        return row == (CONSUMERS, RELAYS, KINDS + 1)

    wait_until(settled_in, deadline=60, describe=lambda: f"all to be there and asleep\n{relays[0].tail()}")
    conn.execute("SELECT pg_stat_statements_reset()")
    # The one thing waited for here is time itself: it is the rate that is asked.
    started = time.monotonic()
    time.sleep(MEASURED_S)
    rows = conn.execute(
        "SELECT r.rolname, sum(s.calls)::float8, left(s.query, 60) FROM pg_stat_statements s"
        " JOIN pg_roles r ON r.oid = s.userid JOIN pg_database d ON d.oid = s.dbid"
        " WHERE d.datname = %s AND r.rolname IN ('bellwire_relay', 'bellwire_consumer') AND s.toplevel"
        " GROUP BY 1, 3 ORDER BY 2 DESC",
        (database.name,),
    ).fetchall()
    elapsed = time.monotonic() - started
    by_role = {role: sum(calls for who, calls, _ in rows if who == role) / elapsed for role, _, _ in rows}
    print({role: round(rate, 1) for role, rate in by_role.items()})
    for role, calls, query in rows:
        print(f"{calls / elapsed:6.2f}/s {role} {' '.join(query.split())}")
    assert sum(by_role.values()) <= 20
    assert by_role["bellwire_relay"] > 0
    assert by_role["bellwire_consumer"] > 0
