"""A session that keeps an expired job is ended where it is ours; another's is named and left alone."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from bellwire_testkit.clock import Clock
from bellwire_testkit.databases import Database
from tests.integration.edge_stage import Stage
from tests.integration.relay_stage import relay_on

MINUTE = timedelta(minutes=1)


@pytest.fixture
def shop(conn: psycopg.Connection[Any]) -> Iterator[str]:
    """A role to log in as, that may do what applications may."""
    name = f"shop_{uuid4().hex[:12]}"
    conn.execute(f"CREATE ROLE {name} LOGIN IN ROLE bellwire_application".encode())
    yield name
    conn.execute(f"DROP ROLE {name}".encode())


def _holder(database: Database, role: str, name: str) -> psycopg.Connection[Any]:
    return psycopg.connect(database.url_as(role), application_name=name)


def _held(clock: Clock, conn: psycopg.Connection[Any], holder: psycopg.Connection[Any]) -> None:
    """A job a minute past its lease, locked by a transaction that nobody will end."""
    stage = Stage(conn)
    stage.kind()
    (claimed,) = stage.running()
    clock.advance(claimed.lease + MINUTE)
    held = holder.execute("SELECT bellwire.hold_token(%s, %s)", (claimed.job_id, claimed.token))
    assert held.fetchone() == (True,)


@pytest.mark.parametrize("name", ["bellwire attempt", "bellwire consumer"])
async def test_our_session_is_ended_and_the_job_comes_back(
    database: Database, clock: Clock, conn: psycopg.Connection[Any], shop: str, name: str
) -> None:
    with _holder(database, shop, name) as holder:
        _held(clock, conn, holder)
        async with relay_on(database) as relay:
            await relay.owning.run_once()
            assert await relay.recovery.sweep() == []
            assert await relay.eviction.sweep() == 1
            assert [row.outcome for row in await relay.recovery.sweep()] == ["lease_expired"]
            assert await relay.eviction.sweep() == 0
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")


async def test_an_applications_session_is_left_alone(
    database: Database, clock: Clock, conn: psycopg.Connection[Any], shop: str
) -> None:
    with _holder(database, shop, "shop") as holder:
        _held(clock, conn, holder)
        async with relay_on(database) as relay:
            await relay.owning.run_once()
            assert await relay.eviction.sweep() == 0
            assert await relay.recovery.sweep() == []
            holder.rollback()
            assert [row.outcome for row in await relay.recovery.sweep()] == ["lease_expired"]


async def test_a_lease_that_is_only_just_over_is_nobodys_fault(
    database: Database, clock: Clock, conn: psycopg.Connection[Any], shop: str
) -> None:
    stage = Stage(conn)
    stage.kind()
    (claimed,) = stage.running()
    clock.advance(claimed.lease + timedelta(seconds=1))
    with _holder(database, shop, "bellwire attempt") as holder:
        holder.execute("SELECT bellwire.hold_token(%s, %s)", (claimed.job_id, claimed.token))
        async with relay_on(database) as relay:
            await relay.owning.run_once()
            assert await relay.eviction.sweep() == 0
