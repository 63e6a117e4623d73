"""How an attempt ended, as a test wants to compare it: the words of `bellwire jobs show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from bellwire_consumer.settler import Ended

Outcome = Literal[
    "succeeded",
    "retry",
    "throttled",
    "snoozed",
    "failed",
    "stopped",
    "released",
    "recovered",
    "lost",
    "process_died",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One attempt of one job.

    outcome: "stopped": at a cancel request. "lost": it ran, but no longer owned its job. "process_died": it
        was killed; its lease is still to run out.
    code, message: of the error; the code of `RetryableError("mail_down")`, or the exception's name.
    attempt: its number, 0 where the job ended without one.
    state, reason: of the job, when the attempt had ended.
    value: what the handler returned, or `tx.complete(result=…)`.
    """

    job_id: UUID
    kind: str
    outcome: Outcome
    code: str | None
    message: str | None
    attempt: int
    state: str
    reason: str | None
    value: Any


_ATTEMPTS = """
    SELECT j.id AS job_id, j.kind,
           CASE WHEN a.id IS NULL OR i.status = 'lost' THEN 'lost' ELSE a.outcome END AS outcome,
           a.code, a.message, COALESCE(a.number, j.attempt) AS attempt, j.state, j.reason,
           CASE WHEN a.outcome = 'succeeded' THEN j.result END AS value
      FROM unnest(%s::uuid[], %s::uuid[], %s::text[]) WITH ORDINALITY AS i(job_id, attempt_id, status, n)
      JOIN bellwire.job j ON j.id = i.job_id
      LEFT JOIN bellwire.attempt a ON a.id = i.attempt_id
     ORDER BY i.n
"""
_JOB = """
    SELECT j.id AS job_id, j.kind, %s AS outcome, COALESCE(j.last_code, j.reason) AS code,
           j.last_message AS message, j.attempt, j.state, j.reason, NULL AS value
      FROM bellwire.job j WHERE j.id = %s
"""


def results_of(conn: psycopg.Connection[Any], ended: Sequence[Ended]) -> list[Result]:
    """In the order in which they ended."""
    if not ended:
        return []
    columns = (
        [one.job_id for one in ended],
        [one.attempt_id for one in ended],
        [one.status for one in ended],
    )
    with conn.cursor(row_factory=class_row(Result)) as cursor:
        return cursor.execute(_ATTEMPTS, columns).fetchall()


def result_of_job(conn: psycopg.Connection[Any], job_id: UUID, outcome: Outcome) -> Result:
    """Of a job whose attempt has no row: it died, or there was none."""
    with conn.cursor(row_factory=class_row(Result)) as cursor:
        found = cursor.execute(_JOB, (outcome, job_id)).fetchone()
    assert found is not None, f"job {job_id} is gone"
    return found
