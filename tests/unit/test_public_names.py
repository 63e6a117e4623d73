"""The public names: what each module exports, sorted, is what the page documents, no more and no less."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
MODULES = ["bellwire", "bellwire.alembic", "bellwire.consumer", "bellwire.django", "bellwire.testing"]


def documented(module: str) -> list[str]:
    section = re.search(rf"^## `{re.escape(module)}`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    table = re.search(r"^\| name \| what \|\n\|---\|---\|\n((?:\|.*\n)+)", section[1], re.MULTILINE)
    assert table is not None
    return re.findall(r"^\| `(\w+)` \|", table[1], re.MULTILINE)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_exports_what_the_page_documents(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert names == sorted(names)
    assert documented(module) == names


@pytest.mark.parametrize("module", MODULES)
def test_every_exported_name_is_there(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []


@pytest.mark.parametrize(
    ("module", "absent", "mend"),
    [
        ("bellwire.consumer", "structlog", "pip install 'bellwire[consumer]'"),
        ("bellwire.testing", "structlog", "pip install 'bellwire[testing]'"),
        ("bellwire.django", "django", "pip install 'django'"),
    ],
)
def test_a_missing_extra_is_named(module: str, absent: str, mend: str) -> None:
    program = (
        "import importlib, sys\n"
        f"sys.modules[{absent!r}] = None\n"
        f"try: importlib.import_module({module!r})\n"
        "except ImportError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"{module} needs {absent}: {mend}"


def test_the_plain_import_pulls_in_no_driver_and_no_extra() -> None:
    program = (
        "import bellwire, sys; print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert not loaded & {
        "psycopg",
        "psycopg2",
        "asyncpg",
        "sqlalchemy",
        "django",
        "structlog",
        "typer",
        "alembic",
    }
