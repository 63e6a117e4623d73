"""The web application: a request and its job are one commit, and the answer leaves only after it.

A client that lost the answer asks again and is told of the same job: 202 the first time, 200 from then on.
Asking for the same account and period on other paper is 409, since one key stands for one statement.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi import Request as HttpRequest
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from bellwire import KeyConflict, OverCapacity, get_job, submit
from examples.statements.jobs import Period, RenderStatement
from examples.statements.model import Account, Opening, Request, Statement
from examples.statements.settings import Settings


class Ask(BaseModel):
    """Body of POST /statements."""

    account_id: Annotated[int, Field(gt=0, lt=2**63)]
    period: Period
    paper: Literal["A4", "Letter"] = "A4"


class Accepted(BaseModel):
    job_id: UUID
    outcome: str
    state: str


class Made(BaseModel):
    """A statement that exists: the row, not a promise."""

    key: str
    sha256: str
    pages: int


class Status(BaseModel):
    job_id: UUID
    state: str
    attempt: int
    progress: str | None
    statement: Made | None


@asynccontextmanager
async def _lifespan(web: FastAPI) -> AsyncIterator[None]:
    engine = create_async_engine(Settings.from_environment().database_url, pool_size=8, max_overflow=8)
    web.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
    yield
    await engine.dispose()


web = FastAPI(title="Statements", lifespan=_lifespan)


def _sessions(request: HttpRequest) -> async_sessionmaker[AsyncSession]:
    sessions: async_sessionmaker[AsyncSession] = request.app.state.sessions
    return sessions


Sessions = Annotated[async_sessionmaker[AsyncSession], Depends(_sessions)]


@web.post("/statements", status_code=202)
async def request_statement(ask: Ask, sessions: Sessions, response: Response) -> Accepted:
    # The transaction ends inside the function: what a dependency does after `yield` may run when the answer
    # is already on its way, and then a failed COMMIT would have been answered with 202.
    async with sessions.begin() as session:
        customer = await session.scalar(
            select(Account.customer)
            .join(Opening, Opening.account_id == Account.id)
            .where(Account.id == ask.account_id, Opening.period == ask.period)
        )
        if customer is None:
            raise HTTPException(404, f"account {ask.account_id} has no closed period {ask.period}")
        try:
            receipt = await submit(session, RenderStatement(customer=customer, **ask.model_dump()))
        except KeyConflict as conflict:
            detail = {"job_id": str(conflict.job_id), "fields": list(conflict.fields)}
            raise HTTPException(409, detail) from conflict
        except OverCapacity as full:
            wait = int(full.drain_estimate.total_seconds()) + 1 if full.drain_estimate else 60
            raise HTTPException(503, "too many statements wait", {"Retry-After": str(wait)}) from full
        session.add(
            Request(
                account_id=ask.account_id,
                period=ask.period,
                job_id=receipt.job_id,
                outcome=receipt.outcome,
            )
        )
    response.status_code = 202 if receipt.created else 200
    response.headers["Location"] = f"/statements/{receipt.job_id}"
    return Accepted(job_id=receipt.job_id, outcome=receipt.outcome, state=receipt.state)


@web.get("/statements/{job_id}")
async def statement_status(job_id: UUID, sessions: Sessions) -> Status:
    async with sessions() as session:
        job = await get_job(session, job_id)
        if job is None:
            raise HTTPException(404, f"no job {job_id}")
        made = await session.scalar(select(Statement).where(Statement.job_id == job_id))
    return Status(
        job_id=job_id,
        state=job.state,
        attempt=job.attempt,
        progress=job.progress_note,
        statement=Made(key=made.key, sha256=made.sha256, pages=made.pages) if made else None,
    )


@web.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}
