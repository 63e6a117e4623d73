"""The handler comes to the same end from wherever an earlier attempt has left things."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bellwire import submit
from bellwire.testing import Harness
from examples.statements.render import render
from examples.statements.work import app
from tests.acceptance.statements_shop import PERIOD, Shop, shop

__all__ = ["shop"]


def rows(shop: Shop) -> list[tuple[Any, ...]]:
    with psycopg.connect(shop.url) as conn:
        return conn.execute("SELECT key, sha256, attempt FROM shop.statement ORDER BY key").fetchall()


def temporaries(shop: Shop) -> list[Path]:
    return list(shop.folder.glob(".temporary/*"))


def expected(shop: Shop) -> bytes:
    return render(shop.ledgers[0], version=3).pdf


async def test_a_statement_is_file_row_and_success(bellwire: Harness, shop: Shop) -> None:
    result = await bellwire.run(app, shop.job())
    assert (result.outcome, result.state, result.attempt) == ("succeeded", "succeeded", 1)
    assert shop.store.path(shop.key()).read_bytes() == expected(shop)
    assert rows(shop) == [(shop.key(), shop.store.checksum(shop.key()), 1)]
    assert result.value == {"key": shop.key(), "sha256": shop.store.checksum(shop.key())}
    assert temporaries(shop) == []


async def test_five_statements_add_up(bellwire: Harness, shop: Shop) -> None:
    with psycopg.connect(shop.url) as conn:
        for index, ledger in enumerate(shop.ledgers):
            receipt = submit(conn, shop.job(index))
            conn.execute(
                "INSERT INTO shop.request (account_id, period, job_id, outcome) VALUES (%s, %s, %s, %s)",
                (ledger.account_id, PERIOD, receipt.job_id, receipt.outcome),
            )
    assert [result.outcome for result in await bellwire.drain(app)] == ["succeeded"] * 5
    verdict = shop.verdict(jobs=5)
    assert [text for text, _, wrong in verdict.lines if wrong] == []


async def test_killed_before_it_began_it_is_done_by_the_next(bellwire: Harness, shop: Shop) -> None:
    died = await bellwire.run(app, shop.job(), kill_at="consumer.claimed")
    assert died.outcome == "process_died"
    assert rows(shop) == []
    bellwire.advance(timedelta(seconds=10))
    assert [(r.outcome, r.attempt) for r in await bellwire.drain(app)] == [("succeeded", 2)]
    assert rows(shop) == [(shop.key(), shop.store.checksum(shop.key()), 2)]


async def test_killed_before_its_commit_neither_row_nor_success_is_there(
    bellwire: Harness, shop: Shop
) -> None:
    died = await bellwire.run(app, shop.job(), kill_at="transaction.committing")
    assert (died.outcome, died.state) == ("process_died", "running")
    assert rows(shop) == []
    bellwire.advance(timedelta(seconds=10))
    assert [(r.outcome, r.attempt) for r in await bellwire.drain(app)] == [("succeeded", 2)]
    assert rows(shop) == [(shop.key(), shop.store.checksum(shop.key()), 2)]


async def test_killed_after_its_commit_both_are_there_and_nothing_runs_again(
    bellwire: Harness, shop: Shop
) -> None:
    died = await bellwire.run(app, shop.job(), kill_at="transaction.committed")
    assert (died.outcome, died.state) == ("process_died", "succeeded")
    assert rows(shop) == [(shop.key(), shop.store.checksum(shop.key()), 1)]
    bellwire.advance(timedelta(seconds=10))
    assert await bellwire.drain(app) == []


async def test_a_file_without_a_row_is_reused(bellwire: Harness, shop: Shop) -> None:
    left = shop.store.write_temporary(shop.key(), expected(shop), attempt=1)
    shop.store.promote(left, shop.key())
    inode = shop.store.path(shop.key()).stat().st_ino
    assert (await bellwire.run(app, shop.job())).outcome == "succeeded"
    assert shop.store.path(shop.key()).stat().st_ino == inode
    assert len(rows(shop)) == 1


async def test_what_a_dead_attempt_left_unfinished_is_cleared(bellwire: Harness, shop: Shop) -> None:
    await bellwire.run(app, shop.job(), kill_at="consumer.claimed")
    shop.store.write_temporary(shop.key(), b"%PDF- half", attempt=1)
    bellwire.advance(timedelta(seconds=10))
    assert [r.outcome for r in await bellwire.drain(app)] == ["succeeded"]
    assert temporaries(shop) == []


async def test_other_bytes_under_the_key_end_the_job_and_stay_as_they_are(
    bellwire: Harness, shop: Shop
) -> None:
    shop.store.promote(shop.store.write_temporary(shop.key(), b"%PDF- other", attempt=1), shop.key())
    result = await bellwire.run(app, shop.job())
    assert (result.outcome, result.code, result.state) == ("failed", "artifact_differs", "failed")
    assert shop.store.path(shop.key()).read_bytes() == b"%PDF- other"
    assert rows(shop) == []
    assert temporaries(shop) == []


async def test_a_row_with_another_checksum_ends_the_job(bellwire: Harness, shop: Shop) -> None:
    assert (await bellwire.run(app, shop.job())).outcome == "succeeded"
    with psycopg.connect(shop.url) as conn:  # the job is pruned, and its key free again
        conn.execute("TRUNCATE bellwire.job, bellwire.attempt")
        conn.execute("UPDATE shop.statement SET sha256 = %s", ("0" * 64,))
    result = await bellwire.run(app, shop.job())
    assert (result.code, result.state) == ("statement_differs", "failed")
    assert "0" * 64 in (result.message or "")
    assert str(shop.store.checksum(shop.key())) in (result.message or "")
    assert [row[1] for row in rows(shop)] == ["0" * 64]


async def test_the_statement_of_a_pruned_job_is_verified_not_made_again(
    bellwire: Harness, shop: Shop
) -> None:
    await bellwire.run(app, shop.job())
    before = rows(shop)
    with psycopg.connect(shop.url) as conn:
        conn.execute("TRUNCATE bellwire.job, bellwire.attempt")
    assert (await bellwire.run(app, shop.job())).outcome == "succeeded"
    assert rows(shop) == before


async def test_an_account_that_went_away_ends_the_job(bellwire: Harness, shop: Shop) -> None:
    with psycopg.connect(shop.url) as conn:
        conn.execute("DELETE FROM shop.opening")
    result = await bellwire.run(app, shop.job())
    assert (result.code, result.state) == ("no_such_period", "failed")


async def test_a_store_that_is_away_is_tried_again(bellwire: Harness, shop: Shop) -> None:
    first = await bellwire.run(app, shop.job(1))  # makes the folder
    assert first.outcome == "succeeded"
    target = shop.store.path(shop.key()).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()  # a file where a folder must be
    result = await bellwire.run(app, shop.job())
    assert (result.outcome, result.code) == ("retry", "store_unavailable")
    target.unlink()
    bellwire.advance(timedelta(minutes=5))
    assert [r.outcome for r in await bellwire.drain(app)] == ["succeeded"]
    assert shop.store.path(shop.key()).read_bytes() == expected(shop)


async def test_a_payload_of_version_2_is_drawn_as_before_there_was_a_choice(
    bellwire: Harness, shop: Shop
) -> None:
    job = shop.job()
    with psycopg.connect(shop.url) as conn:
        conn.execute(
            "SELECT * FROM bellwire.submit(kind => 'render_statement', version => 2, payload => %s::jsonb,"
            " tenant => %s, key => %s, unique_until => 'pruned')",
            (
                job.model_dump_json(exclude={"paper"}),
                job.customer,
                f"{job.account_id}:{job.period}",
            ),
        )
    assert [r.outcome for r in await bellwire.drain(app)] == ["succeeded"]
    assert shop.store.path(shop.key()).read_bytes() == expected(shop)


async def test_a_lost_artifact_shows_in_the_verdict(bellwire: Harness, shop: Shop) -> None:
    await bellwire.run(app, shop.job())
    shutil.rmtree(shop.folder)
    assert shop.verdict(jobs=1).failed == 1


@pytest.mark.parametrize("paper", ["A4", "Letter"])
async def test_the_paper_asked_for_is_the_paper_drawn_on(bellwire: Harness, shop: Shop, paper: Any) -> None:
    await bellwire.run(app, shop.job().model_copy(update={"paper": paper}))
    assert shop.store.path(shop.key()).read_bytes() == render(shop.ledgers[0], version=3, paper=paper).pdf
