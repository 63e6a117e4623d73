"""The process of `bellwire dev` that holds its RabbitMQ: the node ends with `dev`, however `dev` ends.

What it has to say goes to stdout as one JSON object: the node's address, or why there is none. The node's
data go with it: a broker is disposable, and what it was told stands in the database.

One node a folder, by a file lock: a second `dev` there serves the same installation, and would be deaf on a
broker of its own to what the first one's relay publishes.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO, NoReturn
from urllib.parse import urlsplit

from bellwire_console.cli.dev_broker import ADDRESS
from bellwire_console.cli.dev_child import end_with
from bellwire_runtime.broker.node import NodeFailed, NodeMissing, RabbitNode, speaks_amqp

__all__ = ["hold"]

_LOCK = "broker-lock"
_LOOK_S = 0.2


def hold(parent: int, folder: Path) -> int:
    """Until `parent` ends, SIGTERM, or the node's end; at once where another process holds a node here."""
    signal.signal(signal.SIGTERM, _leave)
    end_with(parent)
    with (folder / _LOCK).open("a") as lock:
        while not _locked(lock):
            if (url := _answering(folder / ADDRESS)) is not None:
                _tell(url=url, shared=True)
                return 0
            time.sleep(_LOOK_S)
        try:
            return _run(folder)
        except (NodeMissing, NodeFailed) as error:
            _tell(error=str(error))
            return 1


def _run(folder: Path) -> int:
    with RabbitNode(management=False) as node:
        (folder / ADDRESS).write_text(node.url)
        _tell(url=node.url, pid=node.pid)
        # Looked at without taking its exit code away, which the node itself waits for.
        while os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(_LOOK_S)
        return 1


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answering(file: Path) -> str | None:
    try:
        url = file.read_text()
        parts = urlsplit(url)
        answers = bool(parts.hostname and parts.port) and speaks_amqp(str(parts.hostname), parts.port or 0)
    except (OSError, ValueError):
        return None
    return url if answers else None


def _tell(**said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _leave(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(hold(int(sys.argv[1]), Path(sys.argv[2])))
