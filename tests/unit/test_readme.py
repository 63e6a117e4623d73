"""The README tells only what is there: its code runs, its commands exist, its picture is true."""

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup

from bellwire_console.cli.commands import application
from bellwire_schema.states import EDGES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


@pytest.fixture
def shop() -> Iterator[None]:
    """The package that the blocks belong to; each block names its file, as in the reader's own project."""
    made = ["shop"]
    sys.modules["shop"] = types.ModuleType("shop")
    try:
        yield
    finally:
        made += [name for name in sys.modules if name.startswith("shop.")]
        for name in made:
            sys.modules.pop(name, None)


@pytest.mark.usefixtures("shop")
def test_the_code_runs() -> None:
    names = []
    for text in blocks("python"):
        path = re.match(r"# (\S+)\.py", text)
        assert path, "a code block begins with its file's name"
        name = path[1].replace("/", ".")
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(text, f"README.md:{path[1]}.py", "exec"), module.__dict__)
        names.append(name)
    assert names == ["shop.jobs", "shop.web", "shop.work"]


def test_the_make_targets_exist() -> None:
    told = set(re.findall(r"`make (\w+)`|^\$ make (\w+)", README, re.MULTILINE))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {first or second for first, second in told} - targets == set()


def test_the_commands_exist() -> None:
    """The whole line is parsed by the command itself, so that a renamed option fails too."""
    told = [
        line.split("#")[0].removeprefix("$ bellwire ").split()
        for text in blocks("console")
        for line in text.splitlines()
        if line.startswith("$ bellwire ")
    ]
    told += [words.split()[1:] for words in re.findall(r"`(bellwire [a-z][^`]*)`", README)]
    assert len(told) > 8
    for line in told:
        command, words = application, line
        while isinstance(command, TyperGroup):
            assert words[0] in command.commands, line
            command, words = command.commands[words[0]], words[1:]
        if words or not any(
            param.required for param in command.params
        ):  # else the name alone, in running text
            command.make_context("bellwire", list(words))


def test_the_picture_is_true_and_misses_no_way() -> None:
    """It may leave out a name where two arrows run beside each other, never a pair of states."""
    (picture,) = blocks("mermaid")
    drawn = {
        (None if source == "[*]" else source, None if target == "[*]" else target, name)
        for source, target, names in re.findall(r"^ +(\S+) --> (\S+): (.+)$", picture, re.MULTILINE)
        for name in names.split(", ")
    }
    real = {(move.source, move.target, edge.name) for edge in EDGES for move in edge.moves}
    assert drawn - real == set()
    ways = {(source, target) for source, target, _ in real if source != target}
    assert ways - {(source, target) for source, target, _ in drawn} == set()


def test_the_page_stays_short() -> None:
    assert len(README.splitlines()) < 200
