"""Exit codes say who must act. The daemons' codes are the same ones, so a supervisor reads one table."""

from enum import IntEnum

__all__ = ["Exit", "Failure"]


class Exit(IntEnum):
    OK = 0
    """Done, and nothing wrong was found."""
    FOUND = 1
    """Looked, and found something wrong, missing, different or refused; or a daemon failed."""
    USAGE = 2
    """The command line, a setting, an address or a password cannot work as given."""
    UNREACHABLE = 3
    """The database did not answer."""
    INSTALLATION = 4
    """The database answered, but its schema is missing, behind, or closed to this role."""
    APP = 5
    """The app could not be loaded: its module, its attribute, or what it declares."""
    INTERRUPTED = 130
    """Ctrl-C, as shells have it."""


class Failure(Exception):
    """Ends the command: one line for stderr, and the code. The line names what to do about it."""

    def __init__(self, exit_code: Exit, line: str) -> None:
        super().__init__(line)
        self.exit_code = exit_code
        self.line = line
