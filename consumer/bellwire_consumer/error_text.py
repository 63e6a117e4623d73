"""What is kept of an exception: always storable, bounded, and without a password in it.

Exceptions are somebody else's code. Their text may raise, hold NUL characters or megabytes, and their
causes may run in a circle; none of that may keep an attempt from being settled. The place an error came from
is kept with it: its file's name without the path, which would tell of the machine and not of the code.
"""

import re
import sysconfig
from pathlib import PurePath

from bellwire_runtime.redact import redact

__all__ = ["MAX_BYTES", "code_of", "message_of", "place_of", "storable"]

MAX_BYTES = 2048
_MAX_CAUSES = 3
_MAX_PLACE = 200
_OURS = frozenset(
    ["bellwire"]
    + [
        f"bellwire_{name}"
        for name in ("console", "consumer", "outbox", "relay", "runtime", "schema", "testkit")
    ]
)
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} - {None, ""}
)
_UPPER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OTHER = re.compile(r"[^a-z0-9_.]+")


def message_of(error: BaseException) -> str:
    """Type, text and place of the error, and type and text of the first causes behind it."""
    parts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(parts) <= _MAX_CAUSES:
        seen.add(id(link))
        text = _text(link)
        name = type(link).__name__
        told = f"{name}: {text}" if text else name
        parts.append(told if parts else _placed(told, place_of(error)))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return storable("; caused by ".join(parts))


def place_of(error: BaseException) -> str | None:
    """`work.py:41 in render`: the innermost line of the user's own code, else of a library's. None where the
    error never left our own."""
    own = library = None
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        module = step.tb_frame.f_globals.get("__name__")
        ours = isinstance(module, str) and module.partition(".")[0] in _OURS
        if not ours and not code.co_filename.startswith("<frozen"):
            library = (code, step.tb_lineno)
            if not code.co_filename.startswith(_LIBRARIES):
                own = library
        step = step.tb_next
    found = own or library
    if found is None:
        return None
    code, line = found
    return storable(f"{PurePath(code.co_filename).name}:{line} in {code.co_name}", limit=_MAX_PLACE)


def _placed(text: str, place: str | None) -> str:
    """The place survives a text that is cut."""
    return text if place is None else f"{storable(text, limit=MAX_BYTES - _MAX_PLACE - 3)} ({place})"


def storable(text: str, *, limit: int = MAX_BYTES) -> str:
    """The text without passwords, NUL characters and lone surrogates, at most `limit` bytes of UTF-8."""
    # Cut first, generously: a pattern over megabytes would take seconds.
    kept = redact(text[: 4 * limit]).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    data = kept.encode("utf-8", "replace")
    if len(data) > limit:
        data = data[: limit - 3] + "…".encode()
    return data.decode("utf-8", "ignore")


def code_of(error: BaseException) -> str:
    """A stable name for an error that nobody declared: its class, in the form of a code (`value_error`)."""
    name = _OTHER.sub("_", _UPPER.sub("_", type(error).__name__).lower()).strip("_.")
    return (name if name[:1].isalpha() else f"error_{name}".rstrip("_"))[:63]


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 (somebody else's __str__, which may raise SystemExit too)
        return "its text could not be made"
    return text if isinstance(text, str) else "its text is no text"
