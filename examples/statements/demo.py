"""`make demo`: hundreds of real statements by real processes, one of which is killed where it hurts most.

The kill is aimed, not hoped for: three attempts stand at doors (before drawing, between the temporary file
and its promotion, between the promotion and the commit), and only when all three are seen there is their
consumer killed. What comes of it is judged by verify.py, a separate program; its exit code is the demo's.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bellwire_testkit.servers import ServerMissing
from examples.statements import data, report
from examples.statements.asking import Answers, Clients, Order
from examples.statements.fleet import Died, Fleet, own_database, python, seconds_since, web_address
from examples.statements.ledger import Ledger
from examples.statements.load import create_tables, load, read
from examples.statements.pauses import Pauses, Point

APP = "examples.statements.work:app"
PERIOD = data.DEFAULT_PERIOD
DOORS: tuple[Point, ...] = ("before_render", "after_temporary", "after_promotion")
LONGEST_S = 300.0  # of the work itself; a run that stands still is a failure, not a wait
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What this run does."""

    requests: int
    accounts: int
    seed: int
    slots: int
    folder: Path
    keep: bool

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"


def order_of(ledgers: list[Ledger], *, requests: int) -> tuple[Order, dict[Point, int]]:
    """Who is asked for: the three that will stand at the doors first, then the flood, then everybody else.

    The doors are taken by three customers, so that no limit of one customer's keeps an attempt from its door.
    """
    chosen = ledgers[:requests]
    firsts = {ledger.customer: ledger.account_id for ledger in reversed(chosen)}
    doors = dict(zip(DOORS, firsts.values(), strict=False))
    flood = data.CUSTOMERS[0]
    rest = sorted(
        (ledger for ledger in chosen if ledger.account_id not in doors.values()),
        key=lambda ledger: ledger.customer != flood,
    )
    accounts = (*doors.values(), *(ledger.account_id for ledger in rest))
    return Order(accounts=accounts, repeated=accounts[::6], conflicting=accounts[1::40]), doors


class Demo:
    """One run, told step by step on the console."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._start = time.monotonic()
        self._answers = Answers()

    def run(self) -> int:
        plan = self._plan
        shutil.rmtree(plan.folder / "logs", ignore_errors=True)
        shutil.rmtree(plan.artifacts, ignore_errors=True)
        shutil.rmtree(plan.folder / "doors", ignore_errors=True)
        (plan.folder / "doors").mkdir(parents=True)
        ledger_csv = plan.folder / f"ledger-{plan.seed}-{plan.accounts}.csv"
        if not ledger_csv.exists():
            data.write(ledger_csv, seed=plan.seed, accounts=plan.accounts)
        with own_database(os.environ.get("BELLWIRE_DATABASE_URL")) as address:
            env = {"BELLWIRE_DATABASE_URL": address, "STATEMENTS_ARTIFACTS": str(plan.artifacts)}
            with Fleet(logs=plan.folder / "logs", env=env) as fleet:
                return self._with(fleet, address, ledger_csv)

    def _with(self, fleet: Fleet, address: str, ledger_csv: Path) -> int:
        plan = self._plan
        ledgers = list(read(ledger_csv, period=PERIOD))
        order, doors = order_of(ledgers, requests=plan.requests)
        pauses = Pauses(
            doors=frozenset((point, account) for point, account in doors.items()),
            folder=plan.folder / "doors",
        )
        self._prepare(fleet, address, ledger_csv)
        web = fleet.start("web", *python("uvicorn", "examples.statements.web:web", "--port", "0"))
        fleet.start("relay", "bellwire", "relay")
        self._start_consumer(fleet, "consumer-1", pauses)
        watch = report.Watch(address)
        try:
            killed_with = asyncio.run(self._work(fleet, watch, order, pauses, web_address(web)))
            codes = fleet.stop()
            self._say(f"stopped: {', '.join(f'{name} {code}' for name, code in sorted(codes.items()))}")
            report.show_waits(self._console, watch.waits())
            report.show(
                self._console,
                watch.counts(plan.artifacts),
                duplicates=self._answers.duplicates,
                conflicts=self._answers.conflicts,
                killed_with=killed_with,
                seconds=time.monotonic() - self._start,
            )
        finally:
            watch.close()
        jobs = str(len(order.accounts))
        code, text = fleet.verdict(
            *python("examples.statements.verify", "--jobs", jobs, "--recovered", str(len(DOORS)))
        )
        self._console.print("The verdict, by a script that imports nothing of ours:", text, sep="\n", end="")
        self._console.print(f"The statements are in {plan.artifacts}")
        if plan.keep:
            self._console.input(f"The database is {address}. Enter ends it: ")
        return code or self._trouble(codes)

    def _prepare(self, fleet: Fleet, address: str, ledger_csv: Path) -> None:
        fleet.run("migrate", "bellwire", "migrate")
        create_tables(address)
        loaded = load(address, ledger_csv, period=PERIOD)
        fleet.run("apply", "bellwire", "apply", "--app", APP)
        self._say(
            f"loaded {loaded.accounts:,} accounts with {loaded.lines:,} bookings; schema and policy stand"
        )

    def _start_consumer(self, fleet: Fleet, name: str, pauses: Pauses | None = None) -> None:
        slots = str(self._plan.slots)
        process = fleet.start(
            name,
            "bellwire",
            "consumer",
            "--app",
            APP,
            "--slots",
            slots,
            env=pauses.environment() if pauses else None,
        )
        self._say(f"{name} runs as process {process.pid}")

    async def _work(
        self, fleet: Fleet, watch: report.Watch, order: Order, pauses: Pauses, address: str
    ) -> int:
        total = len(order.accounts)
        bar = Progress(
            TextColumn("statements"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        async with Clients(address, period=PERIOD, answers=self._answers) as clients:
            await clients.ask(order.accounts[0])
            self._say(f"the first job was submitted {seconds_since(self._start)} after the start")
            with bar:
                task = bar.add_task("statements", total=total)

                def succeeded() -> int:
                    done = watch.states().get("succeeded", 0)
                    bar.update(task, completed=done)
                    return done

                placing = asyncio.create_task(clients.place(order))
                await self._until(
                    fleet,
                    lambda: succeeded() >= total // 8 and pauses.standing() == pauses.doors,
                    meanwhile=placing,
                )
                killed_with = watch.running()
                fleet.kill("consumer-1")
                self._say(
                    f"killed consumer-1 (SIGKILL) with {killed_with} leases:"
                    f" {', '.join(sorted(point.replace('_', ' ') for point, _ in pauses.doors))}"
                )
                self._start_consumer(fleet, "consumer-2")
                await placing
                await self._until(fleet, lambda: succeeded() >= total)
            # Long after, somebody asks again: the finished job is found, and nothing is drawn.
            await clients.ask_all(order.accounts[:10])
        if self._answers.unexpected:
            raise Died("the web application answered: " + "; ".join(self._answers.unexpected[:3]))
        return killed_with

    async def _until(
        self, fleet: Fleet, condition: Callable[[], bool], *, meanwhile: asyncio.Task[None] | None = None
    ) -> None:
        """Wait for the condition; a process that dies, or clients that fail, end the wait at once."""
        deadline = time.monotonic() + LONGEST_S
        while not condition():
            fleet.check()
            if meanwhile is not None and meanwhile.done():
                await meanwhile
            if time.monotonic() > deadline:
                raise Died(f"nothing came of it within {LONGEST_S:.0f} s")
            await asyncio.sleep(0.1)

    def _trouble(self, codes: dict[str, int | None]) -> int:
        bad = [name for name, code in codes.items() if code != 0]
        if bad:
            self._say(f"did not stop as asked: {', '.join(bad)}")
        return 1 if bad else 0

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._start:6.1f} s[/dim]  {text}", highlight=False)


def _interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=240, help="distinct statements to ask for")
    parser.add_argument("--accounts", type=int, default=data.DEFAULT_ACCOUNTS, help="accounts in the ledger")
    parser.add_argument("--seed", type=int, default=data.DEFAULT_SEED)
    parser.add_argument("--slots", type=int, default=8, help="jobs that a consumer runs at once")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "demo")
    parser.add_argument("--keep", action="store_true", help="wait at the end, with the database still there")
    given = parser.parse_args(arguments)
    if not 30 <= given.requests <= given.accounts or given.slots <= len(DOORS):
        parser.error(f"needs 30 to {given.accounts} requests and more than {len(DOORS)} slots")
    plan = Plan(**{**vars(given), "folder": given.folder.resolve()})
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        return Demo(plan, console).run()
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been ended")
        return 130
    except (Died, AssertionError, TimeoutError) as error:
        console.print(f"[red]demo:[/red] {error}", markup=True, highlight=False)
        return 1
    except (ServerMissing, psycopg.OperationalError) as error:
        console.print(f"[red]demo:[/red] no database: {error}", highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
