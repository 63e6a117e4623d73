"""A process that runs one job and is killed on the way: `python -m bellwire_testkit.victim INSTRUCTIONS`.

Its environment names the fault point; the kill is a real SIGKILL by itself. Ending in order means that the
point was never reached, and what then happened is printed for whoever wonders why.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from bellwire_testkit.address import AppAddress


def instructions(*, url: str, address: AppAddress, job_id: UUID) -> str:
    """What the process needs to know, as text for a file."""
    return json.dumps({"url": url, "app": asdict(address), "job_id": str(job_id), "path": sys.path})


async def _run(told: dict[str, Any]) -> str:
    import psycopg

    from bellwire_testkit.address import AppAddress
    from bellwire_testkit.drive import drive
    from bellwire_testkit.result import results_of

    app = AppAddress(**told["app"]).load()
    with psycopg.connect(told["url"], autocommit=True, application_name="bellwire-test-victim") as conn:
        async with drive(app, told["url"], conn, slots=1_000) as driven:
            ended = await driven.job(UUID(told["job_id"]))
            if ended is None:
                return "the job was not run at all"
            (result,) = results_of(conn, [ended])
    return f"the attempt ended: {result}"


def main() -> int:
    told = json.loads(Path(sys.argv[1]).read_text())
    # Test modules are found as the test's own process finds them.
    sys.path[:] = [*told["path"], *(entry for entry in sys.path if entry not in told["path"])]
    sys.stdout.write(asyncio.run(_run(told)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
