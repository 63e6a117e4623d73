"""The shop of the tests: five accounts of the sample ledger, in a database and folder of each test's own."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from examples.statements import data, verify
from examples.statements.jobs import RenderStatement
from examples.statements.ledger import Ledger
from examples.statements.load import create_tables, load, read
from examples.statements.store import ArtifactStore, statement_key
from examples.statements.web import web

PERIOD = data.DEFAULT_PERIOD


@dataclass(frozen=True, kw_only=True)
class Shop:
    """What is in the shop, and where."""

    url: str
    folder: Path
    ledgers: list[Ledger]

    @property
    def store(self) -> ArtifactStore:
        return ArtifactStore(self.folder)

    def job(self, index: int = 0) -> RenderStatement:
        ledger = self.ledgers[index]
        return RenderStatement(customer=ledger.customer, account_id=ledger.account_id, period=PERIOD)

    def key(self, index: int = 0) -> str:
        return statement_key(account_id=self.ledgers[index].account_id, period=PERIOD, version=3)

    def verdict(self, *, jobs: int) -> verify.Verdict:
        """What verify.py says of this database and folder."""
        return verify.judge(verify.read(self.url, "render_statement"), self.folder, jobs=jobs)


@pytest.fixture
def shop(bellwire_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    path = tmp_path / "ledger.csv"
    data.write(path, accounts=5)
    ledgers = list(read(path, period=PERIOD))
    create_tables(bellwire_url)
    load(bellwire_url, ledgers)
    monkeypatch.setenv("STATEMENTS_DATABASE_URL", bellwire_url)
    monkeypatch.setenv("STATEMENTS_ARTIFACTS", str(tmp_path / "artifacts"))
    return Shop(url=bellwire_url, folder=tmp_path / "artifacts", ledgers=ledgers)


@pytest.fixture
async def http(shop: Shop) -> AsyncIterator[httpx.AsyncClient]:
    """The web application, without a socket."""
    transport = httpx.ASGITransport(app=web)
    async with (
        web.router.lifespan_context(web),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        yield client
