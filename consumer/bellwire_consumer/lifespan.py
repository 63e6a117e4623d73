"""An app's lifespan: refused where it is written if it cannot work, and entered once a process.

Web frameworks hand theirs the application; ours is given nothing, since what it opens is all that the
handlers need to see (`attempt.deps`).
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, contextmanager
from typing import Any, TypeAlias

import structlog

from bellwire_consumer.error_text import message_of
from bellwire_schema.errors import ConfigError

__all__ = ["Lifespan", "LifespanOf", "check"]

log = structlog.get_logger("bellwire.consumer")

Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any] | AbstractContextManager[Any]]
_MEND = "write it as: @asynccontextmanager, async def lifespan(): …; yield deps; …"


def check(app: str, lifespan: object) -> None:
    """Raises `ConfigError` for what surely gives no context manager when it is called without arguments."""
    if not callable(lifespan):
        raise ConfigError(f"App {app}: lifespan must be a function that gives a context manager; {_MEND}")
    try:
        signature = inspect.signature(lifespan)
    except (TypeError, ValueError):
        return  # written in C, say: `open` looks at what it gives
    try:
        signature.bind()
    except TypeError:
        raise ConfigError(
            f"App {app}: lifespan is called without arguments, and {_name(lifespan)} takes {signature}; "
            f"{_MEND}"
        ) from None
    for is_wrong, what in (
        (inspect.isasyncgenfunction, "a bare async generator: put @asynccontextmanager above it"),
        (inspect.isgeneratorfunction, "a bare generator: put @contextmanager above it"),
        (inspect.iscoroutinefunction, f"a coroutine function, which gives no context manager: {_MEND}"),
    ):
        if is_wrong(lifespan):
            raise ConfigError(f"App {app}: lifespan {_name(lifespan)} is {what}")


class LifespanOf:
    """An app's lifespan in this process. What it raises is kept apart from what the consumer itself does
    wrong: it is the app's own, and worth a line rather than our traceback."""

    def __init__(self, app: str, lifespan: Lifespan | None) -> None:
        self._app = app
        self._lifespan = lifespan
        self._stack = AsyncExitStack()
        self._failure: tuple[Exception, str] | None = None

    async def open(self) -> Any:
        """Enters it; answers what it gives."""
        if self._lifespan is None:
            return None
        with self._failing_at("start"):
            context: Any = self._lifespan()
            if hasattr(context, "__aenter__"):
                return await self._stack.enter_async_context(context)
            if hasattr(context, "__enter__"):
                return self._stack.enter_context(context)
        raise ConfigError(
            f"App {self._app}: lifespan {_name(self._lifespan)} gave a {type(context).__name__}, no context "
            f"manager; {_MEND}"
        )

    async def close(self) -> None:
        with self._failing_at("end"):
            await self._stack.aclose()

    def tell(self, error: Exception, *, debug: bool) -> bool:
        """Says it in one line where the error is the lifespan's; False: it is not."""
        if self._failure is None or self._failure[0] is not error:
            return False
        log.error(
            "the app's lifespan failed",
            at=self._failure[1],
            app=self._app,
            error=message_of(error),
            exc_info=error if debug else None,
        )
        return True

    @contextmanager
    def _failing_at(self, moment: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failure = (error, moment)
            raise


def _name(lifespan: object) -> str:
    return str(getattr(lifespan, "__name__", type(lifespan).__name__))
