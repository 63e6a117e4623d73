"""What the database says of an app's kinds when a consumer starts.

One app owns a kind. Under another app's name the jobs would run silently under a policy that this code did
not declare, and by a handler that their owner does not know; so that is refused before anything is claimed.
"""

from collections.abc import Sequence

import structlog

from bellwire_runtime.database import Connection
from bellwire_schema.errors import ConfigError
from bellwire_schema.policy import KindPolicy

__all__ = ["longest_lease"]

log = structlog.get_logger("bellwire.consumer")


async def longest_lease(conn: Connection, *, app: str, policies: Sequence[KindPolicy]) -> float:
    """In seconds, of those in use. Says which kinds were never applied; raises `ConfigError` for a kind that
    another app owns."""
    names = [policy.name for policy in policies]
    cursor = await conn.execute(
        "SELECT name, app, extract(epoch FROM lease)::float8 FROM bellwire.kind WHERE name = ANY(%s)",
        (names,),
    )
    rows: list[tuple[str, str, float]] = await cursor.fetchall()
    foreign = sorted((name, owner) for name, owner, _ in rows if owner != app)
    if foreign:
        told = "; ".join(f"{name} belongs to app {owner}" for name, owner in foreign)
        raise ConfigError(
            f"App {app}: {told}; one app owns a kind: name this App {foreign[0][1]!r}, or leave the kind to "
            f"a consumer of app {foreign[0][1]} and give yours another name"
        )
    missing = sorted(set(names) - {name for name, _, _ in rows})
    if missing:
        log.warning(
            "kinds without applied policy run under the defaults",
            kinds=", ".join(missing),
            mend="bellwire apply --app …",
        )
    return max([*(lease for _, _, lease in rows), *(policy.lease.total_seconds() for policy in policies)])
