"""What applications do to their drivers and sessions, none of which may bend a submit."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import psycopg
import psycopg2.extras
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool
from sqlalchemy import MetaData, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from bellwire import (
    ArgumentInvalid,
    ConnectionUnsupported,
    Job,
    JobConfig,
    KeyConflict,
    NotInTransaction,
    OverCapacity,
    find_job,
    get_job,
    submit,
    submit_many,
)
from bellwire_schema.errors import NotInstalled
from bellwire_testkit.databases import Database
from bellwire_testkit.servers import PostgresServer


class Render(Job):
    job_config = JobConfig(
        kind="render", version=3, key=("account_id",), unique_until="pruned", tenant="account_id"
    )
    account_id: int
    note: Any = None


JOB = Render(account_id=91)


class Base(DeclarativeBase):
    metadata = MetaData()


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    engine = create_engine(f"postgresql+psycopg://{database.url.partition('://')[2]}")
    with Session(engine) as opened:
        Base.metadata.create_all(opened.connection())
        opened.commit()
        yield opened
    engine.dispose()


def test_a_session_is_neither_flushed_nor_committed(session: Session, conn: psycopg.Connection[Any]) -> None:
    account = Account(name="new")
    session.add(account)
    flushes = []
    event.listen(session, "before_flush", lambda *_: flushes.append(1))
    submit(session, JOB)
    submit_many(session, [JOB])
    assert find_job(session, JOB) is not None
    assert flushes == []
    assert account in session.new
    assert conn.execute("SELECT count(*) FROM bellwire.job").fetchone() == (0,)
    session.commit()
    assert conn.execute("SELECT count(*) FROM bellwire.job").fetchone() == (1,)


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor], ids=lambda cls: cls.__name__)
def test_cursor_and_row_factories_of_the_connection_take_no_part(
    database: Database, factory: type[psycopg.Cursor[Any]]
) -> None:
    with database.connect(autocommit=False, row_factory=dict_row, cursor_factory=factory) as own:
        set_json_loads(lambda _: "mine", own)
        receipt = submit(own, Render(account_id=1, note={"a": [1, None]}))
        view = get_job(own, receipt.job_id)
    assert view is not None
    assert (view.job_id, view.key) == (receipt.job_id, "1")


def test_psycopg2_adapters_of_the_application_take_no_part(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    engine = create_engine(f"postgresql+psycopg2://{database.url.partition('://')[2]}")
    with engine.connect() as own:
        raw = own.connection.dbapi_connection
        psycopg2.extras.register_uuid(conn_or_curs=raw)  # type: ignore[no-untyped-call]
        psycopg2.extras.register_default_json(raw, loads=lambda _: "mine")  # type: ignore[arg-type]
        psycopg2.extras.register_default_jsonb(raw, loads=lambda _: "mine")  # type: ignore[arg-type]
        receipt = submit(own, Render(account_id=1, note="100 % of %s"), job_id=uuid4())
        own.commit()
    engine.dispose()
    assert isinstance(receipt.job_id, UUID)
    assert conn.execute("SELECT payload->>'note' FROM bellwire.job").fetchone() == ("100 % of %s",)


async def test_asyncpg_codecs_of_the_application_take_no_part(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    engine = create_async_engine(
        f"postgresql+asyncpg://{database.url.partition('://')[2]}",
        json_serializer=repr,
        json_deserializer=repr,
    )
    async with AsyncSession(engine) as own:
        raw = (await (await own.connection()).get_raw_connection()).driver_connection
        assert raw is not None
        for name in ("json", "jsonb"):
            await raw.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await raw.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog", format="text")
        receipt = await submit(own, Render(account_id=1, note={"a": 1}))
        view = await get_job(own, receipt.job_id)
        await own.commit()
    await engine.dispose()
    assert view is not None
    assert isinstance(receipt.job_id, UUID)
    assert conn.execute("SELECT payload FROM bellwire.job").fetchone() == (
        {"account_id": 1, "note": {"a": 1}},
    )


def test_an_autocommit_connection_may_submit_inside_a_transaction_block(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    with database.connect(autocommit=True) as own:
        with pytest.raises(NotInTransaction, match=r"conn\.transaction\(\)"):
            submit(own, JOB)
        with own.transaction():
            submit(own, JOB)
            assert conn.execute("SELECT count(*) FROM bellwire.job").fetchone() == (0,)
        with own.transaction(), own.pipeline():
            assert submit(own, JOB).outcome == "existing"
        with pytest.raises(NotInTransaction), own.pipeline():
            submit(own, Render(account_id=2))
    assert conn.execute("SELECT count(*) FROM bellwire.job").fetchone() == (1,)


def test_autocommit_is_seen_however_it_was_set(session: Session, conn: psycopg.Connection[Any]) -> None:
    engine = session.connection().engine
    automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
    with automatic.connect() as own, pytest.raises(NotInTransaction):
        submit(own, JOB)
    with engine.connect() as own:
        own.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(NotInTransaction):
            submit(own, JOB)
    with Session(engine) as other:
        other.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(NotInTransaction):
            submit(other, JOB)
    assert conn.execute("SELECT count(*) FROM bellwire.job").fetchone() == (0,)


def test_what_is_no_transaction_is_refused_by_name(session: Session, database: Database) -> None:
    connection = session.connection()
    engine = connection.engine
    with ConnectionPool(database.url, open=False) as pool, create_engine("sqlite://").connect() as sqlite:
        targets: list[Any] = [None, engine, sessionmaker(engine), pool, connection.connection, sqlite]
        for target in targets:
            with pytest.raises(ConnectionUnsupported):
                submit(target, JOB)


def test_a_failed_transaction_is_the_drivers_own_error(database: Database) -> None:
    with database.connect(autocommit=False) as own:
        with pytest.raises(psycopg.errors.DivisionByZero):
            own.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            submit(own, JOB)
        own.rollback()


def test_a_database_without_us_says_how_to_get_there(postgres: PostgresServer, database: Database) -> None:
    with psycopg.connect(postgres.url) as own, pytest.raises(NotInstalled, match="bellwire migrate"):
        submit(own, JOB)
    with database.connect() as admin:
        admin.execute(
            "DO $$ BEGIN CREATE ROLE stranger LOGIN;"
            " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        )
    with psycopg.connect(database.url_as("stranger")) as own, pytest.raises(NotInstalled, match="GRANT"):
        submit(own, JOB)


def test_keys_taken_in_opposite_order_can_deadlock_and_sets_cannot(database: Database) -> None:
    one, two = Render(account_id=1), Render(account_id=2)

    async def cross() -> list[Any]:
        async with (
            await psycopg.AsyncConnection.connect(database.url) as first,
            await psycopg.AsyncConnection.connect(database.url) as second,
        ):
            await submit(first, one)
            await submit(second, two)
            answers: list[Any] = await asyncio.gather(
                submit(first, two), _then_rollback(second, one), return_exceptions=True
            )
            await first.rollback()
            return answers

    async def _then_rollback(connection: psycopg.AsyncConnection[Any], job: Job) -> Any:
        try:
            return await submit(connection, job)
        finally:
            await connection.rollback()

    async def sets() -> None:
        async def many(order: list[Render]) -> None:
            async with await psycopg.AsyncConnection.connect(database.url) as own:
                await submit_many(own, order)

        jobs = [Render(account_id=account) for account in range(200)]
        await asyncio.gather(*(many(jobs if turn % 2 else jobs[::-1]) for turn in range(8)))

    answers = asyncio.run(cross())
    assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [
        psycopg.errors.DeadlockDetected
    ]
    asyncio.run(sets())


def test_sameness_is_by_value_and_only_within_a_version(
    database: Database, conn: psycopg.Connection[Any]
) -> None:
    with database.connect(autocommit=False) as own:
        first = submit(own, Render(account_id=1, note={"b": 1, "a": [1.0, 2]}))
        assert submit(own, Render(account_id=1, note={"a": [1, 2.0], "b": 1e0})).job_id == first.job_id
        with pytest.raises(KeyConflict) as conflict:
            submit(own, Render(account_id=1, note={"a": [2, 1], "b": 1}))
        assert conflict.value.fields == ("note",)
        own.execute("UPDATE bellwire.job SET version = 2")
        assert submit(own, Render(account_id=1, note="else")).outcome == "existing"


def test_after_a_purge_the_digest_alone_decides(database: Database) -> None:
    with database.connect(autocommit=False) as own:
        first = submit(own, Render(account_id=1, note=1))
        own.execute("UPDATE bellwire.job SET payload = NULL")
        assert submit(own, Render(account_id=1, note=1.0)).job_id == first.job_id
        with pytest.raises(KeyConflict, match="compared by digest") as conflict:
            submit(own, Render(account_id=1, note=2))
        assert conflict.value.fields == ()


def test_a_full_backlog_is_refused_with_what_is_known(database: Database) -> None:
    with database.connect(autocommit=False) as own:
        kept = submit(own, JOB)
        own.execute("INSERT INTO bellwire.kind (name, app, backlog) VALUES ('render', 'shop', 10)")
        own.execute(
            "INSERT INTO bellwire.measure (kind, ready, scheduled, running, failed, finished_per_second,"
            " measured_at) VALUES ('render', 12, 0, 0, 0, 0.5, bellwire.now())"
        )
        with pytest.raises(OverCapacity) as full:
            submit(own, Render(account_id=1))
        assert full.value.backlog == 12
        assert full.value.drain_estimate is not None
        assert full.value.drain_estimate.total_seconds() == 24
        with pytest.raises(OverCapacity) as full:
            submit_many(own, [JOB, Render(account_id=1)])
        assert full.value.ordinal == 1
        assert submit(own, JOB).job_id == kept.job_id


def test_plain_sql_means_the_same_job(database: Database) -> None:
    with database.connect(autocommit=False) as own:
        ours = submit(own, Render(account_id=7, note="é:"))
        theirs = own.execute(
            "SELECT job_id, outcome FROM bellwire.submit(kind => 'render', version => 3, tenant => '7',"
            """ key => '7', unique_until => 'pruned', payload => '{"note": "é:", "account_id": 7.0}')"""
        ).fetchone()
        assert theirs == (ours.job_id, "existing")
        with pytest.raises(psycopg.errors.UniqueViolation, match="key_conflict"), own.transaction():
            own.execute(
                "SELECT * FROM bellwire.submit(kind => 'render', version => 3, tenant => '7', key => '7',"
                """ unique_until => 'pruned', payload => '{"account_id": 7}')"""
            )


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at"),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))}, "run_at"),
        ({"deadline": datetime.max.replace(tzinfo=timezone(-timedelta(hours=9)))}, "deadline"),
        ({"run_in": timedelta.max}, "run_in"),
        ({"run_in": timedelta(days=400_000)}, "run_in"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_instant_that_could_not_be_read_back_is_refused(
    database: Database, options: dict[str, Any], field: str
) -> None:
    with database.connect(autocommit=False) as app:
        with pytest.raises(ArgumentInvalid, match=field):
            submit(app, JOB, **options)
        assert submit(app, JOB).created


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("run_at => '294276-01-01'", "run_at"),
        ("run_at => '4713-01-01 BC'", "run_at"),
        ("deadline => '20000-01-01'", "deadline"),
        ("deadline => 'infinity'", "run_at"),
        ("run_in => '100000000 days'", "run_in"),
        ("max_age => '100000000 days'", "max_age"),
    ],
)
def test_plain_sql_gets_a_row_for_an_instant_that_could_not_be_read_back(
    database: Database, argument: str, field: str
) -> None:
    """One such row would fail every claim that brings it, or the promotion of everybody's jobs."""
    with database.connect(autocommit=False) as app:
        row = app.execute(
            "SELECT code, detail ->> 'field' FROM bellwire.try_submit(kind => 'render', version => 1,"
            f" payload => '{{}}', {argument})".encode()
        ).fetchone()
        assert row == ("payload_invalid", field)
        assert app.execute("SELECT count(*) FROM bellwire.job").fetchone() == (0,)
