"""A request and its job are one commit, and the same request again is the same job."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from bellwire.testing import Harness
from examples.statements.jobs import RenderStatement
from examples.statements.work import app
from tests.acceptance.statements_shop import PERIOD, Shop, http, shop

__all__ = ["http", "shop"]


def body(shop: Shop, **more: Any) -> dict[str, Any]:
    return {"account_id": shop.ledgers[0].account_id, "period": PERIOD, **more}


def requests(shop: Shop) -> list[tuple[Any, ...]]:
    with psycopg.connect(shop.url) as conn:
        return conn.execute("SELECT job_id, outcome FROM shop.request ORDER BY id").fetchall()


async def test_a_request_makes_a_job_and_the_same_request_finds_it(
    bellwire: Harness, shop: Shop, http: httpx.AsyncClient
) -> None:
    first = await http.post("/statements", json=body(shop))
    again = await http.post("/statements", json=body(shop))
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["job_id"] == again.json()["job_id"]
    assert first.json()["outcome"] == "created"
    assert again.json()["outcome"] == "existing"
    assert first.headers["location"] == f"/statements/{first.json()['job_id']}"
    assert bellwire.submitted(RenderStatement) == [shop.job()]
    assert requests(shop) == [(UUID(first.json()["job_id"]), o) for o in ("created", "existing")]


async def test_of_twenty_requests_at_once_one_makes_the_job(
    bellwire: Harness, shop: Shop, http: httpx.AsyncClient
) -> None:
    answers = await asyncio.gather(*(http.post("/statements", json=body(shop)) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert len(bellwire.submitted(RenderStatement)) == 1


async def test_other_paper_for_the_same_statement_is_a_conflict_and_writes_nothing(
    bellwire: Harness, shop: Shop, http: httpx.AsyncClient
) -> None:
    first = await http.post("/statements", json=body(shop))
    conflict = await http.post("/statements", json=body(shop, paper="Letter"))
    assert conflict.status_code == 409
    assert conflict.json()["detail"] == {"job_id": first.json()["job_id"], "fields": ["paper"]}
    assert bellwire.submitted(RenderStatement) == [shop.job()]
    assert len(requests(shop)) == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"account_id": 1}, 404),
        ({"period": "2026-04"}, 404),
        ({"period": "2026-13"}, 422),
        ({"period": "../../x"}, 422),
        ({"account_id": 0}, 422),
        ({"account_id": 2**63}, 422),
        ({"account_id": "x"}, 422),
        ({"paper": "A3"}, 422),
    ],
)
async def test_what_cannot_be_is_answered_and_leaves_nothing(
    bellwire: Harness, shop: Shop, http: httpx.AsyncClient, change: dict[str, Any], status: int
) -> None:
    assert (await http.post("/statements", json=body(shop, **change))).status_code == status
    assert bellwire.submitted(RenderStatement) == []
    assert requests(shop) == []


async def test_a_full_house_answers_503_with_a_time_to_come_back(
    bellwire: Harness, shop: Shop, http: httpx.AsyncClient
) -> None:
    await bellwire.drain(app)  # declares the kind
    with psycopg.connect(shop.url) as conn:
        conn.execute("UPDATE bellwire.kind SET backlog = 1")
        conn.execute(
            "INSERT INTO bellwire.measure (kind, measured_at, ready, scheduled, running, failed)"
            " VALUES ('render_statement', bellwire.now(), 5, 0, 0, 0)"
            " ON CONFLICT (kind) DO UPDATE SET ready = 5, measured_at = excluded.measured_at"
        )
    full = await http.post("/statements", json=body(shop))
    assert full.status_code == 503
    assert int(full.headers["retry-after"]) > 0
    assert requests(shop) == []


async def test_the_status_shows_the_row_once_there_is_one(
    bellwire: Harness, shop: Shop, http: httpx.AsyncClient
) -> None:
    where = (await http.post("/statements", json=body(shop))).headers["location"]
    before = (await http.get(where)).json()
    assert (before["state"], before["statement"]) == ("ready", None)
    await bellwire.drain(app)
    after = (await http.get(where)).json()
    assert (after["state"], after["attempt"]) == ("succeeded", 1)
    assert after["statement"]["key"] == shop.key()
    assert after["statement"]["sha256"] == shop.store.checksum(shop.key())
    assert (await http.get(f"/statements/{uuid4()}")).status_code == 404
