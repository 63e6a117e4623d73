"""A single submit and a set of one write the same rows: the plain case has an INSERT of its own."""

import json
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.integration.edge_stage import Stage

# What must differ: made anew for each job.
_OWN = {"id", "job_id"}
_FAR = "2999-01-01 00:00:00+00:00"

WAYS: list[dict[str, Any]] = [
    {},
    {"tenant": "acme", "priority": 7, "trace_context": {"traceparent": "00-1"}},
    {"run_in": "1 hour", "max_age": "2 days"},
    {"deadline": _FAR},
    {"args_digest": "00ff", "codec": "sealed", "ordering_key": "line"},
    {"kind": "nobody_applied"},
]


@pytest.mark.parametrize("fields", WAYS, ids=lambda fields: "-".join(fields) or "plain")
@pytest.mark.parametrize("key", [None, "order-17"])
@pytest.mark.usefixtures("clock")
def test_both_ways_write_the_same_rows(
    conn: psycopg.Connection[Any], fields: dict[str, Any], key: str | None
) -> None:
    Stage(conn).kind()
    job = {"kind": "work", "version": 2, "payload": {"n": 1}, **fields}
    if key is not None:
        job |= {"key": key, "unique_until": "finished"}
    single = job | ({"args_digest": bytes.fromhex(job["args_digest"])} if "args_digest" in job else {})
    for name in ("payload", "trace_context"):
        if name in single:
            single[name] = json.dumps(single[name])
    named = ", ".join(f"{name} => %({name})s" for name in single)
    with conn.transaction():
        conn.execute(f"SELECT bellwire.try_submit({named})".encode(), single)
        one = _rows(conn)
        raise psycopg.Rollback
    with conn.transaction():
        conn.execute("SELECT bellwire.try_submit_many(%s::jsonb)", (json.dumps([job]),))
        many = _rows(conn)
        raise psycopg.Rollback
    assert one["job"]
    for table, row in one.items():
        assert _still(row, one) == _still(many[table], many), table


def _rows(conn: psycopg.Connection[Any]) -> dict[str, dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return {
            table: cursor.execute(f"SELECT * FROM bellwire.{table}".encode()).fetchone() or {}
            for table in ("job", "outbox")
        }


def _still(row: dict[str, Any], all_rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Instants as distances from the job's making, ids left out."""
    job = all_rows["job"]
    instants = {name for name in row if name.endswith("_at") or name == "rank"}
    still = {
        name: value - job["created_at"] if name in instants and value is not None else value
        for name, value in row.items()
        if name not in _OWN
    }
    if str(row.get("deadline_at")) == _FAR:
        # An instant that was given stays, whenever the job is made, and the age follows from it.
        still["deadline_at"] = row["deadline_at"]
        still["max_age"] = row["run_at"] + row["max_age"] - row["deadline_at"]
    return still
