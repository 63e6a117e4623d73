"""Images without a registry: a base from Debian's packages, stand-ins for the servers on it, then our own.

The base is plain Debian with its python3. So what is tried here is also that the Dockerfile asks no more of a
base than that.
"""

import re
import subprocess
import tempfile
from pathlib import Path

from trial.engine import Engine, Failed, run

ROOT = Path(__file__).resolve().parents[2]
BASE = "bellwire-try-base"
SERVERS = {"postgres": "bellwire-try-postgres", "rabbitmq": "bellwire-try-rabbitmq"}
TARGETS = ("cli", "relay", "consumer", "statements")
OWN_SAID = "uid 10001 runs shop"
# The certificates: an address may be amqps:// or sslmode=verify-full.
_PACKAGES = ("ca-certificates", "python3", "python3-venv")


def image_of(target: str) -> str:
    return f"bellwire-{target}"


def make_base(engine: Engine, folder: Path) -> None:
    """Debian's smallest system with Python, as this machine's own package sources give it."""
    if engine.docker("images", "--quiet", BASE):
        return
    uri, suite = _source()
    system = folder / "system"
    run("debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", suite, system, uri)
    for lists in (*system.glob("var/lib/apt/lists/*_*"), *system.glob("var/cache/apt/archives/*.deb")):
        lists.unlink()
    with subprocess.Popen(
        ["tar", "--numeric-owner", "--one-file-system", "-C", system, "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        subprocess.run(
            [engine.client, "import", "--change", "ENV LANG=C.UTF-8", "-", BASE],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **engine.env},
            stdin=tar.stdout,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    if tar.returncode:
        raise Failed(f"tar ended with {tar.returncode}")
    run("rm", "-rf", "--one-file-system", system)


def _source() -> tuple[str, str]:
    """Address and name of the Debian release that apt uses here."""
    listed = run(
        *("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT) $(ORIGIN)"),
        *("Created-By: Packages", "Component: main", "Origin: Debian"),
    )
    for line in listed.splitlines():
        site, release, *_ = line.split()
        if "-" not in release:
            return site, release
    raise Failed("apt knows no Debian release here: run apt-get update, on Debian")


def build_servers(engine: Engine) -> None:
    for name, image in SERVERS.items():
        engine.docker(
            *("build", "--quiet", "--network=host", "--build-arg", f"BASE={BASE}", "--tag", image),
            *("--file", ROOT / "docker/standins" / f"{name}.Dockerfile", ROOT / "docker/standins"),
        )


def build(engine: Engine, target: str, *, base: str = BASE) -> None:
    """One target of the Dockerfile, as anybody builds it; this machine's pip settings go along as secrets."""
    with tempfile.TemporaryDirectory() as folder:
        engine.docker(
            *("build", "--network=host", "--build-arg", f"BASE={base}", *pip_secrets(Path(folder))),
            *("--target", target, "--tag", image_of(target), "--file", ROOT / "docker/Dockerfile", ROOT),
        )


def try_own(engine: Engine) -> str:
    """Build the image that the how-to page shows, around a tiny app; answers what its daemon sees."""
    page = (ROOT / "docs/how-to/run-in-containers.md").read_text("utf-8")
    (dockerfile,) = re.findall(r"^```dockerfile\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        (context / "Dockerfile").write_text(dockerfile)
        (context / "requirements.txt").write_text("# nothing more\n")
        (context / "shop").mkdir()
        (context / "shop/work.py").write_text('from bellwire.consumer import App\n\napp = App("shop")\n')
        engine.docker("build", "--quiet", "--network=none", "--tag", "shop-consumer", context)
    return engine.docker(
        *("run", "--rm", "--network=none", "--entrypoint", "python", "shop-consumer", "-c"),
        "import os; from bellwire_console.cli.loading import load_app; "
        "print('uid', os.getuid(), 'runs', load_app(os.environ['BELLWIRE_APP']).name)",
    )


def pip_secrets(folder: Path) -> list[str]:
    """How pip reaches an index from here: its settings without those that are files of this machine."""
    listed = run("python3", "-m", "pip", "config", "list", check=False)
    settings = {}
    for line in listed.splitlines():
        key, separator, value = line.partition("=")
        section, _, name = key.partition(".")
        if separator and section in {"global", "install", ":env:"}:
            settings[name.lstrip(".")] = value.strip("'\"")
    secrets: list[str] = []
    lines = ["[global]"]
    for name, value in settings.items():
        if name == "cert" and Path(value).is_file():
            lines.append("cert = /run/secrets/pip.ca")
            secrets += ["--secret", f"id=pip.ca,src={value}"]
        elif name in {"index-url", "extra-index-url", "proxy", "timeout", "default-timeout", "trusted-host"}:
            remote = [word for word in value.split() if not word.startswith("file:")]
            if remote:
                lines.append(f"{name} = {' '.join(remote)}")
    conf = folder / "pip.conf"
    conf.write_text("\n".join(lines) + "\n")
    return [*secrets, "--secret", f"id=pip.conf,src={conf}"]
