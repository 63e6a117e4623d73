"""Tables as they are after months, and the plans of the statements inside a call as the server ran them.

auto_explain tells each statement of a function by a notice, with the rows that it really met. Three tables:
one that nobody ever analysed, one analysed when it was tiny and nothing ran (with plans that were made
then), and one large and analysed. Autovacuum is off, so they stay what they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from bellwire_testkit.databases import Database
from tests.integration.edge_stage import Conn

KINDS = [f"kind_{n}" for n in range(20)]
ADMITTED = KINDS[:3]
TABLES = ("job", "outbox", "attempt")
_QUIET = "ALTER TABLE bellwire.{} SET (autovacuum_enabled = off)"
# Ids ascend as UUIDv7 do. Of each 100 jobs `running` run, 10 are ready (half of them admitted, in kinds that
# have admissions), 5 are scheduled (half of them due), the rest is done.
_GROW = """
WITH made AS (
    INSERT INTO bellwire.job (
        id, kind, version, key, label, unique_until, payload, tenant, state, reason, run_at, eligible_at,
        deadline_at, attempt, attempts_used, attempt_id, token, consumer, started_at, heartbeat_at,
        lease_expires_at, lease, progress_at, created_at, finished_at)
    SELECT (lpad(to_hex(%(first)s + i), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid,
           'kind_' || i %% 20, 1, 'key-' || %(first)s + i, 'key-' || %(first)s + i, 'pruned', '{}',
           't' || i / 20 %% 50, s.state, CASE WHEN s.state = 'scheduled' THEN 'run_at' END,
           now() + (i %% 3000 - 1500) * interval '1 second', now(),
           CASE WHEN i %% 7 = 0 THEN now() + (i %% 1000 - 20) * interval '1 hour' END,
           1, 1,
           CASE WHEN s.state = 'running' THEN gen_random_uuid() END,
           CASE WHEN s.state = 'running' THEN gen_random_uuid() END,
           CASE WHEN s.state = 'running' THEN %(consumer)s::uuid END,
           CASE WHEN s.state = 'running' THEN now() END,
           CASE WHEN s.state = 'running' THEN now() END,
           CASE WHEN s.state = 'running' THEN now() + (i %% 300 - 10) * interval '1 second' END,
           CASE WHEN s.state = 'running' THEN interval '30 seconds' END,
           CASE WHEN s.state = 'running' THEN now() END,
           now(),
           CASE WHEN s.state = 'succeeded' THEN now() - (i %% 10000) * interval '2 minutes' END
      FROM generate_series(1, %(count)s) AS i
     CROSS JOIN LATERAL (
        SELECT CASE WHEN i / 20 %% 100 < %(running)s THEN 'running'
                    WHEN i / 20 %% 100 < %(running)s + 10 THEN 'ready'
                    WHEN i / 20 %% 100 < %(running)s + 15 THEN 'scheduled' ELSE 'succeeded' END AS state) AS s
    RETURNING id, kind, version, tenant, state, eligible_at, attempt, finished_at),
woken AS (
    INSERT INTO bellwire.outbox (job_id, kind, version, tenant, rank, eligible_at, admitted_at)
    SELECT id, kind, version, tenant, eligible_at, eligible_at,
           CASE WHEN kind = ANY (%(admitted)s) AND hashtext(id::text) %% 2 = 0
                THEN now() - abs(hashtext(id::text)) %% 120 * interval '1 second' END
      FROM made WHERE state = 'ready')
INSERT INTO bellwire.attempt (id, job_id, number, generation, started_at, ended_at, outcome)
SELECT gen_random_uuid(), id, attempt, 1, finished_at, finished_at, 'succeeded'
  FROM made WHERE state = 'succeeded'
"""


def quiet(conn: Conn) -> None:
    """No autovacuum: statistics stay as the test leaves them."""
    for table in TABLES:
        conn.execute(_QUIET.format(table).encode())


def grow(conn: Conn, count: int, *, first: int, consumer: UUID, running: int) -> None:
    values = {"count": count, "first": first, "consumer": consumer, "running": running, "admitted": ADMITTED}
    conn.execute(_GROW.encode(), values)


@dataclass(frozen=True)
class Scan:
    """One scan of one of our tables: by which index ("ctid": by place), and how many rows it met."""

    table: str
    node: str
    index: str | None
    rows: float
    statement: str


class Explained:
    """A session whose every statement is explained, also those inside functions."""

    def __init__(self, database: Database) -> None:
        self.conn: Conn = database.connect(autocommit=False)
        self._told: list[str] = []
        self.conn.execute("LOAD 'auto_explain'")
        for setting, value in (
            ("auto_explain.log_min_duration", "0"),
            ("auto_explain.log_nested_statements", "on"),
            ("auto_explain.log_analyze", "on"),
            ("auto_explain.log_timing", "off"),
            ("auto_explain.log_format", "json"),
            ("client_min_messages", "log"),
        ):
            self.conn.execute("SELECT set_config(%s, %s, false)", (setting, value))
        self.conn.commit()
        self.conn.add_notice_handler(self._hear)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        if "plan:\n" in text:
            self._told.append(text.partition("plan:\n")[2])

    def close(self) -> None:
        self.conn.close()

    def scans(self, call: Callable[[Conn], Any]) -> list[Scan]:
        """What the call read, rolled back afterwards."""
        self.conn.rollback()
        self._told.clear()
        call(self.conn)
        found = [scan for text in self._told for scan in _scans(json.loads(text))]
        self.conn.rollback()
        return found


def _scans(plan: dict[str, Any]) -> Iterator[Scan]:
    yield from _walk(plan["Plan"], " ".join(plan["Query Text"].split())[:160])


def _walk(node: dict[str, Any], statement: str) -> Iterator[Scan]:
    kind: str = node["Node Type"]
    if "Scan" in kind and (table := node.get("Relation Name")) in TABLES:
        met = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        met += node.get("Rows Removed by Index Recheck", 0)
        index = "ctid" if kind == "Tid Scan" else node.get("Index Name") or _bitmap(node)
        yield Scan(table, kind, index, met * node["Actual Loops"], statement)
    for child in node.get("Plans", ()):
        yield from _walk(child, statement)


def _bitmap(node: dict[str, Any]) -> str | None:
    """The index below a bitmap heap scan."""
    for child in node.get("Plans", ()):
        if child["Node Type"].startswith("Bitmap"):
            return child.get("Index Name") or _bitmap(child)
    return None
