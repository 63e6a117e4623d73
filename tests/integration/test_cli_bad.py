"""A table of things done wrong: each ends with its exit code and one line on stderr that names the mend."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from bellwire_console.cli.run import run
from bellwire_testkit.databases import Database

APPS = {
    "shop": """
from bellwire_consumer import App, Attempt
from bellwire_outbox import Job, JobConfig
class Greet(Job):
    job_config = JobConfig(kind="greet", version=1, key=None)
    name: str
app = App("shop")
@app.handler(Greet)
def greet(job: Greet, attempt: Attempt) -> None: ...
number = 3
""",
    "other": """
from bellwire_consumer import App, Attempt
from shop import Greet
app = App("other")
@app.handler(Greet)
def greet(job: Greet, attempt: Attempt) -> None: ...
""",
    "broken": "import shop\nraise RuntimeError('no such\\nweather')\n",
    "exits": "import sys\nsys.exit(0)\n",
    "leaves": "class Gone(BaseException): ...\nraise Gone('postgresql://me:hidden@there/shop')\n",
    "lacking": "import a_module_that_is_not_there\n",
    "misspelt": "def f(:\n",
    "empty": "from bellwire_consumer import App\napp = App('empty')\n",
    "ahead": """
from datetime import timedelta
from bellwire_consumer import App, Attempt, Limits, Rate
from shop import Greet
app = App("ahead")
@app.handler(Greet, limits=Limits(rate=Rate(100, timedelta(seconds=1))))
def greet(job: Greet, attempt: Attempt) -> None: ...
""",
    "contrary": """
from bellwire_outbox import Job, JobConfig
class Bad(Job):
    job_config = JobConfig(kind="Not A Kind", version=1, key=None)
""",
}
JOB = "01890a5d-ac96-774b-bcce-b302099a8057"


@dataclass(frozen=True)
class Bad:
    """One bad invocation. `says` must be found in the one line."""

    name: str
    arguments: str
    code: int
    says: str
    address: str | None = "{url}"
    extra: list[str] = field(default_factory=list)


TABLE = [
    Bad("no address", "doctor", 2, "set BELLWIRE_DATABASE_URL", address=None),
    Bad("malformed address", "doctor", 2, "postgresql://user:password@host", address="postgres//nonsense"),
    Bad("address with a bad port", "doctor", 2, "port", address="postgresql://h:notaport/x"),
    Bad("port closed", "doctor", 3, "is it running", address="postgresql://u:geheim@127.0.0.1:{closed}/x"),
    Bad("port closed, relay", "relay", 3, "server run", address="postgresql://u:geheim@127.0.0.1:{closed}/x"),
    Bad("unknown host", "doctor", 3, "is the address right", address="postgresql://no.such.host.invalid/x"),
    Bad("wrong password", "doctor", 2, "check user and password", address="{locked}"),
    Bad("wrong password, relay", "relay", 2, "BELLWIRE_DATABASE_URL", address="{locked}"),
    Bad("database missing", "doctor", 2, "createdb", address="{server}/no_such_database"),
    Bad("role missing", "doctor", 2, "create the role", address="{no_role}"),
    Bad("role without rights", "doctor", 4, "GRANT bellwire_viewer TO", address="{application}"),
    Bad("role without rights, migrate", "migrate", 4, "owner of the schema.*CREATEROLE", address="{nobody}"),
    Bad(
        "role without rights, submit",
        "submit greet --no-key --payload {{}}",
        4,
        r"connect as a member of bellwire_operator \(GRANT bellwire_operator TO",
        address="{nobody}",
    ),
    Bad("role without rights, relay", "relay", 4, "log in as bellwire_relay", address="{nobody}"),
    Bad(
        "role without rights, consumer",
        "consumer --app shop:app",
        4,
        "log in as .*bellwire_consumer",
        address="{nobody}",
    ),
    Bad("not migrated", "doctor", 4, "bellwire migrate", address="{server}/postgres"),
    Bad("not migrated, check", "migrate --check", 4, "bellwire migrate", address="{server}/postgres"),
    Bad("not migrated, relay", "relay", 4, "bellwire migrate", address="{server}/postgres"),
    Bad(
        "not migrated, consumer",
        "consumer --app shop:app",
        4,
        "bellwire migrate",
        address="{server}/postgres",
    ),
    Bad("two questions at once", "migrate --sql --check", 2, "one of them"),
    Bad("unknown command", "frobnicate", 2, "--help"),
    Bad("unknown command of jobs", "jobs frobnicate", 2, "--help"),
    Bad("unknown option", "doctor --frobnicate", 2, "--help"),
    Bad("argument missing", "explain", 2, "TARGET"),
    Bad("option missing", "submit greet", 2, "--payload"),
    Bad("app without attribute", "apply --app shop", 2, "module:attribute"),
    Bad("app not importable", "apply --app no_such_module:app", 5, "no module named no_such_module"),
    Bad("app's import lacks a module", "apply --app lacking:app", 5, r"lacking\.py:1"),
    Bad("app's attribute missing", "apply --app shop:application", 5, "shop:app"),
    Bad("app is a Job", "apply --app shop:Greet", 5, "is a Job class.*name the module's App: shop:app"),
    Bad("app is no App", "apply --app shop:number", 5, r"int, not a bellwire\.consumer\.App"),
    Bad("app raises at import", "consumer --app broken:app", 5, r"broken\.py:2: RuntimeError: no such"),
    Bad("app exits at import", "apply --app exits:app --check", 5, r"exits\.py:2: SystemExit: 0"),
    Bad(
        "app raises past Exception", "consumer --app leaves:app", 5, r"leaves\.py:2: Gone: .*me:\*\*\*@there"
    ),
    Bad("app's syntax", "apply --app misspelt:app", 5, "misspelt"),
    Bad("app without handlers", "apply --app empty:app", 5, "no handler"),
    Bad("a job class that cannot work", "apply --app contrary:app", 5, r"contrary\.py:4: .*must match"),
    Bad("what is not built yet", "apply --app ahead:app", 5, "not built yet"),
    Bad("what is not built yet, consumer", "consumer --app ahead:app", 5, "not built yet"),
    Bad("a kind of another app", "apply --app other:app", 1, "belongs to app shop"),
    Bad("slots below zero", "consumer --app shop:app --slots -1", 2, "--slots"),
    Bad("no slots", "consumer --app shop:app --slots 0", 2, "--slots"),
    Bad("slots, but no number", "consumer --app shop:app --slots many", 2, "--slots"),
    Bad("consumer of an unknown kind", "consumer --app shop:app greeet", 2, "it has: greet"),
    Bad("log format unknown", "relay --log-format xml", 2, "LOG_FORMAT"),
    Bad("health port in use", "relay --health-port {busy}", 2, "BELLWIRE_HEALTH_PORT"),
    Bad("health port too large", "relay --health-port 70000", 2, "--health-port"),
    Bad("unknown kind", "submit greeet --no-key", 2, "did you mean greet", extra=["--payload", "{}"]),
    Bad("no kind at all", "submit --no-key --payload {{}}", 2, "'' is no kind", extra=["--", ""]),
    Bad(
        "neither class nor key",
        "submit greet",
        2,
        "--app MODULE:ATTRIBUTE, or --key TEXT with --unique-until WHEN, or --no-key .*--tenant TEXT",
        extra=["--payload", "{}"],
    ),
    Bad(
        "a key and none",
        "submit greet --key a --unique-until pruned --no-key --payload {{}}",
        2,
        "contradict",
    ),
    Bad(
        "the class decides",
        "submit greet --app shop:app --no-key --payload {{}}",
        2,
        "the job's class decides --no-key",
    ),
    Bad("unknown version", "submit greet --no-key --version 9 --payload {{}}", 2, "version 9 of greet.*: 1;"),
    Bad("a far time", "submit greet --no-key --run-at 9999-01-01T00:00Z --payload {{}}", 2, "1 and 8000"),
    Bad("a long wait", "submit greet --no-key --run-in 400000d --payload {{}}", 2, "365000 days"),
    Bad(
        "unknown kind of an app",
        "submit greeet --app shop:app",
        2,
        "did you mean greet",
        extra=["--payload", "{}"],
    ),
    Bad("payload is no JSON", "submit greet", 2, "no JSON", extra=["--payload", "{name: 1}"]),
    Bad("payload is no object", "submit greet", 2, "JSON object", extra=["--payload", "[1]"]),
    Bad("payload holds NaN", "submit greet", 2, "NaN", extra=["--payload", '{"a": NaN}']),
    Bad("payload holds a NUL", "submit greet --no-key", 2, "NUL", extra=["--payload", '{"a": "\\u0000"}']),
    Bad("payload's file missing", "submit greet --payload @nowhere.json", 2, "cannot read nowhere.json"),
    Bad("payload too large", "submit greet --no-key --payload @large.json", 2, "limit is 65536"),
    Bad("payload refused by the class", "submit greet --app shop:app", 2, "name", extra=["--payload", "{}"]),
    Bad("key without an end", "submit greet --key a", 2, "--unique-until", extra=["--payload", "{}"]),
    Bad(
        "an end that is none",
        "submit greet --key a --unique-until x",
        2,
        "unique_until",
        extra=["--payload", "{}"],
    ),
    Bad(
        "a time without an offset",
        "submit greet --no-key --run-at 2026-05-01T03:00:00",
        2,
        "offset",
        extra=["--payload", "{}"],
    ),
    Bad(
        "a duration without a unit", "submit greet --no-key --run-in 10", 2, "10m", extra=["--payload", "{}"]
    ),
    Bad("malformed job id", "jobs show 42", 2, "looks like"),
    Bad("unknown job id", f"jobs show {JOB}", 1, "there is no job"),
    Bad("cancel an unknown job", f"jobs cancel {JOB} --reason test", 1, "there is no job"),
    Bad("cancel without a reason", f"jobs cancel {JOB}", 2, "--reason"),
    Bad("redrive an unknown job without a reason", f"jobs redrive {JOB}", 2, "--reason"),
    Bad("a state and another", "jobs list --state running --failed", 2, "contradict"),
    Bad(
        "list of an unknown kind",
        "jobs list --kind greeet",
        2,
        r"no kind is called greeet \(did you mean greet",
    ),
    Bad("unknown kind, grouped", "jobs list --group-by error --kind greeet", 2, "did you mean greet"),
    Bad("no command of jobs", "jobs", 2, r"'bellwire jobs --help'\.$"),
    Bad("no kind", "submit", 2, r"'bellwire submit --help'\.$"),
    Bad("unknown state", "jobs list --state done", 2, "succeeded"),
    Bad("grouped by something else", "jobs list --group-by tenant", 2, "by error"),
    Bad("no lines", "jobs list --limit 0", 2, r"'--limit': it must be greater than or equal to 1\. See"),
    Bad("explain nothing", "explain nothing_of_the_kind", 1, "nothing here is called"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("apps")
    for name, source in APPS.items():
        (made / f"{name}.py").write_text(source)
    (made / "large.json").write_text('{"text": "%s"}' % ("x" * 70_000))
    return made


@pytest.fixture
def places(database: Database) -> Iterator[dict[str, str]]:
    """What stands in braces in the table."""
    with socket.socket() as busy, socket.socket() as closed:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        closed.bind(("127.0.0.1", 0))
        server = database.url.rpartition("/")[0]
        yield {
            "url": database.url,
            "server": server,
            "application": database.url_as("bellwire_test_login"),
            "nobody": database.url_as("bellwire_test_nobody"),
            "no_role": database.url_as("no_such_role"),
            "locked": database.url_as("bellwire_test_locked").replace("@", ":geheim@", 1),
            # Bound, but nobody listens: nobody else can take the port meanwhile.
            "closed": str(closed.getsockname()[1]),
            "busy": str(busy.getsockname()[1]),
        }


@pytest.fixture
def roles(database: Database) -> Iterator[None]:
    """A login that needs a password, and one that may only what applications may."""
    with database.connect() as conn:
        for name in ("bellwire_test_locked", "bellwire_test_login", "bellwire_test_nobody"):
            conn.execute(f"DROP ROLE IF EXISTS {name}".encode())
            conn.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'another'".encode())
        conn.execute("GRANT bellwire_application TO bellwire_test_login")
        conn.execute("INSERT INTO bellwire.kind (name, app) VALUES ('greet', 'shop')")
        if not database.server.controllable:
            # Somebody else's server: its rules are not ours to change.
            yield
            conn.execute("DROP ROLE bellwire_test_locked, bellwire_test_login, bellwire_test_nobody")
            return
        rules = _hba(conn)
        _write_hba(conn, "host all bellwire_test_locked all scram-sha-256\n" + rules)
        yield
        _write_hba(conn, rules)
        conn.execute("DROP ROLE bellwire_test_locked, bellwire_test_login, bellwire_test_nobody")


def _hba(conn: psycopg.Connection[object]) -> str:
    row = conn.execute("SELECT pg_read_file(current_setting('hba_file'))").fetchone()
    assert isinstance(row, tuple)
    return str(row[0])


def _write_hba(conn: psycopg.Connection[object], text: str) -> None:
    conn.execute("CREATE TEMP TABLE IF NOT EXISTS hba (n serial, line text)")
    conn.execute("TRUNCATE hba")
    with conn.cursor() as cursor:
        cursor.executemany("INSERT INTO hba (line) VALUES (%s)", [(line,) for line in text.splitlines()])
    row = conn.execute("SELECT current_setting('hba_file')").fetchone()
    assert isinstance(row, tuple)
    conn.execute(f"COPY (SELECT line FROM hba ORDER BY n) TO '{row[0]}'".encode())
    conn.execute("SELECT pg_reload_conf()")


@pytest.fixture
def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the apps' folder, and their modules forgotten afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in APPS:
        sys.modules.pop(name, None)


def test_each_ends_with_its_code_and_one_line(
    database: Database,
    places: dict[str, str],
    roles: None,
    at_home: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One test for the table, so that roles are made once; all rows are tried before it fails.

    Daemons run in processes of their own, the other commands in this one: it is the same code.
    """
    assert len(TABLE) >= 20
    wrong = []
    for bad in TABLE:
        if bad.address == "{locked}" and not database.server.controllable:
            continue
        arguments = [*(part.format(**places) for part in bad.arguments.split()), *bad.extra]
        address = "" if bad.address is None else bad.address.format(**places)
        monkeypatch.setenv("BELLWIRE_DATABASE_URL", address)
        if arguments[0] in ("relay", "consumer"):
            code, stderr = _process(arguments)
        else:
            code = run(arguments)
            stderr = capfd.readouterr().err
        problem = _problem(bad, code, stderr)
        if problem:
            wrong.append(f"{bad.name} ({bad.arguments}): {problem}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_as_a_module_and_as_a_process(tmp_path: Path) -> None:
    """What runs as `bellwire` also runs as `python -m bellwire_console.cli`, warnings being errors."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "bellwire_console.cli", "frobnicate"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "bellwire: No such command 'frobnicate'. See 'bellwire --help'.\n"


def _process(arguments: list[str]) -> tuple[int, str]:
    env = {**os.environ, "BELLWIRE_STARTUP_TIMEOUT": "1s"}
    ended = subprocess.run(
        [sys.executable, "-m", "bellwire_console.cli", *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # Daemons log to stderr, too; a record is JSON where nobody sits at a terminal.
    return ended.returncode, "\n".join(line for line in ended.stderr.splitlines() if not line.startswith("{"))


def _problem(bad: Bad, code: int, stderr: str) -> str | None:
    lines = stderr.splitlines()
    if "Traceback" in stderr:
        return f"a traceback:\n{stderr}"
    if code != bad.code:
        return f"exit code {code}, not {bad.code}: {stderr}"
    if len(lines) != 1:
        return f"{len(lines)} lines on stderr: {stderr!r}"
    if not lines[0].startswith("bellwire: ") or not re.search(bad.says, lines[0]):
        return f"does not say {bad.says!r}: {lines[0]}"
    if "geheim" in stderr:
        return f"shows a password: {lines[0]}"
    return None
