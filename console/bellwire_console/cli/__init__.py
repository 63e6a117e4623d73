"""The command `bellwire`. Every error is one line on stderr that names its mend, and an exit code that says
who must act; a traceback is a bug of ours and nothing else.

Nothing heavy is imported until a command needs it, so `bellwire --help` answers at once.
"""

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and ends the process with its exit code."""
    from bellwire_console.cli.run import run

    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
