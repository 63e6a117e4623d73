"""What docs/how-to/operate.md tells people to type exists."""

import re
from pathlib import Path
from typing import Any

import pytest

from bellwire_console.cli import commands

APPLICATION: Any = commands.application
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text("utf-8")
TYPED = sorted(set(re.findall(r"\bbellwire ((?:[a-z]+|--[a-z])[^`\n#]*)", PAGE)))


def resolve(words: list[str]) -> Any:
    command = APPLICATION
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    return command


@pytest.mark.parametrize("line", [line for line in TYPED if line.split()[0] in APPLICATION.commands])
def test_commands_and_options_exist(line: str) -> None:
    words = line.split()
    command = resolve(words)
    options = {opt for parameter in command.params for opt in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_something_was_looked_at() -> None:
    assert len([line for line in TYPED if line.split()[0] in APPLICATION.commands]) > 8


def test_roles_are_those_that_migrations_make() -> None:
    roles = (ROOT / "schema" / "bellwire_schema" / "migrations" / "roles.sql").read_text("utf-8")
    made = set(re.findall(r"'(bellwire_[a-z]+)'", roles))
    assert set(re.findall(r"^\| `(bellwire_[a-z]+)` \|", PAGE, re.MULTILINE)) == made


def test_settings_exist() -> None:
    settings = (ROOT / "runtime" / "bellwire_runtime" / "settings.py").read_text("utf-8")
    for name in set(re.findall(r"BELLWIRE_([A-Z_]+)", PAGE)):
        assert re.search(rf"^    {name.lower()}: ", settings, re.MULTILINE), name


def test_linked_pages_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / "how-to" / link).exists(), link
