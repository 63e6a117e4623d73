"""A payload that PostgreSQL or the handler would choke on is refused before any SQL, with the field named.

What jsonb cannot keep (NUL characters, lone surrogates, NaN and the infinities) would abort the caller's
transaction; what changes meaning on the way (naive datetimes, masked secrets) would do harm later. Both are
looked for in the Python values, nested ones and mapping keys included, and the encoded text is validated
against the job class again, since `model_construct` and assignment go around pydantic.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError
from pydantic_core import PydanticSerializationError

from bellwire_outbox.job import Job, Upgrade, kind_of
from bellwire_outbox.refusals import payload_invalid
from bellwire_schema.errors import ConfigError, PayloadInvalid, PayloadTooLarge

MAX_BYTES = 65_536
MAX_DEPTH = 64

JobT = TypeVar("JobT", bound=Job)


def encode(job: Job) -> tuple[str, dict[str, Any]]:
    """The payload as compact JSON with sorted keys, and as the tree it was made of."""
    kind = kind_of(type(job))
    values = {**vars(job), **(job.__pydantic_extra__ or {})}
    for name, value in values.items():
        _refuse_unstorable(value, name, kind, 0)
    tree = _dump(job, kind)
    try:
        text = json.dumps(tree, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        size = len(text.encode())
    except (ValueError, TypeError, RecursionError):
        text, size = "", 0
    if size == 0 or "\\u0000" in text:
        # Only a custom serialiser can bring these back in; the tree says where.
        for name, value in tree.items():
            _refuse_unstorable(value, name, kind, 0)
        if size == 0:
            raise PayloadInvalid("payload", "its serialised form is no JSON", kind=kind)
    if size > MAX_BYTES:
        raise PayloadTooLarge(size, MAX_BYTES, field=_largest(tree), kind=kind)
    try:
        type(job).model_validate_json(text)
    except ValidationError as error:
        refused = payload_invalid(error, kind=kind)
    else:
        return text, tree
    raise refused


def decode(job: type[JobT], payload: dict[str, Any], *, version: int | None = None) -> JobT:
    """The job of a stored payload, taken up to the class's version (the default) step by step.

    Raises `ConfigError` where no complete chain of upgrades is declared (or the payload is from a later
    version), and `PayloadInvalid` where the payload does not fit.
    """
    config = job.job_config
    version = config.version if version is None else version
    if version not in accepted_versions(job):
        raise ConfigError(
            f"{config.kind}: this code is at version {config.version} and has no @upgrade chain from "
            f"version {version}"
        )
    for step in range(version, config.version):
        payload = job.__bellwire_upgrades__[step](payload)
    try:
        # By way of JSON, so that the same rules hold as at submit (dates as text, no Python-only coercions).
        return job.model_validate_json(json.dumps(payload))
    except ValidationError as error:
        refused = payload_invalid(error, kind=config.kind)
    raise refused


def upgrades(job: type[Job]) -> Mapping[int, Upgrade]:
    """The declared steps, by the version each starts from."""
    return MappingProxyType(job.__bellwire_upgrades__)


def accepted_versions(job: type[Job]) -> tuple[int, ...]:
    """The versions whose payloads this class can run, its own last."""
    version = job.job_config.version
    accepted = [version]
    while accepted[0] - 1 in job.__bellwire_upgrades__:
        accepted.insert(0, accepted[0] - 1)
    return tuple(accepted)


def unstorable_text(text: str) -> str | None:
    """Why PostgreSQL cannot keep this text, or None."""
    if "\x00" in text:
        return "contains a NUL character, which PostgreSQL cannot store"
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        return "contains half of a surrogate pair; decode the text properly where it comes in"
    return None


def _dump(job: Job, kind: str) -> dict[str, Any]:
    computed = set(type(job).model_computed_fields)
    try:
        tree: Any = job.model_dump(mode="json", exclude=computed or None, warnings=False)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise PayloadInvalid(
            "payload", f"cannot be written as JSON ({type(error).__name__})", kind=kind
        ) from None
    if not isinstance(tree, dict):
        raise PayloadInvalid("payload", "its serialiser must answer with a mapping of fields", kind=kind)
    return tree


def _refuse_unstorable(value: object, path: str, kind: str, depth: int) -> None:
    reason = _unstorable(value)
    if reason is not None:
        raise PayloadInvalid(path, reason, kind=kind)
    if depth > MAX_DEPTH:
        raise PayloadInvalid(path, f"is nested deeper than {MAX_DEPTH} levels", kind=kind)
    for step, child in _children(value):
        _refuse_unstorable(child, path + step, kind, depth + 1)


def _unstorable(value: object) -> str | None:
    match value:
        case bool() | int() | None:
            return None
        case str():
            return unstorable_text(value)
        case float() if not math.isfinite(value):
            return "is NaN or an infinity, which JSON does not have"
        case Decimal() if not value.is_finite():
            return "is NaN or an infinity, which no later reader expects as a number"
        case datetime() if value.utcoffset() is None:
            return "is a naive datetime; say the time zone, such as datetime.now(UTC)"
        case Secret() | SecretStr() | SecretBytes():
            return "is a secret: it would be stored masked; pass a reference to it instead"
        case _:
            return None


def _children(value: object) -> Iterable[tuple[str, object]]:
    match value:
        case str() | bytes() | int() | float():
            return ()
        case Mapping():
            return _of_mapping(value)
        case list() | tuple() | AbstractSet():
            return ((f"[{index}]", item) for index, item in enumerate(value))
        case BaseModel():
            return ((f".{name}", item) for name, item in vars(value).items())
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))
        case _:
            return ()


def _of_mapping(value: Mapping[Any, Any]) -> Iterable[tuple[str, object]]:
    for index, (key, item) in enumerate(value.items()):
        # A key that cannot be stored is better not printed.
        yield f" (its key number {index + 1})", key
        yield f".{key}", item


def _largest(tree: dict[str, Any]) -> str:
    return max(tree, key=lambda name: len(json.dumps(tree[name], ensure_ascii=False)))
