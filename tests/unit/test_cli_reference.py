"""docs/reference/cli.md and `--help` speak of the same commands, options and exit codes."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bellwire_console.cli.commands import application
from bellwire_console.cli.exits import Exit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")


def commands(group: Any, path: str = "bellwire") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(application))
SECTIONS = {
    re.sub(r" [\[A-Z].*$", "", title): body
    for title, body in re.findall(r"^## `(bellwire [^`]*)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


def test_every_command_has_its_section() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_on_the_page_and_exists(name: str) -> None:
    options = {
        opt for parameter in COMMANDS[name].params for opt in parameter.opts if opt.startswith("--")
    } - {"--help"}
    documented = set(re.findall(r"^\| `(--[a-z-]+)[ `]", SECTIONS[name], re.MULTILINE))
    assert documented == options


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.opts[0].startswith("--"):
            assert parameter.help, parameter.name


def test_arguments_are_in_the_titles() -> None:
    for name, command in COMMANDS.items():
        title = next(t for t in re.findall(r"^## `([^`]+)`$", PAGE, re.MULTILINE) if t.startswith(name))
        for parameter in command.params:
            if not parameter.opts[0].startswith("--"):
                assert parameter.metavar in title, (name, parameter.metavar)


def test_exit_codes() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert documented == {int(code) for code in Exit}


def test_json_stands_beside_every_table() -> None:
    tables = {"apply", "submit", "jobs list", "jobs show", "jobs cancel", "jobs redrive", "explain", "doctor"}
    for name, command in COMMANDS.items():
        has = any("--json" in parameter.opts for parameter in command.params)
        assert has == (name.removeprefix("bellwire ") in tables), name


def test_help_imports_nothing_heavy() -> None:
    """`bellwire --help` answers at once: what takes long to import waits for the command that needs it."""
    program = (
        "import sys; from bellwire_console.cli.run import run; run(['--help']);"
        "print([m for m in ('sqlalchemy', 'psycopg', 'alembic', 'pydantic', 'structlog', 'asyncio')"
        " if m in sys.modules], file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == "[]\n"
    assert "doctor" in ended.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_flag_is_not_said_to_take_a_value(name: str) -> None:
    flags = [p for p in COMMANDS[name].params if getattr(p, "is_flag", False) and p.opts != ["--help"]]
    assert {flag.name: flag.metavar for flag in flags} == {flag.name: "" for flag in flags}
