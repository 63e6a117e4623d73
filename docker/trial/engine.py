"""A Docker engine of our own, which shares nothing with another one and leaves nothing of the host changed.

It has its own socket, data, state and settings, and may neither write firewall rules nor make the default
bridge nor turn on forwarding: containers reach each other over the network that compose makes, published
ports go through Docker's own proxy, and builds use the host's network.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

POLICY = Path("/usr/sbin/policy-rc.d")
_START_S = 60.0


class Failed(Exception):
    """A step that everything after it needs has failed; the text says which, with its last lines."""


def run(*argv: str | Path, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Run a command to its end; answers what it printed. Raises `Failed` with the last lines of it."""
    done = subprocess.run(
        [str(each) for each in argv],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if check and done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-40:])
        raise Failed(f"{' '.join(str(each) for each in argv[:4])} … ended with {done.returncode}:\n{tail}")
    return done.stdout


def install() -> list[str]:
    """Install what is missing, without letting a service start; answers the packages."""
    if os.geteuid() != 0:
        raise Failed("needs root: it starts a Docker engine and makes a Debian system")
    # Newer Debian has the client, and its builder, in packages of their own.
    wanted = {"dockerd": ("docker.io", "docker-cli", "docker-buildx"), "debootstrap": ("debootstrap",)}
    if not compose_command():
        wanted["docker-compose"] = ("docker-compose",)
    missing = [name for program, names in wanted.items() if not shutil.which(program) for name in names]
    if not missing:
        return []
    if not shutil.which("apt-get"):
        raise Failed(f"install {', '.join(missing)}: without apt-get this script cannot")
    known = [name for name in missing if _known(name)]
    if set(known) != set(missing):
        run("apt-get", "update", "-q", check=False)
        known = [name for name in missing if _known(name)]
    with _no_service_starts():
        run(
            *("apt-get", "install", "-qy", "--no-install-recommends", *known),
            env={"DEBIAN_FRONTEND": "noninteractive"},
        )
    return known


def _known(package: str) -> bool:
    return "Candidate: (none)" not in (said := run("apt-cache", "policy", package)) and bool(said.strip())


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian starts what it installs, unless this file says no."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def compose_command() -> list[str]:
    """`docker compose` or `docker-compose`, whichever is here; empty: neither."""
    if shutil.which("docker") and not subprocess.call(
        ["docker", "compose", "version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []


def _client() -> str:
    """A client that can use BuildKit: old ones do it alone, newer ones need their plugin."""
    for client in filter(None, ("/usr/bin/docker", shutil.which("docker"))):
        if not Path(client).exists():
            continue
        version = run(client, "--version", check=False).removeprefix("Docker version ")
        major = version.partition(".")[0]
        if (major.isdigit() and int(major) < 23) or "buildx" in run(client, "buildx", "version", check=False):
            return client
    raise Failed("no docker client here can use BuildKit: install docker-buildx")


class Engine:
    """The engine and its client. As a context manager it ends with everything that runs in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "docker.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.env = {
            "DOCKER_HOST": f"unix://{self._socket}",
            "DOCKER_BUILDKIT": "1",
            "DOCKER_CONFIG": str(folder),
        }
        self.storage = ""
        self.client = _client()

    def docker(self, *argv: str | Path, check: bool = True) -> str:
        return run(self.client, *argv, env=self.env, check=check).strip()

    def __enter__(self) -> Self:
        # A machine's kernel may lack overlays of overlays; copying everything works everywhere, slowly.
        for storage in ("overlay2", "vfs"):
            if self._start(storage):
                self.storage = storage
                self._clear()  # what a run that was killed has left in a folder that is used again
                return self
            self.stop()
        log = (self._folder / "dockerd.log").read_text(errors="replace").splitlines()[-15:]
        raise Failed("dockerd does not start:\n" + "\n".join(log))

    def _start(self, storage: str) -> bool:
        settings = self._folder / "daemon.json"  # else it reads the machine's
        settings.write_text("{}\n")
        with (self._folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    # Killed without a chance to clean up, we still take it along.
                    *("setpriv", "--pdeathsig", "TERM", "dockerd"),
                    f"--config-file={settings}",
                    f"--host=unix://{self._socket}",
                    f"--pidfile={self._folder / 'dockerd.pid'}",
                    f"--data-root={self._folder / 'data'}",
                    f"--exec-root={self._folder / 'run'}",
                    f"--storage-driver={storage}",
                    "--bridge=none",
                    "--iptables=false",
                    "--ip6tables=false",
                    "--ip-forward=false",
                    "--ip-masq=false",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us: it must outlive the clean-up
            )
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._socket.exists() and "Server Version" in self.docker("info", check=False):
                return True
            time.sleep(0.2)
        return False

    def stop(self) -> None:
        """SIGTERM: the engine ends its containers, then itself and the containerd below it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _clear(self) -> None:
        left = self.docker("ps", "--all", "--quiet", check=False).split()
        if left:
            self.docker("rm", "--force", "--volumes", *left, check=False)
        self.docker("volume", "prune", "--force", check=False)
        self.docker("network", "prune", "--force", check=False)

    def __exit__(self, *_: object) -> None:
        self._clear()
        self.stop()
