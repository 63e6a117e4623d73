"""A daemon of `bellwire dev`: the command itself, which also stops when `dev` is gone.

`dev` stops its daemons when it ends, but nothing runs in a process that is killed. So each daemon looks who
its parent is, from a thread, since handlers may block the event loop, and asks itself to stop, in order, as
`dev` would have.
"""

import os
import signal
import sys
import threading
import time

from bellwire_console.cli import main

__all__ = ["start"]

_EVERY_S = 0.5


def start(parent: int, arguments: list[str]) -> None:
    """Runs the command until it ends, or until `parent`'s pid is not this process's parent's any more."""
    threading.Thread(target=_watch, args=(parent,), name="bellwire-dev-parent", daemon=True).start()
    main(arguments)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    start(int(sys.argv[1]), sys.argv[2:])
