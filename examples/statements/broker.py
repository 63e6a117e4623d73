"""The demo's RabbitMQ: none, one at an address, or a private node that the demo may do with as it likes.

The node starts beside everything else, since nothing waits for it but the daemons that are told its address.
One at an address is somebody's: it is used, and never stopped.
"""

import contextlib
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from bellwire_runtime.broker.node import NodeFailed, NodeMissing, RabbitNode


class DemoBroker:
    """`address` is None where the run has no broker."""

    def __init__(self, *, given: str | None, private: bool) -> None:
        self._given = given
        self._node = RabbitNode(management=False) if private else None
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker")
        self._starting: Future[RabbitNode] | None = None

    def __enter__(self) -> Self:
        if self._node is not None:
            self._starting = self._threads.submit(self._node.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A node that is still being started cannot be ended yet.
        if self._starting is not None:
            with contextlib.suppress(Exception):
                self._starting.result()
        self._threads.shutdown()
        if self._node is not None:
            self._node.close()

    def address(self) -> str | None:
        """Waits for the private node to serve. Raises `NodeFailed` where it does not come to that."""
        if self._starting is not None:
            self._starting.result()
        return self._node.url if self._node is not None else self._given

    @property
    def described(self) -> str:
        if self._node is not None:
            return f"a private node, process {self._node.pid}"
        parts = urlsplit(self._given or "")
        return f"the one at {parts.hostname}, which is used and left alone"

    def delete(self) -> None:
        """SIGKILL, and all its data removed: what it still had to say is lost."""
        if self._node is None:
            raise ValueError("only a private node may be deleted")
        self._node.wipe()

    def start_anew(self) -> None:
        """A new and empty node at the same address; waits until it serves."""
        if self._node is None:
            raise ValueError("only a private node is started here")
        self._node.start()


def main(file: Path) -> int:
    """A private node until SIGTERM or Ctrl-C, which end it and its data; `file` is where its address goes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt), RabbitNode(management=False) as node:
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(node.url)
        unfinished.rename(file)
        print(f"RabbitMQ at {node.url}, process {node.pid}", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (NodeMissing, NodeFailed) as error:
        sys.exit(f"no broker: {error}")
