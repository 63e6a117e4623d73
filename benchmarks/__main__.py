"""`make bench`: measure, compare with the floor, and say so; exit code 1 where a floor is missed.

Rates are quoted as multiples of the same run's bare one-row commits, because this machine's disk is not a
merit. `--quick` takes a tenth of the jobs: for a look, not for a verdict. `--only straight` or
`--only doorbell` runs one half: without a broker, or through RabbitMQ.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from benchmarks.doorbell import doorbell
from benchmarks.straight import straight

PARTS = {"straight": straight, "doorbell": doorbell}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs: a look, no verdict")
    parser.add_argument("--only", choices=PARTS, help="one half of it")
    given = parser.parse_args()
    console = Console()
    reports = [
        part(console, scale=10 if given.quick else 1)
        for name, part in PARTS.items()
        if given.only in {None, name}
    ]
    for report in reports:
        report.show(console)
    return 0 if given.quick or all(report.held for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
