"""The shop's own tables, in its own schema: what it knows of accounts, and which statements it has made.

`statement` is the domain's word on success: the row names the file's checksum, and commits together with the
job's success. Its primary key is the artifact's identity (account, period, format version), so a second row
for one artifact cannot exist, whoever tries. The job and the attempt stand beside it as origin, not as
identity.
"""

from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, Identity, Index, MetaData, Numeric, Text, func
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA = "shop"

_CHECKSUM = "~ '^[0-9a-f]{64}$'"


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads it as a class attribute
        int: BigInteger,
        str: Text,
        Decimal: Numeric,  # without a scale: a currency's digits are money.py's business
        datetime: TIMESTAMP(timezone=True),
    }


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    customer: Mapped[str]
    holder: Mapped[str]
    currency: Mapped[str]


class Opening(Base):
    """The balance an account's closed period began with."""

    __tablename__ = "opening"

    account_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    period: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[Decimal]


class Txn(Base):
    __tablename__ = "txn"
    __table_args__ = (Index("txn_period", "account_id", "period", "booked_on", "id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    account_id: Mapped[int]
    period: Mapped[str]
    booked_on: Mapped[date]
    text: Mapped[str]
    amount: Mapped[Decimal]


class Request(Base):
    """Somebody asked for a statement: the business row that commits with the job."""

    __tablename__ = "request"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    account_id: Mapped[int]
    period: Mapped[str]
    job_id: Mapped[UUID] = mapped_column(index=True)
    outcome: Mapped[str]
    asked_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Statement(Base):
    __tablename__ = "statement"
    __table_args__ = (
        CheckConstraint(f"sha256 {_CHECKSUM}", name="statement_sha256_ck"),
        CheckConstraint(f"source_sha256 {_CHECKSUM}", name="statement_source_ck"),
        CheckConstraint("bytes > 0 AND pages > 0 AND attempt > 0", name="statement_size_ck"),
    )

    account_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    period: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key: Mapped[str] = mapped_column(unique=True)
    sha256: Mapped[str]
    bytes: Mapped[int]
    pages: Mapped[int]
    # What it was made of and with: tells a changed ledger from a changed renderer when checksums differ.
    source_sha256: Mapped[str]
    renderer: Mapped[str]
    job_id: Mapped[UUID]
    attempt: Mapped[int]
    made_at: Mapped[datetime] = mapped_column(server_default=func.now())
