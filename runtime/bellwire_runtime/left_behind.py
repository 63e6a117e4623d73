"""A task that nobody waits for any more must not be heard of again: its error, if any, is nobody's."""

import asyncio
from typing import Any

__all__ = ["forget"]


def forget(task: "asyncio.Future[Any]") -> None:
    """As a done callback: take the task's error off the event loop's list of unretrieved ones."""
    if not task.cancelled():
        task.exception()
