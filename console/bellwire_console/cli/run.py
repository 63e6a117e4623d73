"""Runs one command line: whatever comes of it is an exit code, and at most one line on stderr."""

import os
import sys
from collections.abc import Sequence

import typer

from bellwire_console.cli.commands import application
from bellwire_console.cli.exits import Exit, Failure

__all__ = ["run"]


def run(arguments: Sequence[str]) -> int:
    """The exit code. Bugs are not caught: their traceback is the report."""
    try:
        code = application(args=list(arguments), prog_name="bellwire", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else Exit.OK
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Failure as failure:
        return _say(failure)
    except Exception as error:
        from bellwire_console.cli.failures import failure_of

        known = failure_of(error, arguments)
        if known is None:
            raise
        return _say(known)


def _say(failure: Failure) -> int:
    line = "; ".join(part.strip() for part in failure.line.splitlines() if part.strip())
    print(f"bellwire: {line}", file=sys.stderr)  # noqa: T201 - stderr of a command is what it is for
    return failure.exit_code
