"""The command `bellwire`. Every error is one line on stderr that names its mend, and an exit code that says
who must act; a traceback is a bug of ours and nothing else.

Nothing heavy is imported until a command needs it, so `bellwire --help` answers at once.
"""

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and ends the process with its exit code."""
    try:
        from bellwire_console.cli.run import run
    except ModuleNotFoundError as error:
        # The plain install brings the command's name, but not what it is made of.
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write("bellwire: the command needs an extra: pip install 'bellwire[cli]'\n")
        sys.exit(2)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
