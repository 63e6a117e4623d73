"""The handler. At each line a process may die, and the next attempt must come to the same end.

Died before the promotion: nothing stands under the key, and the next attempt draws anew. After the promotion
and before the commit: a file without a row; the next attempt draws the same bytes, finds them under the key,
and goes on. The row and the job's success are one commit, so neither exists without the other.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from bellwire.consumer import App, AsyncAttempt, Limits, Retry, RetryableError, TerminalError
from examples.statements.fonts import best
from examples.statements.jobs import RenderStatement
from examples.statements.ledger import Ledger
from examples.statements.model import Statement
from examples.statements.pauses import Pauses
from examples.statements.record import StatementConflict, insert_or_verify, read_ledger
from examples.statements.render import RENDERER, render
from examples.statements.settings import Settings
from examples.statements.store import ArtifactConflict, ArtifactStore, Promoted, TemporaryGone, statement_key

TIMEOUT = timedelta(minutes=2)


@dataclass(frozen=True, kw_only=True)
class Deps:
    """What a process opens once and every attempt uses."""

    sessions: async_sessionmaker[AsyncSession]
    store: ArtifactStore
    pauses: Pauses


@asynccontextmanager
async def lifespan() -> AsyncIterator[Deps]:
    settings = Settings.from_environment()
    store = ArtifactStore(settings.artifacts)
    await asyncio.to_thread(store.sweep, older_than=10 * TIMEOUT)
    await asyncio.to_thread(best)  # the fonts' tables, before the first attempt's time runs
    engine = create_async_engine(settings.database_url, pool_size=8, max_overflow=8)
    try:
        yield Deps(
            sessions=async_sessionmaker(engine, expire_on_commit=False),
            store=store,
            pauses=Pauses.from_environment(),
        )
    finally:
        await engine.dispose()


app = App("billing", lifespan=lifespan)


@app.handler(
    RenderStatement,
    retry=Retry(max_attempts=6, base=timedelta(seconds=2), cap=timedelta(minutes=1)),
    timeout=TIMEOUT,
    lease=timedelta(seconds=5),  # a statement takes a tenth of a second: a dead process is noticed in five
    limits=Limits(running_per_tenant=6, backlog=50_000),
    errors={
        ArtifactConflict: TerminalError("artifact_differs"),
        StatementConflict: TerminalError("statement_differs"),
        TemporaryGone: RetryableError("temporary_gone"),
        OperationalError: RetryableError("database_away"),
        OSError: RetryableError("store_unavailable"),
    },
)
async def render_statement(job: RenderStatement, attempt: AsyncAttempt[Deps]) -> None:
    deps = attempt.deps
    async with deps.sessions() as session:
        ledger = await read_ledger(session, job.account_id, job.period)
    if ledger is None:
        raise TerminalError("no_such_period")
    await deps.pauses.reach("before_render", job.account_id)
    statement = await _publish(job, ledger, attempt)
    async with attempt.transaction(deps.sessions) as tx:
        await insert_or_verify(tx.session, statement)
        tx.complete(result={"key": statement.key, "sha256": statement.sha256})


async def _publish(job: RenderStatement, ledger: Ledger, attempt: AsyncAttempt[Deps]) -> Statement:
    """Draw, write beside the key, promote; answers the row that says so."""
    deps = attempt.deps
    version = job.job_config.version
    key = statement_key(account_id=job.account_id, period=job.period, version=version)
    drawn = await asyncio.to_thread(render, ledger, version=version, paper=job.paper)
    attempt.progress(1, total=3, note="drawn")
    attempt.raise_if_cancelled()
    temporary = await asyncio.to_thread(deps.store.write_temporary, key, drawn.pdf, attempt=attempt.number)
    attempt.progress(2, total=3, note="written")
    await deps.pauses.reach("after_temporary", job.account_id)
    promoted: Promoted = await asyncio.to_thread(deps.store.promote, temporary, key)
    await asyncio.to_thread(deps.store.clear_stale, key, below=attempt.number)
    attempt.progress(3, total=3, note="reused" if promoted.reused else "promoted")
    await deps.pauses.reach("after_promotion", job.account_id)
    return Statement(
        account_id=job.account_id,
        period=job.period,
        version=version,
        key=promoted.key,
        sha256=promoted.sha256,
        bytes=promoted.size,
        pages=drawn.pages,
        source_sha256=ledger.digest(),
        renderer=RENDERER,
        job_id=attempt.job_id,
        attempt=attempt.number,
    )
