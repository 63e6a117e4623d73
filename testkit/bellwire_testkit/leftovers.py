"""PostgreSQL servers whose owner was killed: the next one to start ends them, and nothing else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from bellwire_runtime import leftovers
from bellwire_runtime.leftovers import mark

__all__ = ["PREFIX", "mark", "sweep"]

PREFIX = "bellwire-postgres-"


def sweep() -> list[Path]:
    """End the servers without a living owner; answers the folders that were removed."""
    return leftovers.sweep(PREFIX, _end_server)


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
    while leftovers.birth(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
