"""Processor time by process, from the kernel's books: what a job costs whom, whatever else runs here."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")

__all__ = ["seconds"]


def seconds(root: int) -> float:
    """Processor seconds of a process and all below it, those that have ended and were waited for included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(int(ticks) for ticks in fields[11:15]) / _TICK
    return sum(time for pid, time in used.items() if _below(pid, root, parents))


def _below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid and pid != root:
        pid = parents.get(pid, 0)
    return pid == root
