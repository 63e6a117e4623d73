"""The CSV into the shop's tables: all of it or none, and every amount checked on the way.

A ledger that a statement could not be drawn from is refused here, with its line, and not at three in the
morning by the handler.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from itertools import groupby
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import create_engine

from examples.statements.data import COLUMNS, DEFAULT_PERIOD
from examples.statements.ledger import Ledger, Line
from examples.statements.model import SCHEMA, Base
from examples.statements.settings import Settings, sqlalchemy_url

SHOP_ROLE = "statements_shop"

# What the shop's processes may do: submit and complete jobs, read its tables, write requests and statements.
_ROLE = f"""
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{SHOP_ROLE}') THEN
        CREATE ROLE {SHOP_ROLE} LOGIN;
    END IF;
END $$;
GRANT bellwire_application TO {SHOP_ROLE};
GRANT USAGE ON SCHEMA {SCHEMA} TO {SHOP_ROLE};
GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {SHOP_ROLE};
GRANT INSERT ON {SCHEMA}.request, {SCHEMA}.statement TO {SHOP_ROLE};
"""


class BadLedger(ValueError):
    """The CSV cannot be loaded; the text names the account."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    accounts: int
    lines: int


def read(path: Path, *, period: str) -> Iterator[Ledger]:
    """The ledgers of a CSV, in its order. An account's rows stand together. Raises `BadLedger`."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise BadLedger(f"the columns are {reader.fieldnames}, not {list(COLUMNS)}")
        for account_id, rows in groupby(reader, key=lambda row: row["account_id"]):
            try:
                yield _ledger(account_id, rows, period=period)
            except (ValueError, InvalidOperation) as error:
                raise BadLedger(f"account {account_id}: {error}") from error


def _ledger(account_id: str, rows: Iterable[dict[str, str]], *, period: str) -> Ledger:
    lines: list[Line] = []
    account = None
    for row in rows:
        account = account or row
        if row["booked_on"]:
            booked_on = date.fromisoformat(row["booked_on"])
            lines.append(Line(booked_on=booked_on, text=row["text"], amount=Decimal(row["amount"])))
    if account is None:
        raise ValueError("no rows")
    return Ledger(
        customer=account["customer"],
        account_id=int(account_id),
        holder=account["holder"],
        currency=account["currency"],
        period=period,
        opening=Decimal(account["opening"]),
        lines=tuple(lines),
    )


def create_tables(address: str) -> None:
    """Make the schema and the tables where they are missing."""
    engine = create_engine(sqlalchemy_url(address))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            Base.metadata.create_all(connection)
    finally:
        engine.dispose()


def create_role(address: str) -> None:
    """Make the role that the shop's processes log in as. Its group is made by `bellwire migrate`."""
    with psycopg.connect(address, autocommit=True) as conn:
        conn.execute(_ROLE)


def load(address: str, ledgers: Sequence[Ledger]) -> Loaded:
    """Copy the ledgers into the tables, in one transaction."""
    with psycopg.connect(address) as conn:
        _copy(
            conn,
            "account",
            ("id", "customer", "holder", "currency"),
            ((each.account_id, each.customer, each.holder, each.currency) for each in ledgers),
        )
        _copy(
            conn,
            "opening",
            ("account_id", "period", "amount"),
            ((each.account_id, each.period, each.opening) for each in ledgers),
        )
        _copy(
            conn,
            "txn",
            ("account_id", "period", "booked_on", "text", "amount"),
            (
                (each.account_id, each.period, line.booked_on, line.text, line.amount)
                for each in ledgers
                for line in each.lines
            ),
        )
    with psycopg.connect(address, autocommit=True) as conn:
        conn.execute("ANALYZE shop.account, shop.opening, shop.txn")
    return Loaded(accounts=len(ledgers), lines=sum(len(each.lines) for each in ledgers))


def _copy(
    conn: psycopg.Connection, table: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]
) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(SCHEMA, table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with conn.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a ledger CSV into the shop's tables.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--period", default=DEFAULT_PERIOD)
    given = parser.parse_args()
    address = Settings.from_environment().database_url.set(drivername="postgresql")
    plain = address.render_as_string(hide_password=False)
    create_tables(plain)
    loaded = load(plain, list(read(given.path, period=given.period)))
    print(f"loaded {loaded.accounts:,} accounts, {loaded.lines:,} bookings")


if __name__ == "__main__":
    main()
