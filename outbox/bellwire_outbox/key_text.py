"""The key and the tenant as text: what any other language has to write to mean the same job.

A key is its fields' values in order, joined by ":"; ":" and "\\" inside a value are escaped by "\\", so that
("a:b", "c") and ("a", "b:c") stay two keys. Only text, whole numbers and booleans have one obvious spelling;
dates, UUIDs and enums count by their JSON text. None is no identity: it is the id of a row that was not
flushed.
"""

from collections.abc import Mapping
from typing import Any

from bellwire_outbox.config import JobConfig
from bellwire_outbox.payload import unstorable_text
from bellwire_outbox.refusals import FLUSH_FIRST
from bellwire_schema.errors import ArgumentInvalid, PayloadInvalid

MAX_KEY_BYTES = 1_000
MAX_TENANT_BYTES = 200


def key_text(config: JobConfig, tree: Mapping[str, Any]) -> str | None:
    if config.key is None:
        return None
    parts = (_spell(config, name, tree) for name in config.key)
    return _bounded("key", ":".join(map(_escape, parts)), MAX_KEY_BYTES)


def tenant_text(config: JobConfig, tree: Mapping[str, Any]) -> str:
    """'' where the class names no tenant."""
    if config.tenant is None:
        return ""
    text = _spell(config, config.tenant, tree)
    if not text:
        raise PayloadInvalid(config.tenant, "is empty, but names the tenant", kind=config.kind)
    return _bounded("tenant", text, MAX_TENANT_BYTES)


def _escape(part: str) -> str:
    return part.replace("\\", "\\\\").replace(":", "\\:")


def _spell(config: JobConfig, name: str, tree: Mapping[str, Any]) -> str:
    match tree.get(name):
        case bool() as value:
            return "true" if value else "false"
        case int() as value:
            return str(value)
        case str() as value:
            return value
        case None:
            raise PayloadInvalid(name, FLUSH_FIRST, kind=config.kind)
        case value:
            raise PayloadInvalid(
                name,
                f"names the job, so it must be text, a whole number or a boolean in JSON, not "
                f"{type(value).__name__}",
                kind=config.kind,
            )


def _bounded(argument: str, text: str, limit: int) -> str:
    reason = unstorable_text(text)
    if reason is None and len(text.encode()) > limit:
        reason = f"takes more than {limit} bytes; use a checksum of the long part"
    if reason is not None:
        raise ArgumentInvalid(argument, reason)
    return text
