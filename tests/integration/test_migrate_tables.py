"""`tables.py` is what the migrations make: every table, every column, its type, and whether it is null."""

from typing import Any

from sqlalchemy import ARRAY, MetaData, Table, create_engine, inspect

from bellwire_schema.tables import metadata
from bellwire_testkit.databases import Database

# Alembic's own table is nobody else's business.
_THEIRS = {"bellwire.alembic_version"}
_DIALECT = create_engine("postgresql+psycopg://").dialect


def _type(found: Any) -> str:
    if isinstance(found, ARRAY):
        return f"{_type(found.item_type)}[]"
    return str(found.compile(dialect=_DIALECT))


def _columns(table: Table) -> dict[str, tuple[str, bool, bool]]:
    return {c.name: (_type(c.type), bool(c.nullable), bool(c.primary_key)) for c in table.columns}


def test_tables_are_what_migrations_make(database: Database) -> None:
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        found = MetaData(schema="bellwire")
        found.reflect(engine, views=True)
        assert set(found.tables) - _THEIRS == set(metadata.tables)
        views = set(inspect(engine).get_view_names("bellwire"))
    finally:
        engine.dispose()
    for name, table in metadata.tables.items():
        if name.partition(".")[2] in views:
            assert list(table.columns.keys()) == list(found.tables[name].columns.keys()), name
        else:
            assert _columns(table) == _columns(found.tables[name]), name
