#!/opt/bellwire/bin/python -ISB
"""Asks a process beside it whether it is well: exit code 0 or 1, its answer for `docker inspect`.

Runs every few seconds in every container, so it imports little, and waits for less than a probe's deadline.
"""

import os
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

WITHIN_S = 4.0


def main(target: str) -> int:
    """`target` is a path of the daemon's own port, or a whole http:// address."""
    if target.startswith("/"):
        host = os.environ.get("BELLWIRE_HEALTH_HOST", "127.0.0.1")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        port = int(os.environ.get("BELLWIRE_HEALTH_PORT", "0"))
        path = target
    else:
        address = urlsplit(target)
        host, port, path = address.hostname or "", address.port or 80, address.path or "/"
    connection = HTTPConnection(host, port, timeout=WITHIN_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        print(answer.status, answer.read(2000).decode(errors="replace").strip())
    except (OSError, ValueError) as error:
        print(f"http://{host}:{port}{path}: {error}")
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "/ready"))
