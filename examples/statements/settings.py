"""Where the example's parts find each other: a few variables, read once at the edge of each process."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy.engine import URL, make_url


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The shop's own database address (by default Bellwire's: one database, one COMMIT), and its folder."""

    database_url: URL
    artifacts: Path

    @classmethod
    def from_environment(cls) -> Self:
        """Read `STATEMENTS_DATABASE_URL` (or `DATABASE_URL`, which `bellwire dev` gives, or
        `BELLWIRE_DATABASE_URL`) and `STATEMENTS_ARTIFACTS`.
        """
        names = ("STATEMENTS_DATABASE_URL", "DATABASE_URL", "BELLWIRE_DATABASE_URL")
        address = next((found for name in names if (found := os.environ.get(name))), None)
        if not address:
            raise SystemExit("statements: set DATABASE_URL to the address of a PostgreSQL database")
        folder = os.environ.get("STATEMENTS_ARTIFACTS", "out/statements")
        return cls(database_url=sqlalchemy_url(address), artifacts=Path(folder))


def sqlalchemy_url(address: str) -> URL:
    """A plain `postgresql://` address as SQLAlchemy wants it: with the driver named."""
    return make_url(address).set(drivername="postgresql+psycopg")
