"""Servers whose owner died without cleaning up are ended by the next one to start.

`atexit` does not run in a process that was killed, and this house kills processes for a living. Each
server's folder names its owner (pid and start time, so a reused pid is no owner); a folder without a
living owner is stopped and removed. Nothing is touched that does not carry our mark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

PREFIX = "bellwire-postgres-"
_OWNER = "owner"


def _birth(pid: int) -> str | None:
    """The start time of a living process as the kernel counts it, None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def mark(folder: Path) -> None:
    """Say that this process owns the folder."""
    (folder / _OWNER).write_text(f"{os.getpid()} {_birth(os.getpid())}")


def sweep() -> list[Path]:
    """End the servers without a living owner; answers the folders that were removed."""
    if not Path("/proc/self/stat").exists():
        return []
    gone = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            pid, birth = (folder / _OWNER).read_text().split()
            if _birth(int(pid)) == birth:
                continue
            _end_server(folder)
            shutil.rmtree(folder)
            gone.append(folder)
    return gone


def _end_server(folder: Path) -> None:
    try:
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return
    if os.fsencode(folder) not in command:
        return
    os.kill(pid, signal.SIGQUIT)
    deadline = time.monotonic() + 5
    while _birth(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
