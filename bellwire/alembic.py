"""For your own Alembic environment: `context.configure(…, include_name=include_name)`.

Autogenerate then proposes nothing about Bellwire's tables, which `bellwire migrate` owns.
"""

from bellwire_schema.autogenerate import include_name

__all__ = ["include_name"]
