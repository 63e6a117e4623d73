"""A submit whose COMMIT was never answered is repeated with the id made before the first try."""

from uuid import UUID, uuid4

import psycopg
import pytest

from bellwire import Job, JobConfig, submit
from bellwire_testkit.databases import Database
from bellwire_testkit.proxy import Proxy


class Bill(Job):
    job_config = JobConfig(kind="bill", version=1, key=("number",), unique_until="started")
    number: int


def _submit(url: str, job_id: UUID) -> str:
    with psycopg.connect(url, connect_timeout=5) as conn:
        return submit(conn, Bill(number=7), job_id=job_id).outcome


@pytest.mark.parametrize("committed", [False, True])
def test_a_repeat_after_a_lost_answer_makes_one_job(
    database: Database, proxy: Proxy, committed: bool
) -> None:
    job_id = uuid4()
    if committed:
        proxy.lose_answer("COMMIT")
    else:
        proxy.cut_before("COMMIT")
    with pytest.raises(psycopg.OperationalError):
        _submit(database.url_through(proxy.port), job_id)
    proxy.wait_cut()

    with database.connect() as conn:
        if committed:
            # The job was started and its key is free again: the key alone could no longer tell.
            conn.execute("UPDATE bellwire.job SET key = NULL WHERE id = %s", (job_id,))
        assert _submit(database.url, job_id) == ("existing" if committed else "created")
        assert conn.execute("SELECT id FROM bellwire.job").fetchall() == [(job_id,)]
        assert conn.execute("SELECT job_id FROM bellwire.outbox").fetchall() == [(job_id,)]
