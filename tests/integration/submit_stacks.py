"""The client stacks that tests submit over, behind one small asynchronous face.

Each stack is opened as an application would open it. A synchronous one lives on a thread of its own, so that
two of them can wait for each other in one test (and Django and scoped_session, which are bound to their
thread, can too).
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import django
import django.conf
import psycopg
from django.db import connections, transaction
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import bellwire
import bellwire.django

T = TypeVar("T")
Isolation = str
DEFAULT: Isolation = "READ COMMITTED"
_FUNCTIONS = ("submit", "submit_many", "get_job", "find_job", "cancel", "drain_estimate")


class Opened:
    """One open session or connection, in a transaction of its own unless it was opened in autocommit."""

    target: Any

    async def call(self, function: str, *args: Any, **options: Any) -> Any: ...
    async def execute(self, sql: str) -> None: ...
    async def savepoint(self) -> None: ...
    async def rollback_to_savepoint(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class Stack:
    name: str
    connect: Callable[[str, Isolation, bool], Coroutine[Any, Any, Opened]]
    isolated: bool = True

    @asynccontextmanager
    async def open(
        self, url: str, *, isolation: Isolation = DEFAULT, autocommit: bool = False
    ) -> AsyncIterator[Opened]:
        opened = await self.connect(url, isolation, autocommit)
        try:
            yield opened
        finally:
            await opened.close()


class OnThread(Opened):
    """Runs every step of a synchronous stack on one thread."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: function(*args, **options)
        )

    async def call(self, function: str, *args: Any, **options: Any) -> Any:
        return await self.run(getattr(bellwire, function), self.target, *args, **options)

    async def close(self) -> None:
        await self.run(self.shut)
        self._thread.shutdown()

    def shut(self) -> None: ...


class Alchemy(OnThread):
    """A SQLAlchemy Session, scoped_session or Connection."""

    def __init__(self, url: str, isolation: Isolation, kind: str) -> None:
        super().__init__(kind)
        self._engine = create_engine(url, isolation_level=isolation, pool_size=1, max_overflow=0)
        self._kind = kind

    def start(self) -> None:
        if self._kind == "connection":
            self.target = self._engine.connect()
        elif self._kind == "scoped":
            self.target = scoped_session(sessionmaker(self._engine))
        else:
            self.target = Session(self._engine)

    async def execute(self, sql: str) -> None:
        def run() -> None:
            connection: Connection = self.target if self._kind == "connection" else self.target.connection()
            connection.exec_driver_sql(sql)

        await self.run(run)

    async def savepoint(self) -> None:
        self._savepoint = await self.run(self.target.begin_nested)

    async def rollback_to_savepoint(self) -> None:
        await self.run(self._savepoint.rollback)

    async def commit(self) -> None:
        await self.run(self.target.commit)

    async def rollback(self) -> None:
        await self.run(self.target.rollback)

    def shut(self) -> None:
        self.target.close()
        self._engine.dispose()


class AsyncAlchemy(Opened):
    """A SQLAlchemy AsyncSession or AsyncConnection."""

    def __init__(self, url: str, isolation: Isolation, kind: str) -> None:
        self._engine = create_async_engine(url, isolation_level=isolation, pool_size=1, max_overflow=0)
        self._kind = kind

    async def start(self) -> None:
        if self._kind == "connection":
            self.target = await self._engine.connect()
        else:
            self.target = AsyncSession(self._engine)

    async def call(self, function: str, *args: Any, **options: Any) -> Any:
        return await getattr(bellwire, function)(self.target, *args, **options)

    async def execute(self, sql: str) -> None:
        target: AsyncConnection = (
            self.target if self._kind == "connection" else await self.target.connection()
        )
        await target.exec_driver_sql(sql)

    async def savepoint(self) -> None:
        self._savepoint = await self.target.begin_nested()

    async def rollback_to_savepoint(self) -> None:
        await self._savepoint.rollback()

    async def commit(self) -> None:
        await self.target.commit()

    async def rollback(self) -> None:
        await self.target.rollback()

    async def close(self) -> None:
        await self.target.close()
        await self._engine.dispose()


class Psycopg(OnThread):
    def __init__(self, url: str, isolation: Isolation, *, autocommit: bool) -> None:
        super().__init__("psycopg")
        self.target = psycopg.connect(url, autocommit=autocommit)
        self.target.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_")]

    async def execute(self, sql: str) -> None:
        await self.run(self.target.execute, sql)

    async def savepoint(self) -> None:
        await self.execute("SAVEPOINT here")

    async def rollback_to_savepoint(self) -> None:
        await self.execute("ROLLBACK TO SAVEPOINT here")

    async def commit(self) -> None:
        await self.run(self.target.commit)

    async def rollback(self) -> None:
        await self.run(self.target.rollback)

    def shut(self) -> None:
        self.target.close()


class AsyncPsycopg(Opened):
    async def start(self, url: str, isolation: Isolation, *, autocommit: bool) -> None:
        self.target = await psycopg.AsyncConnection.connect(url, autocommit=autocommit)
        await self.target.set_isolation_level(psycopg.IsolationLevel[isolation.replace(" ", "_")])

    async def call(self, function: str, *args: Any, **options: Any) -> Any:
        return await getattr(bellwire, function)(self.target, *args, **options)

    async def execute(self, sql: str) -> None:
        await self.target.execute(sql)

    async def savepoint(self) -> None:
        await self.execute("SAVEPOINT here")

    async def rollback_to_savepoint(self) -> None:
        await self.execute("ROLLBACK TO SAVEPOINT here")

    async def commit(self) -> None:
        await self.target.commit()

    async def rollback(self) -> None:
        await self.target.rollback()

    async def close(self) -> None:
        await self.target.close()


class Django(OnThread):
    """Django's connection, inside `atomic()` unless opened in autocommit."""

    _aliases = itertools.count()

    def __init__(self, url: str, isolation: Isolation, *, autocommit: bool) -> None:
        super().__init__("django")
        self._autocommit = autocommit
        if not django.conf.settings.configured:
            django.conf.settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}})
            django.setup()
        self._alias = f"bellwire_{next(self._aliases)}"
        parts = urlsplit(url)
        connections.databases[self._alias] = {
            **connections.databases["default"],
            "NAME": unquote(parts.path[1:]),
            "HOST": parts.hostname or "",
            "PORT": str(parts.port or ""),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "OPTIONS": {"isolation_level": psycopg.IsolationLevel[isolation.replace(" ", "_")]},
        }

    def start(self) -> None:
        if not self._autocommit:
            self._atomic = transaction.atomic(using=self._alias)
            self._atomic.__enter__()

    async def call(self, function: str, *args: Any, **options: Any) -> Any:
        return await self.run(getattr(bellwire.django, function), *args, using=self._alias, **options)

    async def execute(self, sql: str) -> None:
        def run() -> None:
            with connections[self._alias].cursor() as cursor:
                cursor.execute(sql)

        await self.run(run)

    async def savepoint(self) -> None:
        self._savepoint = cast("str", await self.run(transaction.savepoint, using=self._alias))

    async def rollback_to_savepoint(self) -> None:
        await self.run(transaction.savepoint_rollback, self._savepoint, using=self._alias)

    async def commit(self) -> None:
        await self.run(self._leave, rollback=False)

    async def rollback(self) -> None:
        await self.run(self._leave, rollback=True)

    def _leave(self, *, rollback: bool) -> None:
        if rollback:
            transaction.set_rollback(True, using=self._alias)
        self._atomic.__exit__(None, None, None)
        self.start()

    def shut(self) -> None:
        if not self._autocommit:
            transaction.set_rollback(True, using=self._alias)
            self._atomic.__exit__(None, None, None)
        connections[self._alias].close()
        del connections[self._alias], connections.databases[self._alias]


def _alchemy(driver: str, kind: str) -> Stack:
    async def connect(url: str, isolation: Isolation, autocommit: bool) -> Opened:
        opened = Alchemy(_with_driver(url, driver), "AUTOCOMMIT" if autocommit else isolation, kind)
        await opened.run(opened.start)
        return opened

    return Stack(f"{kind}-{driver}", connect)


def _async_alchemy(driver: str, kind: str) -> Stack:
    async def connect(url: str, isolation: Isolation, autocommit: bool) -> Opened:
        opened = AsyncAlchemy(_with_driver(url, driver), "AUTOCOMMIT" if autocommit else isolation, kind)
        await opened.start()
        return opened

    return Stack(f"async_{kind}-{driver}", connect)


async def _psycopg(url: str, isolation: Isolation, autocommit: bool) -> Opened:
    return Psycopg(url, isolation, autocommit=autocommit)


async def _async_psycopg(url: str, isolation: Isolation, autocommit: bool) -> Opened:
    opened = AsyncPsycopg()
    await opened.start(url, isolation, autocommit=autocommit)
    return opened


async def _django(url: str, isolation: Isolation, autocommit: bool) -> Opened:
    opened = Django(url, isolation, autocommit=autocommit)
    await opened.run(opened.start)
    return opened


def _with_driver(url: str, driver: str) -> str:
    return f"postgresql+{driver}://{url.partition('://')[2]}"


STACKS = [
    _alchemy("psycopg", "session"),
    _alchemy("psycopg2", "session"),
    _alchemy("psycopg", "scoped"),
    _alchemy("psycopg2", "scoped"),
    _alchemy("psycopg", "connection"),
    _alchemy("psycopg2", "connection"),
    _async_alchemy("psycopg", "session"),
    _async_alchemy("asyncpg", "session"),
    _async_alchemy("psycopg", "connection"),
    _async_alchemy("asyncpg", "connection"),
    Stack("psycopg", _psycopg),
    Stack("async_psycopg", _async_psycopg),
    Stack("django", _django),
]
