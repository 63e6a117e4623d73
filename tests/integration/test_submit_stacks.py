"""Submit over every client stack: one statement, in the caller's transaction, typed refusals (G1, G8)."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from bellwire import (
    ArgumentInvalid,
    BellwireError,
    InputError,
    Job,
    JobConfig,
    KeyConflict,
    NotInTransaction,
    PayloadInvalid,
    PayloadTooLarge,
    Receipt,
)
from bellwire_outbox.refusals import sqlstate_of
from bellwire_testkit.databases import Database, Template
from tests.integration.submit_stacks import STACKS, Opened, Stack

CHATTER = re.compile(
    r"^\s*(BEGIN|START TRANSACTION|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SET|SHOW|RESET|DEALLOCATE|;|$)",
    re.IGNORECASE,
)


class Render(Job):
    job_config = JobConfig(
        kind="render",
        version=3,
        key=("account_id", "period"),
        unique_until="pruned",
        tenant="account_id",
        max_age=timedelta(days=2),
    )
    account_id: int
    period: str
    note: str | None = None


class Shout(Job):
    job_config = JobConfig(kind="shout", version=1, key=None)
    text: str = ""
    data: Any = None


JOB = Render(account_id=91, period="2026-05")


@pytest.fixture(params=STACKS, ids=lambda stack: stack.name)
def stack(request: pytest.FixtureRequest) -> Stack:
    chosen: Stack = request.param
    return chosen


@pytest.fixture(scope="module")
def shop(template: Template) -> Iterator[Database]:
    """One database for the file, emptied before each test: cloning one for each of them would take minutes.

    The application logs in as a member of its role, and owns one table.
    """
    database = template.clone()
    with database.connect() as conn:
        conn.execute(
            "DO $$ BEGIN CREATE ROLE shop LOGIN;"
            " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;"
            "GRANT bellwire_application TO shop; CREATE TABLE shop_order (id bigint PRIMARY KEY);"
            "GRANT ALL ON shop_order TO shop; CREATE EXTENSION IF NOT EXISTS pg_stat_statements;"
        )
    yield database
    database.drop_unused()


@pytest.fixture
def admin(shop: Database) -> Iterator[psycopg.Connection[Any]]:
    with shop.connect(application_name="admin") as conn:
        conn.execute("TRUNCATE shop_order, bellwire.job, bellwire.outbox")
        yield conn


@pytest.fixture
def url(shop: Database, admin: psycopg.Connection[Any]) -> str:
    return shop.url_as("shop")


def jobs(admin: psycopg.Connection[Any]) -> int:
    return count(admin, "SELECT count(*) FROM bellwire.job")


def count(admin: psycopg.Connection[Any], query: str) -> int:
    row = admin.execute(query).fetchone()
    assert row is not None
    number: int = row[0]
    return number


def forget_statements(admin: psycopg.Connection[Any]) -> None:
    admin.execute(
        "SELECT pg_stat_statements_reset(0, oid, 0) FROM pg_database WHERE datname = current_database()"
    )


def statements(admin: psycopg.Connection[Any]) -> list[str]:
    """What the application sent since then, without the ends of transactions, once for each call."""
    rows = admin.execute(
        "SELECT s.query, s.calls FROM pg_stat_statements s JOIN pg_roles r ON r.oid = s.userid"
        " WHERE r.rolname = 'shop' AND s.dbid = (SELECT oid FROM pg_database WHERE datname = "
        "current_database())"
    ).fetchall()
    return [query for query, calls in rows if not CHATTER.match(query) for _ in range(calls)]


@asynccontextmanager
async def waiting(
    admin: psycopg.Connection[Any], opened: Opened, job: Job
) -> AsyncIterator["asyncio.Task[Receipt]"]:
    """A submit of `opened`, seen by the server to wait for another session's lock."""
    task: asyncio.Task[Receipt] = asyncio.create_task(opened.call("submit", job))
    deadline = asyncio.get_running_loop().time() + 10
    while not count(
        admin,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'shop'"
        " AND wait_event_type = 'Lock' AND query LIKE '%try_submit%'",
    ):
        assert not task.done(), f"the second submit did not wait: {task}"
        assert asyncio.get_running_loop().time() < deadline, "the second submit was not seen waiting"
        await asyncio.sleep(0.001)
    yield task


async def test_a_submit_is_one_statement(stack: Stack, url: str, admin: psycopg.Connection[Any]) -> None:
    async with stack.open(url) as opened:
        await opened.call("submit", Render(account_id=1, period="warm"))
        await opened.commit()
        forget_statements(admin)
        await opened.call("submit", JOB)
        await opened.commit()
    (statement,) = statements(admin)
    assert "bellwire.try_submit(" in statement
    assert jobs(admin) == 2


async def test_a_submit_of_a_thousand_is_one_statement(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    many = [Render(account_id=account, period="2026-05") for account in range(1_000)]
    async with stack.open(url) as opened:
        await opened.call("submit_many", [Render(account_id=1, period="warm")])
        await opened.commit()
        forget_statements(admin)
        receipts = await opened.call("submit_many", many)
        await opened.commit()
        views = [await opened.call("get_job", receipt.job_id) for receipt in receipts[::250]]
    assert [statement for statement in statements(admin) if "get_job" not in statement] == [
        statement for statement in statements(admin) if "bellwire.try_submit_many(" in statement
    ]
    assert sum("try_submit_many" in statement for statement in statements(admin)) == 1
    assert [view.key for view in views] == ["0:2026-05", "250:2026-05", "500:2026-05", "750:2026-05"]
    assert [receipt.job_id for receipt in receipts] == sorted(receipt.job_id for receipt in receipts)
    assert jobs(admin) == 1_001


async def test_a_receipt_tells_what_stands_for_the_job(stack: Stack, url: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=3)
    async with stack.open(url) as opened:
        first = await opened.call("submit", JOB)
        again = await opened.call("submit", JOB)
        timed = await opened.call(
            "submit", Render(account_id=92, period="2026-05"), run_at=later, priority=5, wake=False
        )
        soon = await opened.call(
            "submit",
            Render(account_id=93, period="2026-05"),
            run_in=timedelta(hours=1, microseconds=1),
            deadline=later,
        )
        view = await opened.call("get_job", timed.job_id)
        short = await opened.call("get_job", soon.job_id)
        await opened.commit()
    assert (first.outcome, first.state, first.created) == ("created", "ready", True)
    assert (again.job_id, again.outcome, again.created) == (first.job_id, "existing", False)
    assert (timed.state, timed.run_at, view.priority) == ("scheduled", later, 5)
    assert view.deadline_at == later + timedelta(days=2)
    assert short.deadline_at == later
    assert short.run_at - short.created_at == timedelta(hours=1, microseconds=1)


async def test_a_rollback_leaves_nothing(stack: Stack, url: str, admin: psycopg.Connection[Any]) -> None:
    async with stack.open(url) as opened:
        await opened.call("submit", JOB)
        await opened.call("submit_many", [Render(account_id=account, period="x") for account in range(5)])
        await opened.rollback()
        assert await opened.call("find_job", JOB) is None
    assert jobs(admin) == count(admin, "SELECT count(*) FROM bellwire.outbox") == 0


async def test_a_rollback_to_a_savepoint_leaves_nothing_of_it(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    async with stack.open(url) as opened:
        kept = await opened.call("submit", JOB)
        await opened.savepoint()
        await opened.call("submit", Render(account_id=92, period="2026-05"))
        await opened.call("submit_many", [Render(account_id=account, period="x") for account in range(5)])
        await opened.rollback_to_savepoint()
        await opened.commit()
        assert (await opened.call("find_job", JOB)).job_id == kept.job_id
    assert jobs(admin) == count(admin, "SELECT count(*) FROM bellwire.outbox") == 1


async def test_autocommit_is_refused_before_any_sql(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    async with stack.open(url, autocommit=True) as opened:
        assert await opened.call("find_job", JOB) is None
        forget_statements(admin)
        with pytest.raises(NotInTransaction):
            await opened.call("submit", JOB)
        with pytest.raises(NotInTransaction):
            await opened.call("submit_many", [JOB])
        with pytest.raises(NotInTransaction):
            await opened.call("cancel", uuid4(), actor="user:7", reason="closed")
        assert statements(admin) == []
    assert jobs(admin) == 0


async def test_a_key_conflict_names_the_fields_and_harms_nothing(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    async with stack.open(url) as opened:
        held = await opened.call("submit", JOB)
        await opened.execute("INSERT INTO shop_order VALUES (1)")
        with pytest.raises(KeyConflict) as conflict:
            await opened.call("submit", Render(account_id=91, period="2026-05", note="other"))
        assert (conflict.value.job_id, conflict.value.fields) == (held.job_id, ("note",))
        await opened.execute("INSERT INTO shop_order VALUES (2)")
        with pytest.raises(KeyConflict) as conflict:
            await opened.call(
                "submit_many",
                [
                    Render(account_id=1, period="new"),
                    Render(account_id=91, period="2026-05", note="other"),
                    Render(account_id=2, period="new"),
                ],
            )
        assert (conflict.value.job_id, conflict.value.fields) == (held.job_id, ("note",))
        assert conflict.value.ordinal == 1
        await opened.execute("INSERT INTO shop_order VALUES (3)")
        await opened.commit()
    assert jobs(admin) == 1
    assert count(admin, "SELECT count(*) FROM shop_order") == 3


NAIVE = datetime(2026, 5, 1)  # noqa: DTZ001 - the very thing to be refused

BAD: list[tuple[str, Job, dict[str, Any], type[InputError], str]] = [
    ("too large", Shout(text="x" * 65_537), {}, PayloadTooLarge, "text"),
    ("invalid", Render.model_construct(account_id="91 or so", period="p"), {}, PayloadInvalid, "account_id"),
    ("not flushed", Render.model_construct(account_id=None, period="p"), {}, PayloadInvalid, "account_id"),
    ("naive datetime", Shout(data={"at": [NAIVE]}), {}, PayloadInvalid, "data.at[0]"),
    ("NaN", Shout(data=[1.0, float("nan")]), {}, PayloadInvalid, "data[1]"),
    ("infinity", Shout(data={"a": float("-inf")}), {}, PayloadInvalid, "data.a"),
    ("NUL", Shout(text="a\x00b"), {}, PayloadInvalid, "text"),
    ("NUL in a key", Shout(data={"a\x00b": 1}), {}, PayloadInvalid, "data (its key number 1)"),
    ("lone surrogate", Shout(data=["\ud800"]), {}, PayloadInvalid, "data[0]"),
    ("key with NUL", Render(account_id=1, period="a\x00"), {}, PayloadInvalid, "period"),
    ("long key", Render(account_id=1, period="x" * 1_001), {}, ArgumentInvalid, "key"),
    ("naive run_at", JOB, {"run_at": NAIVE}, ArgumentInvalid, "run_at"),
    (
        "two times",
        JOB,
        {"run_at": datetime.now(UTC), "run_in": timedelta(1)},
        ArgumentInvalid,
        "run_in",
    ),
    ("priority", JOB, {"priority": 101}, ArgumentInvalid, "priority"),
    ("no job id", JOB, {"job_id": "7"}, ArgumentInvalid, "job_id"),
    ("no duplicate", Shout(), {"on_duplicate": "replace"}, ArgumentInvalid, "on_duplicate"),
]


async def test_bad_input_is_refused_before_any_sql(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    async with stack.open(url) as opened:
        await opened.call("submit", JOB)
        forget_statements(admin)
        for label, job, options, error, field in BAD:
            with pytest.raises(error) as refused:
                await opened.call("submit", job, **options)
            assert getattr(refused.value, "field", None) == field, label
            if not options:
                with pytest.raises(error):
                    await opened.call("submit_many", [JOB, job])
        assert statements(admin) == []
        assert (await opened.call("submit", JOB)).outcome == "existing"
        await opened.commit()
    assert jobs(admin) == 1


async def test_a_job_id_makes_a_repeat_safe_whatever_became_of_the_key(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    job_id = uuid4()
    async with stack.open(url) as opened:
        first = await opened.call("submit", JOB, job_id=job_id)
        await opened.commit()
        admin.execute("UPDATE bellwire.job SET key = NULL")
        again = await opened.call("submit", JOB, job_id=job_id)
        await opened.commit()
        fresh = await opened.call("submit", JOB)
    assert (first.job_id, first.outcome) == (job_id, "created")
    assert (again.job_id, again.outcome) == (job_id, "existing")
    assert fresh.outcome == "created"


async def test_what_is_there_can_be_read_cancelled_and_estimated(stack: Stack, url: str) -> None:
    async with stack.open(url) as opened:
        receipt = await opened.call("submit", JOB)
        view = await opened.call("find_job", JOB.model_copy(update={"note": "whatever"}))
        assert view == await opened.call("get_job", receipt.job_id)
        assert await opened.call("cancel", receipt.job_id, actor="user:7", reason="closed") == "cancelled"
        assert await opened.call("cancel", receipt.job_id, actor="user:7", reason="closed") == "too_late"
        assert await opened.call("cancel", uuid4(), actor="user:7", reason="closed") == "not_found"
        cancelled = await opened.call("get_job", receipt.job_id)
        assert await opened.call("get_job", uuid4()) is None
        assert await opened.call("find_job", Render(account_id=1, period="none")) is None
        assert await opened.call("drain_estimate", "render") is None
        assert await opened.call("drain_estimate", Render) is None
        await opened.commit()
    assert (view.kind, view.version, view.tenant, view.key) == ("render", 3, "91", "91:2026-05")
    assert (view.state, view.attempt, view.finished, view.result) == ("ready", 0, False, None)
    assert view.run_at.tzinfo is not None
    assert (cancelled.state, cancelled.finished) == ("cancelled", True)
    assert (cancelled.cancel_actor, cancelled.cancel_reason) == ("user:7", "closed")


async def test_text_of_every_kind_comes_through_unharmed(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    text = "Grüße, 世界 🔔 % %s %(x)s {} $1 \\ ' \" \n \u2028 \u007f E'x' :name ?"
    async with stack.open(url) as opened:
        for setting in (
            "TIME ZONE 'Asia/Kathmandu'",
            "DateStyle = 'SQL, DMY'",
            "IntervalStyle = 'sql_standard'",
            "search_path = pg_catalog",
        ):
            await opened.execute(f"SET {setting}")
        job = Render(account_id=2**63 + 5, period=text, note=text)
        receipt = await opened.call("submit", job, run_in=timedelta(days=40))
        (again,) = await opened.call("submit_many", [job])
        view = await opened.call("find_job", job)
        await opened.commit()
    assert again.job_id == receipt.job_id == view.job_id
    row = admin.execute("SELECT payload, run_at - created_at FROM bellwire.job").fetchone()
    assert row == ({"account_id": 2**63 + 5, "period": text, "note": text}, timedelta(days=40))


async def test_two_racers_get_one_id(stack: Stack, url: str, admin: psycopg.Connection[Any]) -> None:
    """READ COMMITTED: the second is seen waiting for the first, then told of its job."""
    async with stack.open(url) as first, stack.open(url) as second:
        for round_ in range(200):
            job = Render(account_id=round_, period="race")
            won = await first.call("submit", job)
            async with waiting(admin, second, job) as lost:
                await first.commit()
                receipt = await lost
            await second.commit()
            assert (won.outcome, receipt.outcome) == ("created", "existing")
            assert receipt.job_id == won.job_id
    assert jobs(admin) == 200


async def test_the_racer_goes_on_where_the_first_rolls_back(
    stack: Stack, url: str, admin: psycopg.Connection[Any]
) -> None:
    async with stack.open(url) as first, stack.open(url) as second:
        gone = await first.call("submit", JOB)
        async with waiting(admin, second, JOB) as waited:
            await first.rollback()
            receipt = await waited
        await second.commit()
    assert receipt.outcome == "created"
    assert receipt.job_id != gone.job_id
    assert jobs(admin) == 1


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_above_read_committed_the_loser_repeats_its_transaction(
    stack: Stack, url: str, admin: psycopg.Connection[Any], isolation: str
) -> None:
    async with stack.open(url, isolation=isolation) as first, stack.open(url, isolation=isolation) as second:
        won = await first.call("submit", JOB)
        async with waiting(admin, second, JOB) as lost:
            await first.commit()
            # Each stack wraps the driver's error its own way.
            with pytest.raises(Exception) as failure:  # noqa: PT011
                await lost
        assert not isinstance(failure.value, BellwireError)
        assert sqlstate_of(failure.value) == "40001"
        await second.rollback()
        retried = await second.call("submit", JOB)
        await second.commit()
    assert (retried.job_id, retried.outcome) == (won.job_id, "existing")
