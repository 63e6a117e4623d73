"""What mypy strict must refuse. A line that ends in `# E: CODE` has that error, and no other line has one.

Kept out of the ordinary run of mypy; `test_types.py` checks it. It is never run.
"""

from datetime import timedelta

import psycopg
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from bellwire import FailedJob, Job, JobConfig, cancel, submit, submit_many
from bellwire.consumer import App, AsyncAttempt, Attempt


class Render(Job):
    job_config = JobConfig(kind="render", version=1, key=("account_id",), unique_until="pruned")
    account_id: int


class Close(Job):
    job_config = JobConfig(kind="close", version=1, key=None)


class Mail(BaseModel):
    id: str


class Deps:
    sessions: async_sessionmaker[AsyncSession]


app: App[Deps] = App("shop")


# A handler whose payload type differs from its job.
@app.handler(Render)  # E: arg-type
async def other_payload(job: Close, attempt: AsyncAttempt[Deps]) -> None: ...


# A handler whose dependencies differ from its app's, or that takes the wrong kind of attempt.
@app.handler(Render)  # E: arg-type
async def other_deps(job: Render, attempt: AsyncAttempt[str]) -> None: ...


@app.handler(Render)  # E: arg-type
async def other_attempt(job: Render, attempt: Attempt[Deps]) -> None: ...


# Submit of something that is no Job.
def no_job(session: Session) -> None:
    submit(session, Mail(id="7"))  # E: call-overload
    submit(session, {"account_id": 7})  # E: call-overload
    submit(session, Render)  # E: call-overload
    submit_many(session, [Render(account_id=1), Mail(id="7")])  # E: list-item


# Submit into something that is no session.
def no_session(factory: async_sessionmaker[AsyncSession]) -> None:
    submit(factory, Render(account_id=1))  # E: call-overload


# A forgotten await on an async submit.
async def forgotten(session: AsyncSession, conn: AsyncConnection, raw: psycopg.AsyncConnection) -> None:
    submit(session, Render(account_id=1))  # E: unused-coroutine
    submit_many(conn, [Render(account_id=1)])  # E: unused-coroutine
    submit(raw, Render(account_id=1))  # E: unused-coroutine
    print(submit(session, Render(account_id=1)).job_id)  # E: attr-defined


# An await too many.
async def too_many(session: Session) -> None:
    await submit(session, Render(account_id=1))  # E: misc


# tx.session of the wrong type.
def takes_sync(session: Session) -> None: ...


@app.handler(Close)
async def wrong_session(job: Close, attempt: AsyncAttempt[Deps]) -> None:
    async with attempt.transaction(attempt.deps.sessions) as tx:
        takes_sync(tx.session)  # E: arg-type
        tx.submit(Render(account_id=1))  # E: unused-coroutine
        await tx.submit(Mail(id="7"))  # E: arg-type


# An on_failed that is no FailedJob.
@app.handler(Render, on_failed=Close)  # E: arg-type
async def no_failed_job(job: Render, attempt: AsyncAttempt[Deps]) -> None: ...


# Payload fields.
Render(account_id="91")  # E: arg-type
Render(acount_id=91)  # E: call-arg
Render(account_id=None)  # E: arg-type


# The contract.
JobConfig(kind="a", version=1)  # E: call-overload
JobConfig(kind="a", version=1, key=("account_id",))  # E: call-overload
JobConfig(kind="a", version=1, key="account_id", unique_until="pruned")  # E: call-overload
JobConfig(kind="a", version=1, key=("account_id",), unique_until="done")  # E: call-overload
JobConfig(kind="a", version=1, key=None, unique_until="pruned")  # E: call-overload
JobConfig(kind="a", version=1, key=None, max_agee=timedelta(days=1))  # E: call-overload
JobConfig(kind="a", key=None)  # E: call-overload


class BadConfig(FailedJob):
    job_config = "bad"  # E: assignment


# A misspelt option.
def misspelt(session: Session) -> None:
    submit(session, Render(account_id=1), runat=None)  # E: call-overload
    submit(session, Render(account_id=1), on_duplicate="overwrite")  # E: call-overload
    cancel(session, Render(account_id=1), actor="me", reason="why")  # E: call-overload


@app.handler(Render, time_out=timedelta(1))  # E: call-arg
async def misspelt_option(job: Render, attempt: AsyncAttempt[Deps]) -> None: ...


# An effect that says neither how to find out nor what to do when in doubt.
@app.handler(Render)
async def blind_effect(job: Render, attempt: AsyncAttempt[Deps]) -> None:
    async def send(key: str) -> Mail:
        return Mail(id=key)

    await attempt.effect("mail", args={}, returns=Mail, do=send)  # E: call-overload
