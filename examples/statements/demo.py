"""`make demo`: hundreds of real statements by real processes, one of which is killed where it hurts most.

With a broker, that one goes, too: in mid-run its private node is killed and all its data removed, some jobs
are done without it, and it comes back as a new and empty one. Without, or with one at an address, all else is
the same.

The kill is aimed, not hoped for: three attempts stand at doors (before drawing, between the temporary file
and its promotion, between the promotion and the commit), and only when all three are seen there is their
consumer killed. What comes of it is judged by verify.py, a separate program; its exit code is the demo's.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bellwire_runtime.broker.node import NodeFailed, NodeMissing
from bellwire_testkit.servers import ServerMissing
from examples.statements import data, report
from examples.statements.asking import Answers, Clients, Order
from examples.statements.broker import DemoBroker
from examples.statements.fleet import Addresses, Claims, Died, Fleet, own_database, python, web_address
from examples.statements.ledger import Ledger
from examples.statements.load import create_role, create_tables, load, read
from examples.statements.pauses import Pauses
from examples.statements.plan import DOORS, Plan, order_of, plan_of

APP = "examples.statements.work:app"
SECOND = ("consumer-2", "consumer-3")  # who takes over from the first
PERIOD = data.DEFAULT_PERIOD
LONGEST_S = 300.0  # of the work itself; a run that stands still is a failure, not a wait


class Demo:
    """One run, told step by step on the console."""

    def __init__(
        self,
        plan: Plan,
        addresses: Addresses,
        broker: DemoBroker,
        fleet: Fleet,
        console: Console,
        *,
        started: float,
    ) -> None:
        self._plan = plan
        self._addresses = addresses
        self._broker = broker
        self._fleet = fleet
        self._console = console
        self._start = started
        self._answers = Answers()
        self._bell_env: dict[str, str] = {}
        self._claims = Claims()
        self._away: report.Away | None = None

    def run(self, ledger_csv: Path) -> int:
        ledgers = list(read(ledger_csv, period=PERIOD))
        order, doors = order_of(ledgers, requests=self._plan.requests, broker_stops=self._plan.stop_broker)
        pauses = Pauses(doors=frozenset(doors.items()), folder=self._plan.doors)
        # The clients are quiet for seconds after their first question; a connection that the server closes
        # just then would be an error that nobody made.
        serve = python("uvicorn", "examples.statements.web:web", "--port", "0", "--timeout-keep-alive", "60")
        web = self._fleet.start("web", *serve)
        self._prepare(ledgers)
        with report.Watch(self._addresses.owner) as watch:
            killed_with = asyncio.run(self._work(watch, order, pauses, web_address(web)))
            self._count(*SECOND)
            self._fleet.metrics("relay")
            codes = self._fleet.stop()
            report.show_waits(self._console, watch.waits())
            report.show(
                self._console,
                watch.counts(self._plan.artifacts),
                watch.bell(self._claims, self._away) if self._bell_env else None,
                duplicates=self._answers.duplicates,
                conflicts=self._answers.conflicts,
                killed_with=killed_with,
                seconds=time.monotonic() - self._start,
            )
        verdict = self._verdict(jobs=order.jobs, recovered=len(DOORS))
        # uvicorn shuts down in order and then ends by the signal it was given.
        bad = {name: code for name, code in codes.items() if code not in {0, -signal.SIGTERM}}
        if bad:
            self._say(f"did not stop as asked: {bad}")
        return verdict or len(bad)

    def _prepare(self, ledgers: list[Ledger]) -> None:
        """Both schemas, made side by side, and the shop's role: from here on jobs can be submitted."""
        address = self._addresses.owner
        self._fleet.start("migrate", "bellwire", "migrate")
        create_tables(address)
        loaded = load(address, ledgers)
        self._say(f"loaded {loaded.accounts:,} accounts with {loaded.lines:,} bookings")
        self._fleet.finish("migrate")
        if self._addresses.roles_apart:
            create_role(address)

    def _open(self, pauses: Pauses) -> None:
        """The policy that the code declares, a relay, and a consumer: from here on jobs are done."""
        self._fleet.start("apply", "bellwire", "apply", "--app", APP)
        self._fleet.finish("apply")
        if (url := self._broker.address()) is not None:
            own = {name: value for name, value in os.environ.items() if name.startswith("BELLWIRE_AMQP_")}
            self._bell_env = {**own, "BELLWIRE_AMQP_URL": url}
            self._say(f"hints go through RabbitMQ: {self._broker.described}")
        env = {"BELLWIRE_DATABASE_URL": self._addresses.relay, **self._bell_env}
        self._fleet.start_daemon("relay", "bellwire", "relay", env=env)
        self._start_consumer("consumer-1", pauses)

    def _start_consumer(self, name: str, pauses: Pauses | None = None) -> None:
        argv = ("bellwire", "consumer", "--app", APP, "--slots", str(self._plan.slots))
        doors = pauses.environment() if pauses else {}
        env = {"BELLWIRE_DATABASE_URL": self._addresses.consumer, **self._bell_env, **doors}
        if not self._plan.poll:
            env["BELLWIRE_CONSUMER_POLL"] = "false"
        process = self._fleet.start_daemon(name, *argv, env=env)
        self._say(f"{name} is process {process.pid}")

    def _count(self, *consumers: str) -> None:
        """What these claimed so far, in their own words."""
        for name in consumers:
            self._claims += Claims.counted(self._fleet.metrics(name), kind=report.KIND)

    async def _work(self, watch: report.Watch, order: Order, pauses: Pauses, address: str) -> int:
        """Ask, kill, go on until all is done; answers how many leases the killed consumer held."""
        total = order.jobs
        bar = Progress(
            TextColumn("statements"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        async with Clients(address, period=PERIOD, answers=self._answers) as clients:
            await clients.ask(order.accounts[0])
            self._check()
            self._say(f"the first job was submitted {time.monotonic() - self._start:.1f} s after the start")
            await asyncio.to_thread(self._open, pauses)
            with bar:
                task = bar.add_task("statements", total=total)

                def succeeded() -> int:
                    done = watch.states().get("succeeded", 0)
                    bar.update(task, completed=done)
                    return done

                placing = asyncio.create_task(clients.place(order))
                try:
                    await self._until(lambda: succeeded() >= total // 8 and pauses.standing() == pauses.doors)
                    killed_with = await self._kill(watch, pauses)
                    await placing
                    if self._plan.stop_broker:
                        self._away = await self._without_broker(watch, order, clients, succeeded)
                    await self._until(lambda: succeeded() >= total)
                finally:
                    placing.cancel()
                    await asyncio.gather(placing, return_exceptions=True)
            # Long after, somebody asks again: the finished job is found, and nothing is drawn.
            await clients.ask_all(order.accounts[:10])
            self._check()
        return killed_with

    async def _without_broker(
        self, watch: report.Watch, order: Order, clients: Clients, succeeded: Callable[[], int]
    ) -> report.Away:
        """Delete the broker, go on without it, bring back a new one; answers when that was."""
        daemons = ("relay", *SECOND)
        await self._until(lambda: succeeded() >= order.jobs // 2)
        gone = watch.now()
        self._broker.delete()
        self._say("killed RabbitMQ (SIGKILL) and removed all its data; the consumers poll")
        await self._until(lambda: self._fleet.connected(*daemons) == 0)
        await self._until(lambda: succeeded() >= len(order.accounts))
        self._say(f"the backlog is done without it; {len(order.late)} more, one by one")
        quiet = watch.now()
        for at, account in enumerate(order.late, start=len(order.accounts) + 1):
            await clients.ask(account)
            await self._until(lambda at=at: succeeded() >= at)  # type: ignore[misc]
        await asyncio.to_thread(self._broker.start_anew)
        back = watch.now()
        await self._until(lambda: self._fleet.connected(*daemons) == len(daemons))
        seconds = (watch.now() - back).total_seconds()
        self._say(f"RabbitMQ is back, empty; {seconds:.1f} s later relay and consumers have found it")
        await clients.ask_all(order.last)
        return report.Away(gone=gone, quiet=quiet, back=back)

    async def _kill(self, watch: report.Watch, pauses: Pauses) -> int:
        """Its successors first, so that nothing waits for them; then the kill itself."""
        for name in SECOND:
            self._start_consumer(name)
        (first,) = self._fleet.pids("consumer-1")
        await self._until(lambda: watch.serving(self._fleet.pids(*SECOND)) == len(SECOND))
        # Between two claims, so that what it counted is all that it claimed.
        for _ in range(40):
            self._claims = Claims.counted(self._fleet.metrics("consumer-1"), kind=report.KIND)
            if sum(watch.of_process(first)) == self._claims.total:
                break
            await asyncio.sleep(0.05)
        self._fleet.kill("consumer-1")
        _, held = watch.of_process(first)
        where = ", ".join(sorted(f"{point.replace('_', ' ')} ({account})" for point, account in pauses.doors))
        self._say(f"killed consumer-1 (SIGKILL); it held {held} leases, among them: {where}")
        if held < len(DOORS):
            raise Died(f"the killed consumer held {held} leases, not at least {len(DOORS)}")
        return held

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition; a process that dies or a wrong answer ends the wait at once."""
        deadline = time.monotonic() + LONGEST_S
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                raise Died(f"nothing came of it within {LONGEST_S:.0f} s; see {self._plan.logs}")
            await asyncio.sleep(0.1)

    def _check(self) -> None:
        self._fleet.check()
        if self._answers.unexpected:
            raise Died(f"the web application answered: {self._answers.unexpected[0]}")

    def _verdict(self, *, jobs: int, recovered: int) -> int:
        code, text = self._fleet.verdict(
            *python("examples.statements.verify", "--jobs", str(jobs), "--recovered", str(recovered))
        )
        self._console.print("\nThe verdict, by a script that imports nothing of ours:", style="bold")
        self._console.out(text, end="", highlight=False)
        self._console.out(f"The statements are in {self._plan.artifacts}", highlight=False)
        if self._plan.keep:
            self._console.input(f"The database is {self._addresses.owner}\nEnter ends it: ")
        return code

    def _say(self, text: str) -> None:
        self._console.out(f"{time.monotonic() - self._start:6.1f} s  {text}", highlight=False)


def run(plan: Plan, console: Console, *, started: float) -> int:
    """One run in a folder of its own and on a database of its own; answers the exit code."""
    for made in (plan.logs, plan.artifacts, plan.doors, plan.metrics):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    ledger_csv = plan.folder / f"ledger-{plan.seed}-{plan.accounts}.csv"
    if not ledger_csv.exists():
        data.write(ledger_csv, seed=plan.seed, accounts=plan.accounts)
    with (
        DemoBroker(given=plan.amqp_url, private=plan.private_broker) as broker,
        own_database(os.environ.get("BELLWIRE_DATABASE_URL") or None) as addresses,
    ):
        env = {
            "BELLWIRE_DATABASE_URL": addresses.owner,
            "STATEMENTS_DATABASE_URL": addresses.shop,
            "STATEMENTS_ARTIFACTS": str(plan.artifacts),
        }
        with Fleet(logs=plan.logs, metrics=plan.metrics, env=env) as fleet:
            return Demo(plan, addresses, broker, fleet, console, started=started).run(ledger_csv)


def _interrupted(_number: int, _frame: object) -> None:
    """As Ctrl-C: asyncio turns that into a cancelled task, where an error raised here would tear its loop."""
    signal.raise_signal(signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    started = time.monotonic() - time.process_time()  # imports count too
    plan = plan_of(arguments, description=(__doc__ or "").splitlines()[0])
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        return run(plan, console, started=started)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been ended")
        return 130
    except (Died, AssertionError, TimeoutError) as error:
        console.print(f"[red]demo:[/red] {error}", markup=True, highlight=False)
        return 1
    except (NodeMissing, NodeFailed) as error:
        console.print(f"[red]demo:[/red] no broker: {error}", highlight=False)
        return 1
    except (ServerMissing, psycopg.OperationalError) as error:
        console.print(f"[red]demo:[/red] no database: {error}", highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
