"""Who this consumer is in the registry. The id is new at each start: what an earlier process held is not
ours."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

__all__ = ["Identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`kinds` and `versions` are parallel: each pair is something this process can run."""

    id: UUID
    app: str
    app_version: str | None
    host: str
    pid: int
    slots: int
    kinds: tuple[str, ...]
    versions: tuple[int, ...]

    @classmethod
    def fresh(
        cls, *, app: str, app_version: str | None, slots: int, declared: Sequence[tuple[str, int]]
    ) -> "Identity":
        return cls(
            id=uuid4(),
            app=app,
            app_version=app_version,
            host=socket.gethostname()[:200],
            pid=os.getpid(),
            slots=slots,
            kinds=tuple(kind for kind, _ in declared),
            versions=tuple(version for _, version in declared),
        )
