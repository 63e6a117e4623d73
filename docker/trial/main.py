"""The whole try, and its table: each claim that the images make, what was measured, and whether it holds."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trial import images
from trial.engine import Engine, Failed, install
from trial.system import System, mounts, networks, published

SIZE_MB = 120
READY_S = 15
DAEMONS = ("relay", "consumer-1", "consumer-2")
OURS = ("cli", "relay", "consumer")

# Run inside an image. As its own user: who that is, and what it may change. As root, who sees everything:
# compilers, and what pip or a build left behind.
_LOOK_AS_USER = """
import os
writable = [d for d in ("/opt/bellwire", "/opt/bellwire/bin", "/app") if os.access(d, os.W_OK)]
print(os.getuid(), ",".join(writable) or "none")
"""
_LOOK_AS_ROOT = """
import os, re
tools = re.compile(r"(.*-)?(gcc|g\\+\\+|clang|cc|cc1|c\\+\\+|make|ld)(-[0-9.]+)?")
left = re.compile(r"/(build|tmp/pip|etc/pip\\.conf|run/secrets.*|.*/cache/pip|.*/\\.cache/pip)")
found, caches = [], []
for folder, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if os.path.join(folder, f) not in ("/proc", "/sys", "/dev")]
    found += [f for f in files if tools.fullmatch(f) and os.access(os.path.join(folder, f), os.X_OK)]
    caches += [p for p in (os.path.join(folder, f) for f in folders + files) if left.fullmatch(p)]
print(",".join(found) or "none", ",".join(caches) or "none")
"""


@dataclass(frozen=True)
class Row:
    what: str
    measured: str
    bound: str
    holds: bool


class Table:
    """What is claimed, measured and allowed, a line each."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def add(self, what: str, measured: str, *, bound: str = "", holds: bool) -> None:
        self._rows.append(Row(what, measured, bound, holds))

    def show(self) -> int:
        """Print it; answers how many claims do not hold."""
        what = max(len(row.what) for row in self._rows)
        measured = max(len(row.measured) for row in self._rows)
        print()
        for row in self._rows:
            verdict = "ok" if row.holds else "WRONG"
            print(f"  {verdict:5}  {row.what:{what}}  {row.measured:>{measured}}  {row.bound}".rstrip())
        wrong = sum(not row.holds for row in self._rows)
        print(f"\n{wrong} of {len(self._rows)} claims do not hold" if wrong else "\nall claims hold")
        return wrong


class Steps:
    """What is being done, with the time it took: a silent minute looks like a hang."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:6.1f} s  {text}", flush=True)


def look_at_images(engine: Engine, table: Table) -> None:
    base = int(engine.docker("image", "inspect", "--format", "{{.Size}}", images.BASE))
    for target in OURS:
        image = images.image_of(target)
        size = int(engine.docker("image", "inspect", "--format", "{{.Size}}", image)) - base
        above = f"{size / 1e6:.1f} MB"
        table.add(f"{target}: above the base", above, bound=f"< {SIZE_MB} MB", holds=size < SIZE_MB * 1e6)
        look = ("run", "--rm", "--network=none", "--entrypoint", "python")
        user, writable = engine.docker(*look, image, "-c", _LOOK_AS_USER).split()
        tools, left = engine.docker(*look, "--user=0", image, "-c", _LOOK_AS_ROOT).split()
        table.add(f"{target}: runs as user", user, bound="not 0", holds=user != "0")
        table.add(f"{target}: may write to its own code", writable, bound="none", holds=writable == "none")
        table.add(f"{target}: compilers", tools, bound="none", holds=tools == "none")
        table.add(f"{target}: left by pip and the build", left, bound="none", holds=left == "none")


def try_system(engine: Engine, table: Table, steps: Steps, *, statements: int) -> None:
    begun = time.monotonic()
    with System(engine, deadline_s=300) as system:
        system.wait_healthy(*DAEMONS, "web")
        table.add("everything is healthy", f"after {time.monotonic() - begun:.1f} s", holds=True)
        system.wait_hearing(*DAEMONS)
        addresses = published(engine)
        local = [address for address in addresses if address.startswith("127.0.0.1:")]
        table.add(
            "published on the host",
            ", ".join(addresses),
            bound="one, local",
            holds=len(addresses) == len(local) == 1,
        )
        steps.say(f"everything is healthy; asking for {statements} statements")
        work = system.ask_for(statements)
        done = f"{work.made} in {work.seconds:.1f} s"
        table.add("statements asked for and made", done, bound=str(statements), holds=work.made == statements)
        claims = system.claims()
        table.add(
            "woken by", ", ".join(f"{name} {count}" for name, count in claims.items()), holds=bool(claims)
        )
        steps.say("stopping RabbitMQ, and asking for more")
        system.compose("stop", "rabbitmq")
        more = system.ask_for(statements // 4)
        done = f"{more.made} in {more.seconds:.1f} s"
        table.add(
            "made without RabbitMQ", done, bound=str(statements // 4), holds=more.made == statements // 4
        )
        system.compose("start", "rabbitmq")
        for service in DAEMONS:
            steps.say(f"stopping and starting {service}")
            again = system.restart(service)
            ended = f"code {again.code} in {again.stop_s:.1f} s"
            table.add(f"{service}: ended on SIGTERM", ended, bound="code 0", holds=again.code == 0)
            ready = f"{again.ready_s:.1f} s (processor {again.ready_cpu_s:.1f} s)"
            holds = again.ready_s < READY_S
            table.add(f"{service}: /ready after its start", ready, bound=f"< {READY_S} s", holds=holds)
        verdict = system.verdict()
        table.add("rows and files, by verify.py", verdict, holds=verdict.startswith("all "))
        steps.say("ending the system")


def try_all(folder: Path, *, statements: int, only_build: bool) -> int:
    steps, table, networks_before = Steps(), Table(), networks()
    installed = install()
    steps.say(f"installed {', '.join(installed)}" if installed else "everything needed is installed")
    with Engine(folder) as engine:
        steps.say(f"an engine of its own runs ({engine.storage})")
        images.make_base(engine, folder)
        steps.say("the base is made, from Debian's packages")
        for target in images.TARGETS:
            images.build(engine, target)
            steps.say(f"built {images.image_of(target)}")
        look_at_images(engine, table)
        table.add("an image of a user's own", (said := images.try_own(engine)), holds=said == images.OWN_SAID)
        steps.say("built an image as the how-to page tells users to")
        if not only_build:
            images.build_servers(engine)
            steps.say("built stand-ins for PostgreSQL and RabbitMQ")
            try_system(engine, table, steps, statements=statements)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    table.add("load of this machine (1, 5, 15 min)", load, holds=True)
    left = sorted(mounts(folder) | (networks() - networks_before))
    table.add("left on the host", ", ".join(left) or "nothing", bound="nothing", holds=not left)
    steps.say("the engine has ended")
    return table.show()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="docker/try", description="Build and run the composed system for real."
    )
    parser.add_argument("--statements", type=int, default=100, help="how many to ask for")
    parser.add_argument(
        "--only-build", action="store_true", help="build and look at the images; start nothing"
    )
    parser.add_argument(
        "--folder", type=Path, help="keep the engine's data here, so that the next run is quicker"
    )
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = given.folder.resolve() if given.folder else Path(tempfile.mkdtemp(prefix="bellwire-try-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return 1 if try_all(folder, statements=given.statements, only_build=given.only_build) else 0
    except Failed as error:
        print(f"docker/try: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was started has been ended", file=sys.stderr)
        return 130
    finally:
        if given.folder is None and not mounts(folder):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
