"""Servers whose owner died without cleaning up are ended by the next one to start.

`atexit` does not run in a process that was killed, and this house kills processes for a living. Each
server's folder names its owner (pid and start time, so a reused pid is no owner); a folder without a
living owner is handed to whoever knows how to end what runs in it, and removed. Nothing is touched that
does not carry our mark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_OWNER = "owner"


def birth(pid: int) -> str | None:
    """The start time of a living process as the kernel counts it, None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def mark(folder: Path) -> None:
    """Say that this process owns the folder."""
    (folder / _OWNER).write_text(f"{os.getpid()} {birth(os.getpid())}")


def sweep(prefix: str, end: Callable[[Path], None]) -> list[Path]:
    """`end` what runs in the temporary folders of that prefix without a living owner, and remove them."""
    if not Path("/proc/self/stat").exists():
        return []
    gone = []
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError, ValueError):
            pid, born = (folder / _OWNER).read_text().split()
            if birth(int(pid)) == born:
                continue
            end(folder)
            shutil.rmtree(folder)
            gone.append(folder)
    return gone
