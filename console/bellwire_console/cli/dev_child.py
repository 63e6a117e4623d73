"""A daemon of `bellwire dev`: the command itself, which also stops when `dev` is gone.

`dev` stops its daemons when it ends, but nothing runs in a process that is killed. So each of its processes
looks who its parent is, from a thread, since handlers may block the event loop, and asks itself to stop, in
order, as `dev` would have.
"""

import os
import signal
import sys
import threading
import time

__all__ = ["end_with", "start"]

_EVERY_S = 0.5


def start(parent: int, arguments: list[str]) -> None:
    """Runs the command until it ends, or until `parent`'s pid is not this process's parent's any more."""
    end_with(parent)
    from bellwire_console.cli import main

    main(arguments)


def end_with(parent: int) -> None:
    """SIGTERM to this process, from now on, as soon as `parent` is not its parent any more."""
    threading.Thread(target=_watch, args=(parent,), name="bellwire-dev-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    start(int(sys.argv[1]), sys.argv[2:])
