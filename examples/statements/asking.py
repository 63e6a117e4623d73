"""The demo's clients: they ask over HTTP, some of them twice, as clients do that lost an answer."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import httpx

_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Order:
    """Who asks for what, in which order."""

    accounts: tuple[int, ...]
    repeated: tuple[int, ...]  # asked for twice at the same time
    conflicting: tuple[int, ...]  # asked for again, on other paper
    late: tuple[int, ...] = ()  # asked for one by one while the broker is away
    last: tuple[int, ...] = ()  # and when it is back

    @property
    def jobs(self) -> int:
        return len(self.accounts) + len(self.late) + len(self.last)


@dataclass
class Answers:
    """What came back."""

    by_status: Counter[int] = field(default_factory=Counter)
    jobs: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.by_status.total()

    @property
    def accepted(self) -> int:
        return self.by_status[202]

    @property
    def duplicates(self) -> int:
        """Repeated requests that found the job of the first."""
        return self.by_status[200]

    @property
    def conflicts(self) -> int:
        return self.by_status[409]

    def add(self, response: httpx.Response) -> None:
        self.by_status[response.status_code] += 1
        if response.status_code in {200, 202}:
            self.jobs.add(response.json()["job_id"])
        elif response.status_code != 409:
            self.unexpected.append(f"{response.status_code} {response.text[:200]}")


class Clients:
    """A bounded number of requests in flight."""

    def __init__(self, address: str, *, period: str, answers: Answers) -> None:
        self._http = httpx.AsyncClient(base_url=address, timeout=30)
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._period = period
        self._answers = answers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, account: int, **more: Any) -> None:
        """Post one request; what goes wrong is kept with the answers."""
        body = {"account_id": account, "period": self._period, **more}
        async with self._gate:
            try:
                self._answers.add(await self._http.post("/statements", json=body))
            except httpx.HTTPError as error:
                self._answers.unexpected.append(f"{type(error).__name__}: {error}")

    async def ask_all(self, accounts: Iterable[int], **more: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for account in accounts:
                group.create_task(self.ask(account, **more))

    async def place(self, order: Order) -> None:
        """All of the order: the repeated ones race with their first, the conflicting ones come after it."""
        twice = set(order.repeated)
        await self.ask_all(chain.from_iterable([a, a] if a in twice else [a] for a in order.accounts))
        await self.ask_all(order.conflicting, paper="Letter")
