"""Exit codes say who must act: nobody, the operator who typed the command, or whoever runs the database.

A supervisor restarts on every code but OK; CONFIG and INSTALLATION will fail again until somebody mends
what the one line on stderr names, so a supervisor that can should not restart on them in a tight circle.
A process that a second signal ends exits with 128 + the signal's number, as shells have it.
"""

from enum import IntEnum

from bellwire_schema.errors import ConfigError, DatabaseUnavailable, MigrationBehind, NotInstalled

__all__ = ["DatabaseUnavailable", "Exit", "exit_code"]


class Exit(IntEnum):
    """What a daemon's process ends with."""

    OK = 0
    """Asked to stop, and stopped in order."""
    FAILURE = 1
    """A bug, or a stop that did not come to its end within the grace."""
    CONFIG = 2
    """A setting, an address or a password that cannot work; the line on stderr names it."""
    UNAVAILABLE = 3
    """The database did not answer within the start-up time."""
    INSTALLATION = 4
    """The database answered, but its schema is missing or older than this code."""


def exit_code(error: BaseException) -> Exit:
    """The code that an error at start ends the process with."""
    match error:
        case MigrationBehind() | NotInstalled():
            return Exit.INSTALLATION
        case ConfigError():
            return Exit.CONFIG
        case DatabaseUnavailable():
            return Exit.UNAVAILABLE
        case _:
            return Exit.FAILURE
