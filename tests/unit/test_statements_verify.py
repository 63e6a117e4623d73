"""The verdict sees each thing that can be wrong: every case below breaks one fact of a world that adds up."""

import ast
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.statements import verify

START = datetime(2026, 6, 1, tzinfo=UTC)
PDF = b"%PDF-1.3 content %%EOF\n"


def test_it_imports_nothing_of_ours() -> None:
    tree = ast.parse(Path(verify.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert imported - sys.stdlib_module_names == {"psycopg"}


@dataclass
class World:
    """Two jobs done: the first at once, the second after a lease was taken back."""

    folder: Path
    jobs: list[Any] = field(default_factory=list)
    attempts: list[Any] = field(default_factory=list)
    statements: list[Any] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    wake_ups: list[Any] = field(default_factory=list)

    @classmethod
    def sound(cls, folder: Path) -> "World":
        world = cls(folder)
        for job, account, attempts in (("job-1", "91", 1), ("job-2", "92", 2)):
            world.jobs.append(
                SimpleNamespace(
                    id=job, state="succeeded", attempt=attempts, account=account, period="2026-05", version=3
                )
            )
            for number in range(1, attempts + 1):
                begin = START + timedelta(seconds=10 * number)
                world.attempts.append(
                    SimpleNamespace(
                        job_id=job,
                        number=number,
                        outcome="succeeded" if number == attempts else "recovered",
                        started_at=begin,
                        ended_at=begin + timedelta(seconds=5),
                    )
                )
            key = f"statements/{account}/2026-05/v3.pdf"
            world.path(key).parent.mkdir(parents=True)
            world.path(key).write_bytes(PDF)
            world.statements.append(
                SimpleNamespace(
                    account=account,
                    period="2026-05",
                    version=3,
                    key=key,
                    sha256=hashlib.sha256(PDF).hexdigest(),
                    bytes=len(PDF),
                    job_id=job,
                    attempt=attempts,
                )
            )
            world.ask(job, account)
        world.ask("job-2", "92")  # asked for twice, one job
        return world

    def ask(self, job: str, account: str) -> None:
        self.requests.append(
            SimpleNamespace(account=account, period="2026-05", job_id=job, outcome="created")
        )

    def path(self, key: str) -> Path:
        return self.folder / key

    def temporary(self, name: str) -> None:
        (self.folder / ".temporary").mkdir(exist_ok=True)
        (self.folder / ".temporary" / name).touch()

    def failing(self) -> set[str]:
        rows = verify.Rows(self.jobs, self.attempts, self.statements, self.requests, self.wake_ups)
        return {text for text, _, wrong in verify.judge(rows, self.folder, recovered=1).lines if wrong}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.sound(tmp_path)


def test_a_sound_world_adds_up(world: World) -> None:
    assert world.failing() == set()


def test_an_unfinished_file_of_another_statement_does_no_harm(world: World) -> None:
    world.temporary("statements+99+2026-05+v3.pdf.1.aa")
    assert world.failing() == set()


def drop_job(world: World) -> None:
    world.jobs.pop()
    world.attempts = [attempt for attempt in world.attempts if attempt.job_id == "job-1"]


def two_jobs_for_one_statement(world: World) -> None:
    world.jobs[1].account = "91"


def other_bytes(world: World) -> None:
    world.path(world.statements[0].key).write_bytes(PDF.replace(b"content", b"CONTENT"))


def truncated(world: World) -> None:
    half = PDF[:10]
    world.path(world.statements[0].key).write_bytes(half)
    world.statements[0].bytes = len(half)
    world.statements[0].sha256 = hashlib.sha256(half).hexdigest()


def temporary_key(world: World) -> None:
    world.statements[0].key = ".temporary/statements+91+2026-05+v3.pdf.1.aa"


FILE = "every row's file is there, whole, with the row's checksum"
ORPHAN = "no file stands under a key without a row"
ONCE = "every job succeeded once, in its last attempt"
NUMBERS = "attempt numbers rise by one, and each has one ending"
OWNER = "every statement row belongs to its job and to the attempt that succeeded"


@pytest.mark.parametrize(
    ("breaks", "claims"),
    [
        (drop_job, {"every accepted request has its job", OWNER, "leases were taken back from the dead"}),
        (
            lambda w: w.ask("job-1", "92"),
            {"an account and period has one job, however often it was asked for"},
        ),
        (two_jobs_for_one_statement, {"no job was made twice", OWNER}),
        (lambda w: setattr(w.jobs[0], "state", "failed"), {"every job has succeeded"}),
        (lambda w: w.wake_ups.append(SimpleNamespace(job_id="job-1")), {"no wake-up is left"}),
        (
            lambda w: setattr(w.attempts[1], "outcome", "succeeded"),
            {ONCE, "leases were taken back from the dead"},
        ),
        (lambda w: setattr(w.attempts[0], "outcome", "retry"), {ONCE}),
        (lambda w: setattr(w.attempts[1], "number", 2), {NUMBERS}),
        (lambda w: w.attempts.pop(1), {NUMBERS, "leases were taken back from the dead"}),
        (
            lambda w: setattr(
                w.attempts[2], "started_at", w.attempts[1].ended_at - timedelta(microseconds=1)
            ),
            {"no two leases of a job ran at once"},
        ),
        (lambda w: w.statements.pop(), {"every job has its statement row", ORPHAN}),
        (lambda w: setattr(w.statements[1], "attempt", 1), {OWNER}),
        (lambda w: setattr(w.statements[1], "job_id", "job-3"), {OWNER, "every job has its statement row"}),
        (other_bytes, {FILE}),
        (truncated, {FILE}),
        (lambda w: w.path(w.statements[0].key).unlink(), {FILE}),
        (lambda w: setattr(w.statements[0], "bytes", 1), {FILE}),
        (lambda w: w.path("statements/91/2026-05/v4.pdf").write_bytes(PDF), {ORPHAN}),
        (
            temporary_key,
            {"every key is the deterministic one", "no row points at a temporary file", FILE, ORPHAN},
        ),
        (
            lambda w: w.temporary("statements+92+2026-05+v3.pdf.1.aa"),
            {"no temporary file of a finished statement is left"},
        ),
    ],
)
def test_each_thing_that_is_wrong_is_seen(
    world: World, breaks: Callable[[World], object], claims: set[str]
) -> None:
    breaks(world)
    assert world.failing() == claims


def test_too_few_jobs_or_recoveries_are_seen(world: World) -> None:
    rows = verify.Rows(world.jobs, world.attempts, world.statements, world.requests, world.wake_ups)
    assert verify.judge(rows, world.folder, jobs=2, recovered=1).failed == 0
    assert verify.judge(rows, world.folder, jobs=3, recovered=1).failed == 1
    assert verify.judge(rows, world.folder, jobs=2, recovered=2).failed == 1
    nothing = replace(rows, jobs=[], attempts=[], statements=[], requests=[])
    assert verify.judge(nothing, world.folder / "empty").failed == 1


def test_a_database_that_cannot_be_read_is_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BELLWIRE_DATABASE_URL", raising=False)
    assert verify.main([]) == 2
    assert verify.main(["--database-url", "postgresql://nobody@127.0.0.1:1/none"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line[:7] for line in printed.err.splitlines()[:2]] == ["verify:", "verify:"]
