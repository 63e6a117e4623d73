"""The statement's row: inserted once, and from then on only compared with.

An attempt that comes second finds the row of the first. The same checksum means that the work was done and
nothing is lost; another one means that two different statements claim one identity, which no retry can mend.
"""

from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from examples.statements.ledger import Ledger, Line
from examples.statements.model import Account, Opening, Statement, Txn


class StatementConflict(Exception):
    """The row of this statement names another checksum than the file just made."""

    def __init__(self, *, recorded: Statement, offered: Statement) -> None:
        ledger_changed = recorded.source_sha256 != offered.source_sha256
        cause = (
            "the ledger changed after the period was closed"
            if ledger_changed
            else f"the renderer drew other bytes ({recorded.renderer}; now {offered.renderer})"
        )
        super().__init__(
            f"{recorded.key} is recorded with SHA-256 {recorded.sha256},"
            f" not the {offered.sha256} offered: {cause}"
        )
        self.recorded_sha256 = recorded.sha256
        self.offered_sha256 = offered.sha256
        self.ledger_changed = ledger_changed


async def insert_or_verify(session: AsyncSession, statement: Statement) -> bool:
    """Record `statement`; True if its row is new, False if the same was recorded before.

    One statement decides: a concurrent writer of the same row is waited for. Raises `StatementConflict`,
    which names both checksums, and leaves the recorded row as it was.
    """
    row = {
        column.key: value
        for column in inspect(Statement).columns
        if (value := getattr(statement, column.key)) is not None
    }
    inserted = await session.scalar(
        insert(Statement).values(**row).on_conflict_do_nothing().returning(Statement.account_id)
    )
    if inserted is not None:
        return True
    # A new statement, hence a new snapshot: it sees the row that the insert met.
    recorded = (await session.scalars(select(Statement).where(*_identity(statement)))).one()
    if recorded.sha256 != statement.sha256:
        raise StatementConflict(recorded=recorded, offered=statement)
    return False


def _identity(statement: Statement) -> tuple[Any, ...]:
    return (
        Statement.account_id == statement.account_id,
        Statement.period == statement.period,
        Statement.version == statement.version,
    )


async def read_ledger(session: AsyncSession, account_id: int, period: str) -> Ledger | None:
    """An account's closed period, lines in booking order; None if there is no such account or period."""
    found = (
        await session.execute(
            select(Account, Opening.amount)
            .join(Opening, Opening.account_id == Account.id)
            .where(Account.id == account_id, Opening.period == period)
        )
    ).one_or_none()
    if found is None:
        return None
    account, opening = found
    lines = await session.execute(
        select(Txn.booked_on, Txn.text, Txn.amount)
        .where(Txn.account_id == account_id, Txn.period == period)
        .order_by(Txn.booked_on, Txn.id)
    )
    return Ledger(
        customer=account.customer,
        account_id=account.id,
        holder=account.holder,
        currency=account.currency,
        period=period,
        opening=opening,
        lines=tuple(Line(booked_on=row.booked_on, text=row.text, amount=row.amount) for row in lines),
    )
