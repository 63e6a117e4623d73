"""mypy strict infers every type of the public page, and refuses every misuse that is listed for it."""

import re
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MARK = re.compile(r"# E: ([a-z-]+)$")
REPORT = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*?)  \[(?P<code>[a-z-]+)\]$")


def checked(monkeypatch: pytest.MonkeyPatch, name: str) -> dict[tuple[int, str], str]:
    monkeypatch.chdir(ROOT)
    report, crash, _ = api.run(["--hide-error-context", "--no-pretty", str(HERE.relative_to(ROOT) / name)])
    assert not crash, crash
    found = {}
    for line in report.splitlines():
        match = REPORT.match(line)
        if match and Path(match["file"]).name == name:
            found[int(match["line"]), match["code"]] = match["text"]
        else:
            assert ": error: " not in line, line
    return found


@pytest.mark.timeout(600)
def test_the_public_page_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch, "accepted.py") == {}


@pytest.mark.timeout(600)
def test_every_misuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {
        (number, match[1])
        for number, line in enumerate((HERE / "refused.py").read_text().splitlines(), 1)
        if (match := MARK.search(line))
    }
    found = checked(monkeypatch, "refused.py")
    assert {place: text for place, text in found.items() if place not in expected} == {}
    assert expected - set(found) == set()
