"""Keeps a user's `alembic revision --autogenerate` away from our tables, which it would propose to drop."""

from collections.abc import MutableMapping

SCHEMA = "bellwire"


def include_name(name: str | None, type_: str, parent_names: MutableMapping[str, str | None]) -> bool:
    """For `context.configure(include_name=…, include_schemas=True)`; anything that is not ours is included.

    Who filters names already calls this one too: `include_name(...) and mine(...)`.
    """
    if type_ == "schema":
        return name != SCHEMA
    return parent_names.get("schema_name") != SCHEMA
