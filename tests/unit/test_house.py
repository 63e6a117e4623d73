"""What the repository promises about itself as text: nothing of one machine, no giants, a lock that holds.

Reads the files that git knows, since what is not committed harms nobody.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
HARD_CAP = 600
# Written in pieces, so that this file passes its own test.
MACHINE_PATH = re.compile(
    r"/(?:" + "|".join(["work" + "/", "root" + "/", "home/" + r"\w", "tmp/" + r"bw\b"]) + ")"
)
INDEX_URL = re.compile(
    "|".join(
        [r"pypi\." + "org", "pythonhosted" + r"\.org", "registry" + r"\.npmjs", r"deb\.debian" + r"\.org"]
    )
    + "|--(?:extra-)?index"
    + "-url|--find"
    + "-links"
)


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    found = {}
    for path in tracked():
        try:
            found[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def lines_matching(texts: dict[Path, str], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_one_machine(texts: dict[Path, str]) -> None:
    assert lines_matching(texts, MACHINE_PATH) == []


def test_no_file_names_a_package_index(texts: dict[Path, str]) -> None:
    named = [line for line in lines_matching(texts, INDEX_URL) if not line.startswith("scripts/lock:")]
    assert named == []


def test_no_module_needs_a_split() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > HARD_CAP
    }
    assert long == {}


def test_every_locked_requirement_is_pinned_and_hashed() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8").strip())
    assert len(entries) > 20
    loose = [entry.splitlines()[0] for entry in entries if "==" not in entry or "--hash=sha256:" not in entry]
    assert loose == []


def test_every_decision_ends_in_when_to_revisit_it() -> None:
    decisions = tracked("docs/adr/[0-9]*.md")
    assert decisions
    heading = re.compile(r"^## (.+)$", re.MULTILINE)
    without = [
        path.name
        for path in decisions
        if heading.findall(path.read_text(encoding="utf-8"))[-1:] != ["Revisit"]
    ]
    assert without == []


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/adr/README.md").read_text(encoding="utf-8")
    assert [path.name for path in tracked("docs/adr/[0-9]*.md") if f"({path.name})" not in index] == []


def anchors(page: Path) -> set[str]:
    """As the page is shown: a heading in lower case, its punctuation dropped, its spaces hyphens."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = tracked("*.md")
    links = [
        (page, *link.partition("#")[::2])
        for page in pages
        for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 30
    broken = []
    for page, path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert broken == []


def test_every_package_ships_its_types() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [package for package in packages if not (ROOT / package / "py.typed").is_file()] == []


def test_every_layer_is_watched() -> None:
    """A package that import-linter does not know may import anything."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = {
        Path(package).name for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    }
    watched = project["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in watched["contracts"] if contract["type"] == "layers"]
    assert set(watched["root_packages"]) == shipped
    assert {name.strip() for layer in layers for name in layer.split("|")} == shipped
