"""Turns what pydantic or the database answered into the one typed error that names the field and the mend.

No payload value is ever quoted: messages end up in logs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from bellwire_schema.errors import (
    ArgumentInvalid,
    BellwireError,
    KeyConflict,
    NotInstalled,
    OverCapacity,
    PayloadInvalid,
    PayloadTooLarge,
    SubmitRefused,
)

FLUSH_FIRST = "is None where a value is needed; if it is the id of a new row, flush first"


def path_of(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path or "payload"


def payload_invalid(error: ValidationError, *, kind: str) -> PayloadInvalid:
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    missing = first["type"] != "missing" and first["input"] is None
    reason = FLUSH_FIRST if missing else first["msg"]
    if len(problems) > 1:
        others = ", ".join(path_of(problem["loc"]) for problem in problems[1:4])
        reason += f" (and {len(problems) - 1} more: {others}{', …' if len(problems) > 4 else ''})"
    return PayloadInvalid(path_of(first["loc"]), reason, kind=kind)


def refusal(row: Mapping[str, Any], *, ordinal: int | None = None) -> BellwireError:
    """The error for a row of `try_submit` that carries a code."""
    code: str = row["code"]
    detail: Mapping[str, Any] = row.get("detail") or {}
    field = str(detail.get("field") or "payload")
    message = str(detail.get("message") or code)
    match code:
        case "key_conflict":
            return KeyConflict(UUID(row["job_id"]), detail.get("fields") or (), ordinal=ordinal)
        case "over_capacity":
            seconds = detail.get("drain_seconds")
            estimate = None if seconds is None else timedelta(seconds=float(seconds))
            return OverCapacity(detail.get("backlog"), estimate, ordinal=ordinal)
        case "payload_too_large" if "size" in detail and "limit" in detail:
            return PayloadTooLarge(int(detail["size"]), int(detail["limit"]), field=field)
        case PayloadInvalid.code | PayloadTooLarge.code:
            return PayloadInvalid(field, message)
        case ArgumentInvalid.code:
            return ArgumentInvalid(field, message)
        case _:
            return SubmitRefused(f"{code}: {message}", code=code, ordinal=ordinal)


_MENDS = {
    "3F000": "this database has no schema bellwire: is it the right one? If so, run 'bellwire migrate'",
    "42883": "this database has no bellwire.{function} as this code calls it: run 'bellwire migrate'",
    "42501": "this role may not call bellwire.{function}: GRANT bellwire_application TO its login",
}


@contextmanager
def explained(function: str) -> Iterator[None]:
    """Says what is missing where the function cannot be called; a driver's other errors are left alone."""
    try:
        yield
    except Exception as error:
        mend = _MENDS.get(sqlstate_of(error) or "")
        if mend is None:
            raise
        raise NotInstalled(mend.format(function=function)) from error


def sqlstate_of(error: BaseException | None) -> str | None:
    """The server's code, however the stack spells it and however deep it has wrapped the driver's error."""
    while error is not None:
        for holder in (error, getattr(error, "orig", None)):
            code = getattr(holder, "sqlstate", None) or getattr(holder, "pgcode", None)
            if isinstance(code, str):
                return code
        error = error.__cause__
    return None
