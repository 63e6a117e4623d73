"""What docs/how-to/testing.md says works in a project that is not ours, with only the plugin installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellwire_testkit.processes import Process
from bellwire_testkit.servers import PostgresServer

SHOP = """
import os
from bellwire_consumer.app import App
from bellwire_consumer.attempt import AsyncAttempt
from bellwire_outbox import Job, JobConfig

class Render(Job):
    job_config = JobConfig(kind="shop.render", version=1, key=("account",), unique_until="pruned")
    account: int

app = App("shop")

@app.handler(Render)
async def render(job: Render, attempt: AsyncAttempt[None]) -> None:
    with open(os.environ["SHOP_LOG"], "a") as log:
        log.write(f"{attempt.number}\\n")
"""
CONFTEST = """
from collections.abc import Iterator
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

@pytest.fixture(scope="session")
def bellwire_prepare():
    def prepare(url):
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.begin() as conn:
            conn.execute(text("CREATE TABLE account (id int)"))
        engine.dispose()
    return prepare

@pytest.fixture
def session(bellwire_url) -> Iterator[Session]:
    engine = create_engine(bellwire_url.replace("postgresql:", "postgresql+psycopg:", 1))
    with Session(engine) as session:
        yield session
    engine.dispose()
"""
TESTS = """
from datetime import timedelta
import pytest
from sqlalchemy import text
from bellwire_outbox import submit
from shop import Render, app

@pytest.mark.parametrize("turn", [1, 2])
def test_submits(bellwire, session, turn):
    assert bellwire.submitted(Render) == []
    assert session.execute(text("SELECT count(*) FROM account")).scalar() == 0
    session.execute(text("INSERT INTO account VALUES (1)"))
    submit(session, Render(account=1))
    session.commit()
    assert bellwire.submitted(Render) == [Render(account=1)]

@pytest.mark.asyncio
async def test_dies_and_comes_back(bellwire, monkeypatch, tmp_path):
    monkeypatch.setenv("SHOP_LOG", str(tmp_path / "log"))
    died = await bellwire.run(app, Render(account=1), kill_at="consumer.settling")
    assert died.outcome == "process_died"
    bellwire.advance(timedelta(minutes=15))
    assert [r.outcome for r in await bellwire.drain(app)] == ["succeeded"]
    assert (tmp_path / "log").read_text() == "1\\n2\\n"
"""


def run_pytest(folder: Path, env: dict[str, str]) -> Process:
    argv = ("python", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(folder))
    process = Process(*argv, folder=folder / "log", env=env, cwd=folder)
    process.wait_exit(within=110)
    process.close()
    return process


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shop.py").write_text(TESTS)
    return tmp_path


def test_a_project_with_a_server_of_its_own(project: Path, postgres: PostgresServer) -> None:
    process = run_pytest(project, {"BELLWIRE_TEST_DATABASE_URL": postgres.url})
    assert process.code == 0, process.output
    assert "3 passed" in process.output


def test_without_a_server_it_says_what_to_install(project: Path) -> None:
    process = run_pytest(
        project, {"BELLWIRE_TEST_POSTGRES_BIN": "/nowhere", "DOCKER_HOST": "unix:///nowhere.sock"}
    )
    assert process.code == 1
    assert "there is no initdb in it; or set BELLWIRE_TEST_DATABASE_URL" in process.output
    assert "Traceback" not in process.output


def test_loading_the_plugin_loads_nothing_heavy(tmp_path: Path) -> None:
    """It is loaded by every pytest run of every project in an environment where Bellwire is installed."""
    code = "import sys, bellwire_testkit.plugin; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    with Process("python", "-c", code, folder=tmp_path) as process:
        assert process.wait_exit(within=30) == 0
    loaded = set(process.output.split("'"))
    assert not loaded & {"psycopg", "sqlalchemy", "pydantic", "alembic", "asyncio", "structlog"}
