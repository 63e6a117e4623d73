"""What is known of hints and of the broker."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"

SQL = (Path(__file__).parent.parent / "0002_broker.sql").read_text("utf-8")


def upgrade() -> None:
    # The driver's own execute: the file holds many statements, and no parameters.
    op.get_bind().connection.driver_connection.execute(SQL)  # type: ignore[union-attr]
