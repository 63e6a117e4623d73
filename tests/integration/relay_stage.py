"""What the relay's tests need around it: kinds, jobs and consumers, made and moved by plain SQL.

A consumer here is its registry row and the calls it would make; nothing runs a handler. So a test decides
when a slot is free, and sees what the relay makes of it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg

from bellwire_relay.daemon import Relay
from bellwire_relay.settings import RelaySettings
from bellwire_testkit.databases import Database

Conn = psycopg.Connection[Any]


def settings(database: Database, **changes: Any) -> RelaySettings:
    """As the relay's own role, with nothing to wait for unless a test asks for it."""
    return RelaySettings(
        **{"database_url": database.url_as("bellwire_relay"), "relay_recover_wait": 0, **changes}
    )


@asynccontextmanager
async def relay_on(database: Database, **changes: Any) -> AsyncIterator[Relay]:
    """A relay to be driven by hand, closed at the end."""
    relay = Relay(settings(database, **changes))
    try:
        yield relay
    finally:
        await relay.close()


def add_kind(conn: Conn, name: str = "work", **columns: Any) -> None:
    """A kind as `apply` would write it."""
    columns = {"name": name, "app": "test", **columns}
    names = ", ".join(columns)
    values = ", ".join(["%s"] * len(columns))
    conn.execute(f"INSERT INTO bellwire.kind ({names}) VALUES ({values})".encode(), list(columns.values()))


def submit(
    conn: Conn, kind: str = "work", count: int = 1, *, tenant: str = "", version: int = 1, **more: Any
) -> list[UUID]:
    """Ready (or scheduled) jobs; `more` are arguments of submit that JSON can carry."""
    job = {"kind": kind, "version": version, "payload": {}, "tenant": tenant, **more}
    rows = conn.execute(
        "SELECT job_id, code, detail FROM bellwire.try_submit_many(%s::jsonb) ORDER BY ordinal",
        (json.dumps([job] * count),),
    ).fetchall()
    refused = [row for row in rows if row[1] is not None]
    assert not refused, refused
    return [row[0] for row in rows]


@dataclass
class Muscle:
    """A consumer without hands: it registers, claims, and settles."""

    conn: Conn
    slots: int
    lines: Sequence[tuple[str, int]] = (("work", 1),)
    id: UUID = field(default_factory=uuid4)

    def beat(self, *, stopping: bool = False) -> Muscle:
        self.conn.execute(
            "SELECT bellwire.beat_consumer(%s, 'test', '1', 'host', 1, %s, %s::text[], %s::smallint[], %s)",
            (self.id, self.slots, self._kinds, self._versions, stopping),
        )
        return self

    def leave(self) -> None:
        self.conn.execute("SELECT bellwire.forget_consumer(%s)", (self.id,))

    def claim(self, limit: int) -> list[Claimed]:
        attempts, tokens = [uuid4() for _ in range(limit)], [uuid4() for _ in range(limit)]
        rows = self.conn.execute(
            "SELECT job_id, attempt_id, token, tenant FROM bellwire.claim(%s, '1', 'host', %s::text[],"
            " %s::smallint[], %s::uuid[], %s::uuid[])",
            (self.id, self._kinds, self._versions, attempts, tokens),
        ).fetchall()
        return [Claimed(*row) for row in rows]

    def succeed(self, claims: Sequence[Claimed]) -> None:
        self.conn.execute(
            "SELECT * FROM bellwire.succeed(%s::uuid[], %s::uuid[], %s::uuid[], %s::jsonb[])",
            (
                [c.job_id for c in claims],
                [c.token for c in claims],
                [c.attempt_id for c in claims],
                ["null"] * len(claims),
            ),
        )

    @property
    def _kinds(self) -> list[str]:
        return [kind for kind, _ in self.lines]

    @property
    def _versions(self) -> list[int]:
        return [version for _, version in self.lines]


@dataclass(frozen=True)
class Claimed:
    job_id: UUID
    attempt_id: UUID
    token: UUID
    tenant: str


def states(conn: Conn) -> dict[str, int]:
    """Jobs by state."""
    return dict(conn.execute("SELECT state, count(*) FROM bellwire.job GROUP BY state").fetchall())


def admitted(conn: Conn, kind: str = "work") -> list[UUID]:
    """What is out and unclaimed."""
    rows = conn.execute(
        "SELECT job_id FROM bellwire.outbox WHERE kind = %s AND admitted_at IS NOT NULL ORDER BY job_id",
        (kind,),
    ).fetchall()
    return [row[0] for row in rows]
