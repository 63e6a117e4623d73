"""The table of edges, the CHECKs of the tables, the picture on the page and the files of SQL say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bellwire_schema import statements, states, transitions
from bellwire_schema.states import EDGES, Edge, Move

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/states.md").read_text("utf-8")
SQL = ROOT / "schema/bellwire_schema/sql"
TABLES = (ROOT / "schema/bellwire_schema/migrations/0001_tables.sql").read_text("utf-8")
PICTURE = re.findall(r"^    (\S+) --> (\S+) : (\w+)$", PAGE, re.MULTILINE)


def listed(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"'(\w+)'", text))


def check_of(name: str) -> str:
    """What the DDL's named CHECK allows."""
    found = re.search(rf"CONSTRAINT {name}\s+CHECK \((.+?)\)\)?,?\n", TABLES, re.DOTALL)
    assert found, name
    return found[1]


def by_name(each: Edge) -> str:
    return each.name


def test_states_are_those_of_the_ddl() -> None:
    assert listed(check_of("job_state_ck")) == states.STATES
    assert listed(check_of("attempt_outcome_ck")) == states.OUTCOMES
    assert listed(check_of("job_unique_until_ck")) == states.UNIQUE_UNTIL


def test_terminal_states_are_those_that_have_a_finish() -> None:
    assert listed(check_of("job_finished_ck")) == states.TERMINAL
    assert {*states.LIVE, *states.TERMINAL} == set(states.STATES)


def test_the_picture_shows_every_move_and_no_other() -> None:
    def shown(state: str | None) -> str:
        return "[*]" if state is None else state

    drawn = {(source, target, name) for source, target, name in PICTURE}
    assert drawn == {(shown(m.source), shown(m.target), each.name) for each in EDGES for m in each.moves}
    assert len(PICTURE) == len(drawn)


def test_the_page_names_every_state() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.partition("```mermaid")[0], re.MULTILINE)
    assert tuple(rows) == states.STATES


def test_the_page_lists_every_edge_in_order() -> None:
    section = PAGE.partition("## The edges")[2].partition("**Lease and token.**")[0]
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in section.splitlines()[4:]
        if line
    ]
    assert [row[0] for row in rows] == [each.name for each in EDGES]
    for row, each in zip(rows, EDGES, strict=True):
        _, sources, targets, writers, guard = row
        assert set(sources.split(", ")) == {f"`{m.source}`" if m.source else "–" for m in each.moves}
        assert set(targets.split(", ")) == {f"`{m.target}`" if m.target else "–" for m in each.moves}
        assert tuple(writers.split(", ")) == each.written_by
        assert guard == each.guard


@pytest.mark.parametrize("each", EDGES, ids=by_name)
def test_every_edge_has_a_file_that_makes_its_function(each: Edge) -> None:
    text = (SQL / f"{each.name}.sql").read_text("utf-8")
    assert f"CREATE OR REPLACE FUNCTION bellwire.{each.name}(" in text


@pytest.mark.parametrize("each", EDGES, ids=by_name)
def test_every_edge_has_a_function_and_a_text_of_its_name(each: Edge) -> None:
    assert each.name in transitions.__all__
    assert callable(getattr(transitions, each.name))
    called = {"submit": "try_submit_many"}.get(each.name, each.name)
    assert f"bellwire.{called}(" in getattr(statements, each.name.upper())


def test_every_parameter_of_every_text_is_cast() -> None:
    """A parameter without a type is guessed from its values, and a guess can change from call to call."""
    texts = {
        name: text for name, text in vars(statements).items() if name.isupper() and isinstance(text, str)
    }
    assert len(texts) > 30
    for name, text in texts.items():
        assert text.count("%s") == len(re.findall(r"%s::\w+", text)), name


def test_no_state_is_written_outside_the_edges() -> None:
    """Only the files of edges, and the shared parts they call, write a job's row (a checkpoint's too)."""
    change = re.compile(r"(UPDATE|INSERT INTO|DELETE FROM) (bellwire\.)?job\b")
    writers = {path.stem for path in SQL.glob("*.sql") if change.search(path.read_text("utf-8"))}
    assert writers <= {each.name for each in EDGES} | {"_settle", "_submit", "complete"}
    for folder in ("outbox", "runtime", "relay", "consumer", "console", "bellwire"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not change.search(path.read_text("utf-8")), path


def test_the_readme_draws_nothing_else() -> None:
    """Its smaller picture leaves arrows out, and invents none."""
    readme = (ROOT / "README.md").read_text("utf-8")
    arrows = re.findall(r"^    (\S+) --> (\S+): (.+)$", readme, re.MULTILINE)
    assert arrows
    every = {(source, target, name) for source, target, name in PICTURE}
    for source, target, names in arrows:
        for name in names.split(", "):
            assert (source, target, name.split()[0]) in every


def test_the_table_is_a_machine() -> None:
    moves = [move for each in EDGES for move in each.moves]
    assert {m.source for m in moves if m.target == "running"} == {"ready", "running"}
    assert not [m for m in moves if m.source == "succeeded" and m.target is not None], "success never reopens"
    assert {m.target for m in moves if m.source is None} == {"ready", "scheduled"}
    assert {m.source for m in moves if m.target is None} == set(states.TERMINAL)
    for state in states.STATES:
        assert any(m.target == state for m in moves), f"nothing leads to {state}"
        assert any(m.source == state for m in moves), f"nothing leads out of {state}"


def test_an_edge_is_found_by_its_name() -> None:
    assert states.edge("claim").moves == (Move("ready", "running"),)
    with pytest.raises(KeyError):
        states.edge("admit")
