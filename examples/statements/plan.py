"""What one run of the demo shall do, from its command line; who is asked for, and when."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.statements import data
from examples.statements.asking import Order
from examples.statements.ledger import Ledger
from examples.statements.pauses import Point

DOORS: tuple[Point, ...] = ("before_render", "after_temporary", "after_promotion")
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
    amqp_url: str | None
    private_broker: bool
    stop_broker: bool
    poll: bool

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def doors(self) -> Path:
        return self.folder / "doors"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics"


def plan_of(arguments: Sequence[str] | None, *, description: str) -> Plan:
    """From the command line and the environment; what cannot work ends the process with code 2."""
    parser = argparse.ArgumentParser(prog="make demo", description=description)
    parser.add_argument("--requests", type=int, default=240, help="distinct statements to ask for")
    parser.add_argument("--accounts", type=int, default=data.DEFAULT_ACCOUNTS, help="accounts in the ledger")
    parser.add_argument("--seed", type=int, default=data.DEFAULT_SEED)
    parser.add_argument("--slots", type=int, default=4, help="jobs that a consumer runs at once")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "demo")
    parser.add_argument("--keep", action="store_true", help="wait at the end, with the database still there")
    parser.add_argument(
        "--broker",
        default=os.environ.get("BROKER", ""),
        help="rabbitmq: a private node, unless BELLWIRE_AMQP_URL names one (BROKER)",
    )
    parser.add_argument("--leave-broker", action="store_true", help="do not stop the private node in mid-run")
    parser.add_argument("--no-poll", action="store_true", help="consumers hear hints and never look")
    given = parser.parse_args(arguments)
    if not 30 <= given.requests <= given.accounts or given.slots <= len(DOORS):
        parser.error(f"needs 30 to {given.accounts} requests and more than {len(DOORS)} slots")
    if given.broker not in {"", "rabbitmq"}:
        parser.error(f"BROKER is {given.broker!r}: the only one is 'rabbitmq'")
    address = os.environ.get("BELLWIRE_AMQP_URL") or None
    private = given.broker == "rabbitmq" and address is None
    stop = private and not given.leave_broker
    if given.no_poll and (stop or not (private or address)):
        parser.error("--no-poll needs a broker that stays: BROKER=rabbitmq and --leave-broker, or an address")
    return Plan(
        requests=given.requests,
        accounts=given.accounts,
        seed=given.seed,
        slots=given.slots,
        folder=given.folder.resolve(),
        keep=given.keep,
        amqp_url=address,
        private_broker=private,
        stop_broker=stop,
        poll=not given.no_poll,
    )


def order_of(
    ledgers: Sequence[Ledger], *, requests: int, broker_stops: bool = False
) -> tuple[Order, dict[Point, int]]:
    """Who is asked for: the three that will stand at the doors first, then the flood, then everybody else.

    The doors are taken by three customers, so that no limit of one customer's keeps an attempt from its door.
    Where the broker is to be stopped, some come only then, and some after its return.
    """
    chosen = ledgers[:requests]
    firsts = {ledger.customer: ledger.account_id for ledger in reversed(chosen)}
    doors = dict(zip(DOORS, firsts.values(), strict=False))
    flood = data.CUSTOMERS[0]
    rest = sorted(
        (ledger for ledger in chosen if ledger.account_id not in doors.values()),
        key=lambda ledger: ledger.customer != flood,
    )
    everybody = (*doors.values(), *(ledger.account_id for ledger in rest))
    late, last = (requests // 20, requests // 10) if broker_stops else (0, 0)
    accounts = everybody[: requests - late - last]
    return (
        Order(
            accounts=accounts,
            repeated=accounts[::6],
            conflicting=accounts[1::40],
            late=everybody[len(accounts) : len(accounts) + late],
            last=everybody[len(accounts) + late :],
        ),
        doors,
    )
