"""The states a job can be in and every way from one to another: the one table of them.

Invariant: a job changes its state by one of these edges or not at all. Each edge is one server call, written
in `sql/<edge>.sql`; the CHECKs of the tables and the picture in `docs/reference/states.md` say the same, and
tests hold the three against each other. `Move.source` is None where no job was there before, `Move.target`
where none is after.
"""

from typing import Literal, NamedTuple, TypeAlias

__all__ = ["EDGES", "LIVE", "OUTCOMES", "STATES", "TERMINAL", "UNIQUE_UNTIL", "Edge", "Move", "State", "edge"]

State: TypeAlias = Literal["scheduled", "ready", "running", "succeeded", "failed", "cancelled"]
Writer: TypeAlias = Literal["application", "operator", "relay", "consumer"]

STATES: tuple[State, ...] = ("scheduled", "ready", "running", "succeeded", "failed", "cancelled")
TERMINAL: tuple[State, ...] = ("succeeded", "failed", "cancelled")
LIVE: tuple[State, ...] = ("scheduled", "ready", "running")

# How an attempt can have ended: one row each, written once.
OUTCOMES = ("succeeded", "retry", "throttled", "snoozed", "failed", "stopped", "released", "recovered")
# How long a key is enforced.
UNIQUE_UNTIL = ("started", "finished", "pruned")


class Move(NamedTuple):
    """One arrow of the picture."""

    source: State | None
    target: State | None


class Edge(NamedTuple):
    """One named change: the arrows it may take, who writes it, and what must hold, in words."""

    name: str
    moves: tuple[Move, ...]
    written_by: tuple[Writer, ...]
    guard: str


def _from(*sources: State | None, to: tuple[State | None, ...]) -> tuple[Move, ...]:
    return tuple(Move(source, target) for source in sources for target in to)


EDGES: tuple[Edge, ...] = (
    Edge(
        "submit",
        _from(None, to=("ready", "scheduled")),
        ("application", "consumer", "relay"),
        "the key is free in its kind and tenant; the kind has room",
    ),
    Edge(
        "replace",
        _from("ready", "scheduled", to=("ready", "scheduled")),
        ("application",),
        "the job holds the key and is not claimed; the newest payload wins",
    ),
    Edge("promote", _from("scheduled", to=("ready",)), ("relay",), "run_at has come"),
    Edge(
        "claim",
        _from("ready", to=("running",)),
        ("consumer",),
        "admitted, its version declared, before its deadline, its turn in its ordering key",
    ),
    Edge(
        "heartbeat",
        _from("running", to=("running",)),
        ("consumer",),
        "the token; within timeout, progress timeout and deadline",
    ),
    Edge("succeed", _from("running", to=("succeeded",)), ("consumer",), "the token"),
    Edge(
        "retry",
        _from("running", to=("scheduled", "failed", "cancelled")),
        ("consumer",),
        "the token; fails where no attempt is left or the next run is past the deadline;"
        " cancelled where that was asked for",
    ),
    Edge(
        "throttle",
        _from("running", to=("scheduled", "failed", "cancelled")),
        ("consumer",),
        "the token; uses up no attempt; fails where it waited too often or past the deadline;"
        " cancelled where that was asked for",
    ),
    Edge(
        "snooze",
        _from("running", to=("scheduled", "failed", "cancelled")),
        ("consumer",),
        "the token; uses up no attempt; fails where it waited too often or past the deadline;"
        " cancelled where that was asked for",
    ),
    Edge("fail", _from("running", to=("failed",)), ("consumer",), "the token; submits the follow-up"),
    Edge("stop", _from("running", to=("cancelled",)), ("consumer",), "the token; a cancel request"),
    Edge(
        "release",
        _from("running", to=("ready", "failed", "cancelled")),
        ("consumer",),
        "the token; uses up no attempt; fails where it was handed back too often;"
        " cancelled where that was asked for",
    ),
    Edge(
        "recover",
        _from("running", to=("ready", "scheduled", "failed", "cancelled")),
        ("relay",),
        "the lease expired by the database's clock; the first process death goes back at once,"
        " all else by backoff; fails where no attempt is left or the deadline passed;"
        " cancelled where that was asked for",
    ),
    Edge(
        "expire",
        _from("ready", "scheduled", to=("failed",)),
        ("relay",),
        "the deadline passed; submits the follow-up",
    ),
    Edge(
        "cancel",
        (*_from("ready", "scheduled", to=("cancelled",)), Move("running", "running")),
        ("application", "operator"),
        "not finished; a running job gets a request, which its attempt hears with its next heartbeat",
    ),
    Edge(
        "supersede",
        (*_from("ready", "scheduled", to=("cancelled",)), Move("running", "running")),
        ("application",),
        "the job holds the key, which passes to the new job; a running one gets a cancel request",
    ),
    Edge(
        "redrive",
        _from("failed", "cancelled", to=("ready",)),
        ("operator", "relay", "application"),
        "the payload is still there, the generation as expected, the key free",
    ),
    Edge("hasten", _from("scheduled", to=("ready",)), ("operator",), "whatever it waits for"),
    Edge(
        "reprioritise",
        (Move("ready", "ready"), Move("scheduled", "scheduled")),
        ("operator",),
        "not claimed; a ready job is admitted anew, by its new rank",
    ),
    Edge(
        "prune",
        _from("succeeded", "failed", "cancelled", to=(None,)),
        ("relay",),
        "finished longer ago than its kind retains it",
    ),
)

_BY_NAME = {each.name: each for each in EDGES}


def edge(name: str) -> Edge:
    """The edge of that name; KeyError where there is none."""
    return _BY_NAME[name]
