"""The statement's row on a real PostgreSQL: inserted once, verified ever after, whoever comes second."""

import asyncio
import csv
from collections.abc import AsyncIterator, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from bellwire_testkit.databases import Database, Template
from bellwire_testkit.servers import PostgresServer
from bellwire_testkit.waiting import wait_until_async
from examples.statements import data
from examples.statements.ledger import Ledger, Line
from examples.statements.load import BadLedger, create_tables, load, read
from examples.statements.model import Statement
from examples.statements.record import StatementConflict, insert_or_verify, read_ledger
from examples.statements.settings import sqlalchemy_url

Sessions = async_sessionmaker[AsyncSession]
PERIOD = data.DEFAULT_PERIOD


@pytest.fixture(scope="module")
def shop_template(postgres: PostgresServer) -> Iterator[Template]:
    made = Template(postgres, create_tables)
    yield made
    made.drop()


@pytest.fixture
def shop(shop_template: Template) -> Iterator[Database]:
    made = shop_template.clone()
    yield made
    made.drop_unused()


@pytest.fixture
async def sessions(shop: Database) -> AsyncIterator[Sessions]:
    engine = create_async_engine(sqlalchemy_url(shop.url))
    yield async_sessionmaker(engine, expire_on_commit=False)
    await engine.dispose()


def statement(*, sha256: str = "a" * 64, attempt: int = 1, source: str = "c" * 64) -> Statement:
    return Statement(
        account_id=5_000_000_001,
        period=PERIOD,
        version=3,
        key="statements/5000000001/2026-05/v3.pdf",
        sha256=sha256,
        bytes=10,
        pages=1,
        source_sha256=source,
        renderer="fpdf2 1",
        job_id=UUID(int=1),
        attempt=attempt,
    )


async def recorded(sessions: Sessions) -> list[Statement]:
    async with sessions() as session:
        return list(await session.scalars(select(Statement)))


async def test_the_first_is_inserted_and_the_second_verified(sessions: Sessions) -> None:
    async with sessions.begin() as session:
        assert await insert_or_verify(session, statement())
    async with sessions.begin() as session:
        assert not await insert_or_verify(session, statement(attempt=2))
    (row,) = await recorded(sessions)
    assert row.attempt == 1
    assert row.made_at.tzinfo is not None


@pytest.mark.parametrize(
    ("source", "cause"), [("c" * 64, "renderer drew other bytes"), ("d" * 64, "ledger changed")]
)
async def test_another_checksum_is_an_error_that_names_both_and_the_cause(
    sessions: Sessions, source: str, cause: str
) -> None:
    async with sessions.begin() as session:
        await insert_or_verify(session, statement())
    async with sessions() as session:
        with pytest.raises(StatementConflict, match=cause) as caught:
            await insert_or_verify(session, statement(sha256="b" * 64, source=source))
    assert "a" * 64 in str(caught.value)
    assert "b" * 64 in str(caught.value)
    assert caught.value.ledger_changed == (source != "c" * 64)
    (row,) = await recorded(sessions)
    assert row.sha256 == "a" * 64


@pytest.mark.parametrize("same", [True, False])
async def test_a_second_writer_waits_for_the_first_and_then_verifies(
    sessions: Sessions, shop: Database, same: bool
) -> None:
    second = statement(sha256=("a" if same else "b") * 64, attempt=2)
    with shop.connect() as watcher:
        async with sessions.begin() as first:
            await insert_or_verify(first, statement())

            async def write_second() -> bool:
                async with sessions.begin() as session:
                    return await insert_or_verify(session, second)

            writing = asyncio.create_task(write_second())

            def waits() -> bool:
                return (
                    watcher.execute(
                        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                        " AND wait_event_type = 'Lock'"
                    ).fetchone()
                    is not None
                )

            await wait_until_async(waits, describe="the second writer to wait for the first")
        if same:
            assert not await writing
        else:
            with pytest.raises(StatementConflict):
                await writing
    assert [row.attempt for row in await recorded(sessions)] == [1]


async def test_a_rolled_back_first_leaves_the_place_to_the_second(sessions: Sessions) -> None:
    async with sessions() as session:
        await insert_or_verify(session, statement(sha256="b" * 64))
        await session.rollback()
    async with sessions.begin() as session:
        assert await insert_or_verify(session, statement())


@pytest.mark.parametrize("sha256", ["", "A" * 64, "a" * 63, "g" * 64])
async def test_the_table_refuses_what_is_no_checksum(sessions: Sessions, sha256: str) -> None:
    async with sessions() as session:
        with pytest.raises(IntegrityError, match="statement_sha256_ck"):
            await insert_or_verify(session, statement(sha256=sha256))


@pytest.fixture
def ledger_csv(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.csv"
    data.write(path, accounts=120)
    return path


async def test_what_is_read_from_the_tables_is_what_the_csv_said(
    shop: Database, sessions: Sessions, ledger_csv: Path
) -> None:
    ledgers = list(read(ledger_csv, period=PERIOD))
    loaded = await asyncio.to_thread(load, shop.url, ledgers)
    assert (loaded.accounts, loaded.lines) == (120, sum(len(ledger.lines) for ledger in ledgers))
    async with sessions() as session:
        for ledger in ledgers:
            found = await read_ledger(session, ledger.account_id, PERIOD)
            assert found == ledger
            assert found.digest() == ledger.digest()
        assert await read_ledger(session, 1, PERIOD) is None
        assert await read_ledger(session, ledgers[0].account_id, "2026-04") is None


async def test_lines_of_one_day_keep_the_order_they_were_booked_in(
    shop: Database, sessions: Sessions, tmp_path: Path
) -> None:
    lines = tuple(
        Line(booked_on=date(2026, 5, 2), text=f"line {n}", amount=Decimal(n)) for n in range(300, 0, -1)
    )
    ledger = Ledger(
        customer="c",
        account_id=7,
        holder="h",
        currency="JPY",
        period=PERIOD,
        opening=Decimal(0),
        lines=lines,
    )
    path = tmp_path / "one.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(data.COLUMNS)
        writer.writerows(("c", 7, "h", "JPY", 0, line.booked_on, line.text, line.amount) for line in lines)
    await asyncio.to_thread(load, shop.url, list(read(path, period=PERIOD)))
    async with sessions() as session:
        assert await read_ledger(session, 7, PERIOD) == ledger


def test_a_ledger_with_one_bad_amount_is_loaded_not_at_all(shop: Database, ledger_csv: Path) -> None:
    whole = ledger_csv.read_text(encoding="utf-8").rstrip()
    ledger_csv.write_text(f"{whole.rpartition(',')[0]},0.00001\n", encoding="utf-8")
    with pytest.raises(BadLedger, match="more digits"):
        load(shop.url, list(read(ledger_csv, period=PERIOD)))
    with shop.connect() as conn:
        assert conn.execute("SELECT count(*) FROM shop.account").fetchone() == (0,)


def test_making_the_tables_twice_changes_nothing(shop: Database) -> None:
    create_tables(shop.url)
