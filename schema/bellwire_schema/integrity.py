"""The invariants of all rows, each as a query that finds what breaks it; every one finds nothing, always.

They hold in every committed snapshot, not only at rest, so they may be asked while everything runs. They read
whole tables.
"""

from collections.abc import Iterator

from sqlalchemy import Connection, text

# What is held -> the ids of the jobs that break it.
_BROKEN = {
    "a ready job has a wake-up": """
        SELECT j.id FROM bellwire.job j WHERE j.state = 'ready'
           AND NOT EXISTS (SELECT FROM bellwire.outbox o WHERE o.job_id = j.id)""",
    "a wake-up has a ready job": """
        SELECT o.job_id FROM bellwire.outbox o
         WHERE NOT EXISTS (SELECT FROM bellwire.job j WHERE j.id = o.job_id AND j.state = 'ready')""",
    "a wake-up agrees with its job": """
        SELECT j.id FROM bellwire.job j JOIN bellwire.outbox o ON o.job_id = j.id
         WHERE (o.kind, o.version, o.tenant) IS DISTINCT FROM (j.kind, j.version, j.tenant)""",
    "an attempt has its job": """
        SELECT a.job_id FROM bellwire.attempt a
         WHERE NOT EXISTS (SELECT FROM bellwire.job j WHERE j.id = a.job_id)""",
    "an effect has its job": """
        SELECT e.job_id FROM bellwire.effect e
         WHERE NOT EXISTS (SELECT FROM bellwire.job j WHERE j.id = e.job_id)""",
    "an attempt's number is its job's own": """
        SELECT a.job_id FROM bellwire.attempt a JOIN bellwire.job j ON j.id = a.job_id
         WHERE a.number < 1 OR a.number > j.attempt OR a.generation > j.generation
        UNION
        SELECT job_id FROM bellwire.attempt GROUP BY job_id, number HAVING count(*) > 1""",
    "a running attempt has no ending": """
        SELECT j.id FROM bellwire.job j JOIN bellwire.attempt a ON a.id = j.attempt_id""",
    "a succeeded job succeeded in exactly one attempt, its last": """
        SELECT j.id FROM bellwire.job j
          LEFT JOIN bellwire.attempt a ON a.job_id = j.id AND a.outcome = 'succeeded'
         WHERE j.state = 'succeeded'
         GROUP BY j.id, j.attempt HAVING count(a.id) <> 1 OR max(a.number) <> j.attempt""",
    "only a succeeded job has a success": """
        SELECT a.job_id FROM bellwire.attempt a JOIN bellwire.job j ON j.id = a.job_id
         WHERE a.outcome = 'succeeded' AND j.state <> 'succeeded'""",
    "every attempt that ended is on record": """
        SELECT j.id FROM bellwire.job j
          LEFT JOIN bellwire.attempt a ON a.job_id = j.id
         WHERE j.attempt < 1000000
         GROUP BY j.id, j.attempt, j.state
        HAVING count(a.id) <> j.attempt - (CASE WHEN j.state = 'running' THEN 1 ELSE 0 END)""",
    "a tally is never more than the attempts": """
        SELECT id FROM bellwire.job
         WHERE LEAST(attempts_used, unknown_errors, deaths, waits, releases) < 0
            OR attempts_used > attempt OR waits > attempt OR releases > attempt
            OR unknown_errors > attempts_used OR deaths > attempts_used""",
    "a key that was given up is not held": """
        SELECT id FROM bellwire.job
         WHERE key IS NOT NULL
           AND (unique_until = 'finished' AND finished_at IS NOT NULL
                OR unique_until = 'started' AND attempt > 0 AND generation = 1)""",
    "a lease reaches past its last heartbeat": """
        SELECT id FROM bellwire.job WHERE lease_expires_at < heartbeat_at""",
}


def invariants(connection: Connection) -> Iterator[tuple[str, int, str | None]]:
    """Each invariant, how many rows break it, and one of them."""
    for name, broken in _BROKEN.items():
        query = f"SELECT count(*), min(id::text) FROM ({broken}) AS broken (id)"  # noqa: S608 - our own text
        count, example = connection.execute(text(query)).one()
        yield name, count, example
