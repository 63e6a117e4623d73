"""What a user gets from `pip install bellwire`: the wheel alone, where nobody has ever seen this clone.

The editable install hides what a wheel forgets (SQL files, types) and what the plain install lacks (every
extra), so only a fresh environment can tell.
"""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "bellwire",
    "bellwire_console",
    "bellwire_consumer",
    "bellwire_outbox",
    "bellwire_relay",
    "bellwire_runtime",
    "bellwire_schema",
    "bellwire_testkit",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    built = run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        made,
        ROOT,
        cwd=made,
    )
    assert built.returncode == 0, built.stderr
    (found,) = made.glob("bellwire-*.whl")
    return found


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel and no extra."""
    home = tmp_path_factory.mktemp("plain")
    venv.create(home / "env", with_pip=True)
    python = home / "env" / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "--quiet", wheel, cwd=home)
    assert installed.returncode == 0, installed.stderr
    return python


def test_the_wheel_holds_every_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    assert [package for package in PACKAGES if f"{package}/py.typed" not in names] == []


def test_the_wheel_holds_every_file_that_is_no_module(wheel: Path) -> None:
    """SQL and migrations are read at run time: a forgotten one is found by a user, not by an import."""
    names = set(zipfile.ZipFile(wheel).namelist())
    schema = ROOT / "schema"
    needed = {
        str(path.relative_to(schema))
        for path in (schema / "bellwire_schema").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sorted(needed - names) == []


def test_the_plain_install_submits(plain: Path) -> None:
    code = (
        "from bellwire import Job, JobConfig, submit, submit_many; import bellwire; print(bellwire.__file__)"
    )
    done = run(plain, "-W", "error", "-c", code, cwd=plain.parent)
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout


@pytest.mark.parametrize(
    "module", ["typer", "rich", "structlog", "opentelemetry", "fastapi", "psycopg_binary"]
)
def test_the_plain_install_is_plain(plain: Path, module: str) -> None:
    assert run(plain, "-c", f"import {module}", cwd=plain.parent).returncode == 1


@pytest.mark.parametrize(("module", "extra"), [("consumer", "consumer"), ("testing", "testing")])
def test_a_missing_extra_is_named(plain: Path, module: str, extra: str) -> None:
    done = run(plain, "-c", f"import bellwire.{module}", cwd=plain.parent)
    assert done.returncode == 1
    assert f"bellwire[{extra}]" in done.stderr.splitlines()[-1]


def test_the_command_names_its_extra(plain: Path) -> None:
    done = run(plain.parent / "bellwire", "--help", cwd=plain.parent)
    assert done.returncode not in (0, -1)
    assert "Traceback" not in done.stderr
    assert "bellwire[cli]" in done.stderr
