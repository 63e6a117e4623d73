"""One line per change of the process's state, never one per job; no payloads, no frame locals, no passwords.

Everything, the standard library's loggers included, goes through one chain to stderr, and every text in it is
redacted there, so that an address in somebody else's exception text does not give a password away.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from bellwire_runtime.redact import redact

__all__ = ["configure"]


def configure(*, log_format: str = "auto", log_level: str = "info", stream: TextIO | None = None) -> None:
    """Set up logging of this process; called once by the command line, never on import."""
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = _Handler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _redacted,
                _renderer(log_format, out),
            ],
        )
    )
    root, ours = logging.getLogger(), logging.getLogger("bellwire")
    ours.setLevel(log_level.upper())
    if root.handlers and not any(isinstance(h, _Handler) for h in root.handlers):
        # The application has set up logging of its own, which stays as it is; only our lines go our way.
        ours.handlers[:] = [handler]
        ours.propagate = False
    else:
        root.handlers[:] = [handler]
        # Other people's loggers at warning: an info line of theirs may be one per job.
        root.setLevel(logging.WARNING)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Ours, known again when logging is set up twice."""


def _renderer(log_format: str, out: TextIO) -> Processor:
    if log_format == "json" or (log_format == "auto" and not out.isatty()):
        return structlog.processors.JSONRenderer(default=str)
    pairs = structlog.processors.KeyValueRenderer(
        key_order=["timestamp", "level", "logger", "event"], drop_missing=True
    )

    def readable(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        trace = event.pop("exception", None)
        line = str(pairs(logger, method, event))
        return f"{line}\n{trace}" if trace else line

    return readable


def _redacted(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = redact(value)
        elif not isinstance(value, (int, float, bool, type(None))):
            event[name] = redact(str(value))
    return event
