"""A user's own Alembic, in the same database, proposes nothing about our tables."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, create_engine

from bellwire_schema.autogenerate import include_name
from bellwire_testkit.databases import Database


def _proposed(database: Database, **options: object) -> list[str]:
    theirs = MetaData()
    Table("invoice", theirs, Column("id", Integer, primary_key=True))
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
            return [str(change) for change in compare_metadata(context, theirs)]
    finally:
        engine.dispose()


def test_autogenerate_proposes_nothing_of_ours(database: Database) -> None:
    proposed = _proposed(database, include_name=include_name)
    assert len(proposed) == 1
    assert "invoice" in proposed[0]


def test_without_it_alembic_would_drop_our_tables(database: Database) -> None:
    assert any("remove_table" in change and "outbox" in change for change in _proposed(database))
