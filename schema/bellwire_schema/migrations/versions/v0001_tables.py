"""The tables of schema bellwire."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

SQL = (Path(__file__).parent.parent / "0001_tables.sql").read_text("utf-8")


def upgrade() -> None:
    # The driver's own execute: the file holds many statements, and no parameters.
    op.get_bind().connection.driver_connection.execute(SQL)  # type: ignore[union-attr]
