"""Named places where a test may stop or kill this process; in production a call of an empty function.

Whether a crash between two steps is survived can only be shown by crashing between them, so the steps name
the gaps. The variable `BELLWIRE_TEST_FAULTPOINT`, read once at import, arms one of them:

- `NAME:kill`: the process ends there by SIGKILL: no cleanup, no answer, no last words;
- `NAME:pause:PATH`: the process writes `PATH.reached` there and waits until `PATH.go` exists. The calling
  thread stands still, and with it an event loop that runs in it; other threads go on.

A value that says neither is refused at import: a test whose fault never happens passes for the wrong reason.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["PLACES", "VARIABLE", "reach"]

VARIABLE = "BELLWIRE_TEST_FAULTPOINT"
PLACES = (
    "relay.admitted",
    "relay.published",
    "consumer.heard",
    "consumer.claimed",
    "transaction.committing",
    "transaction.committed",
    "consumer.settling",
    "consumer.settled",
)
"""Every place there is, in the order in which a job passes them."""
_POLL_S = 0.005


def _pass_by(name: str, /) -> None:
    """The production form: nothing happens."""


def _armed(plan: str) -> Callable[[str], None]:
    wanted, _, action = plan.partition(":")
    what, _, path = action.partition(":")
    if not wanted or (what, bool(path)) not in {("kill", False), ("pause", True)}:
        raise ValueError(f"{VARIABLE} is {plan!r}; it must be NAME:kill or NAME:pause:PATH")

    def reach_armed(name: str, /) -> None:
        if name != wanted:
            return
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        Path(f"{path}.reached").touch()
        while not Path(f"{path}.go").exists():
            time.sleep(_POLL_S)

    return reach_armed


_plan = os.environ.get(VARIABLE)
reach: Callable[[str], None] = _armed(_plan) if _plan else _pass_by
