"""The RabbitMQ of `bellwire dev`: the one at an address, or a private node that lives as long as `dev`.

It starts while the database does. What it is good for here is to see an app as it runs elsewhere; jobs never
depend on it, so its end ends nothing, and is only said.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.output import print_lines

__all__ = ["ADDRESS", "PrivateNode", "given", "printed", "private"]

ADDRESS = "broker-address"
"""The file in the data folder that says where the node is, or was."""
_GRACE_S = 10.0


def given(url: str) -> str:
    """The address, checked for its form and said without its password. Raises `ConfigError`."""
    from bellwire_runtime.settings import DaemonSettings, load

    found = load(DaemonSettings, database_url="postgresql://", amqp_url=url).broker
    if found is not None:
        print_lines(f"RabbitMQ at {found.shown}")
    return url


def printed(folder: Path) -> str | None:
    """What an earlier run printed for other shells; in one of those it is no address of somebody's."""
    try:
        return (folder / ADDRESS).read_text()
    except (OSError, UnicodeDecodeError):
        return None


class PrivateNode:
    """The process that holds the node."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._shared = False
        self._said_end = False

    def address(self) -> str:
        """Waits until the node serves. Raises Failure where it does not come to that."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 (it was started with a pipe)
        line = stdout.readline()
        try:
            said = json.loads(line)
        except ValueError:
            said = {"error": "the process that holds it has ended; its last lines above say why"}
        if "error" in said:
            raise Failure(Exit.FOUND, f"the private RabbitMQ did not start: {said['error']}")
        url = str(said["url"])
        self._shared = bool(said.get("shared"))
        whose = "the other dev's on this folder" if self._shared else f"process {said['pid']}"
        print_lines(f"RabbitMQ ({whose}); for other bellwire commands: export BELLWIRE_AMQP_URL='{url}'")
        return url

    def look(self) -> None:
        """Say it, once, if the node has ended."""
        if not self._shared and not self._said_end and self._process.poll() is not None:
            self._said_end = True
            print_lines("RabbitMQ has ended; jobs are found by polling. A new dev starts a new one")
            sys.stdout.flush()


@contextmanager
def private(folder: Path) -> Iterator[PrivateNode]:
    """Starts the node and does not wait for it; at the end it and its data are gone."""
    from bellwire_runtime.broker.node import NodeMissing, find_bin_dir, find_epmd

    home = folder.expanduser().resolve()
    try:
        find_bin_dir()
        find_epmd()
        home.mkdir(parents=True, exist_ok=True)
    except NodeMissing as missing:
        raise Failure(Exit.USAGE, f"{missing}; or give the address of one with --amqp-url") from None
    except OSError as error:
        raise Failure(Exit.USAGE, f"cannot use the folder {home}: {error.strerror}; see --data") from None
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "bellwire_console.cli.dev_node", str(os.getpid()), str(home)],
        # The node makes its folder where temporary ones go; there it also finds what a killed one left.
        env={**os.environ, "TMPDIR": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # Ctrl-C reaches `dev` alone, and the node ends after those who use it.
        start_new_session=True,
    )
    try:
        yield PrivateNode(process)
    finally:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        if process.stdout is not None:
            with contextlib.suppress(OSError):
                process.stdout.close()
