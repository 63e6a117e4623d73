"""The shop's tables with a sample ledger, once: whoever starts the system again finds its data as they were.

Runs in the example's image, after the logins are there.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from examples.statements import data
from examples.statements.load import create_role, create_tables, load, read
from examples.statements.settings import Settings


def main() -> None:
    address = Settings.from_environment().database_url.set(drivername="postgresql")
    plain = address.render_as_string(hide_password=False)
    create_tables(plain)
    create_role(plain)
    with psycopg.connect(plain) as conn:
        row = conn.execute("SELECT EXISTS (SELECT FROM shop.account)").fetchone()
    if row and row[0]:
        print("the ledger is there")
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "ledger.csv")
        data.write(path)
        loaded = load(plain, list(read(path, period=data.DEFAULT_PERIOD)))
    print(f"loaded {loaded.accounts:,} accounts, {loaded.lines:,} bookings")


if __name__ == "__main__":
    main()
