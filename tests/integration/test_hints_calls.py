"""The daemons' own calls about hints, sent as their roles: else what no role may call would work in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from bellwire_consumer import server_calls as consumer_calls
from bellwire_relay import server_calls as relay_calls
from bellwire_testkit.databases import Database
from tests.integration.relay_stage import Conn, add_kind, submit

RELAY, TOKEN, CONSUMER = uuid4(), uuid4(), uuid4()


@asynccontextmanager
async def session(database: Database, role: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    conn = await psycopg.AsyncConnection.connect(database.url_as(role), autocommit=True)
    async with conn:
        yield conn


async def own(conn: psycopg.AsyncConnection[Any], **broker: Any) -> list[str]:
    return await relay_calls.own(
        conn, relay=RELAY, token=TOKEN, host="r1", pid=1, version="1", lease=timedelta(minutes=1), **broker
    )


async def beat(conn: psycopg.AsyncConnection[Any], **broker: Any) -> None:
    await consumer_calls.beat_consumer(
        conn,
        consumer=CONSUMER,
        app="shop",
        version="1",
        host="c1",
        pid=1,
        slots=4,
        kinds=["work"],
        versions=[1],
        stopping=False,
        **broker,
    )


async def claim(conn: psycopg.AsyncConnection[Any], **more: Any) -> list[UUID]:
    rows = await consumer_calls.claim(
        conn,
        consumer=CONSUMER,
        version="1",
        host="c1",
        kinds=["work"],
        versions=[1],
        attempts=[uuid4().hex],
        tokens=[uuid4().hex],
        **more,
    )
    return [row.job_id for row in rows]


async def test_from_admission_to_claim(database: Database, conn: Conn) -> None:
    add_kind(conn)
    ids = sorted(submit(conn, count=3))
    async with session(database, "bellwire_relay") as relay, session(database, "bellwire_consumer") as muscle:
        await beat(muscle, hears=True)
        assert await own(relay, broker_well=True) == ["*", "work"]
        me: dict[str, Any] = {"relay": RELAY, "token": TOKEN}
        (admitted,) = await relay_calls.admit(relay, **me, kinds=[], versions=[], recent=[], notify=False)
        assert (sorted(admitted.job_ids), admitted.least, admitted.hearers) == (ids, 4, 1)
        assert await relay_calls.republish(relay, **me) == []
        (again,) = await relay_calls.republish(relay, **me, everything=True)
        assert again == ("work", 1, ids, 4, 1)
        assert await relay_calls.note_publish(relay, **me, ids=ids[:2], errors=["returned", "nacked"]) == 2
        assert await claim(muscle, min_age=timedelta(minutes=1)) == []
        # As a hint brings them, and as the database does.
        assert await claim(muscle, ids=[ids[0].hex]) == [ids[0]]
        assert await claim(muscle, ids=[ids[1]]) == [ids[1]]
        assert await claim(muscle) == [ids[2]]


async def test_what_they_say_of_their_broker(database: Database, conn: Conn) -> None:
    add_kind(conn)
    async with session(database, "bellwire_relay") as relay, session(database, "bellwire_consumer") as muscle:
        for well, error in ((None, None), (False, "refused"), (True, None)):
            await own(relay, broker_well=well, broker_error=error, avoid=[] if well else ["work"])
            await beat(muscle, hears=well, hears_error=error)
            assert conn.execute("SELECT broker_well, broker_error FROM bellwire.relay").fetchall() == [
                (well, error)
            ]
            assert conn.execute("SELECT hears, hears_error FROM bellwire.consumer").fetchall() == [
                (well, error)
            ]
        await own(relay)
        await beat(muscle)
        assert conn.execute("SELECT broker_well FROM bellwire.relay").fetchall() == [(None,)]
        assert conn.execute("SELECT hears FROM bellwire.consumer").fetchall() == [(None,)]


async def test_consumers_are_notified_only_where_the_relay_says_so(database: Database, conn: Conn) -> None:
    add_kind(conn)
    channel = f"bellwire_{CONSUMER.hex}"
    conn.execute(f"LISTEN {channel}".encode())
    async with session(database, "bellwire_relay") as relay, session(database, "bellwire_consumer") as muscle:
        await beat(muscle)
        await own(relay)
        for notify in (False, True):
            submit(conn)
            await relay_calls.admit(
                relay, relay=RELAY, token=TOKEN, kinds=[], versions=[], recent=[], notify=notify
            )
            conn.execute("SELECT pg_notify(%s, 'mark')", (channel,))
            heard = []
            for notice in conn.notifies(timeout=10):
                if notice.payload == "mark":
                    break
                heard.append(notice.payload)
            assert len(heard) == int(notify)
