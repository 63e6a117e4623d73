"""Certificates for a test's TLS: one authority, a server, a client, and a stranger whom nobody here signed.

Made anew for each run and valid for two days, so that none expires in the repository and no key lies in it.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Certificates", "Pair", "openssl_is_there"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    cert_file: Path
    key_file: Path


def openssl_is_there() -> bool:
    return shutil.which("openssl") is not None


class Certificates:
    """Written into the folder by the `openssl` command (3.0 or newer), which takes a fraction of a second."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._config = folder / "openssl.cnf"
        self._config.write_text("[req]\ndistinguished_name = dn\n[dn]\n")
        authority = self._make("authority", ["basicConstraints=critical,CA:TRUE"])
        self.ca_file = authority.cert_file
        """Who signed `server` and `client`."""
        names = ["subjectAltName=DNS:localhost,IP:127.0.0.1", "extendedKeyUsage=serverAuth"]
        self.server = self._make("server", names, signed_by=authority)
        self.client = self._make("client", ["extendedKeyUsage=clientAuth"], signed_by=authority)
        self.stranger = self._make("stranger", ["basicConstraints=critical,CA:TRUE"])
        """Signed by itself: a client nobody knows, and as a CA file one that knows nobody."""

    def _make(self, name: str, extensions: list[str], *, signed_by: Pair | None = None) -> Pair:
        made = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        command: list[str | Path] = [
            "openssl",
            "req",
            "-x509",
            "-config",
            self._config,
            "-days",
            "2",
            "-nodes",
        ]
        command += [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-subj",
            f"/CN=bellwire test {name}",
        ]
        command += ["-keyout", made.key_file, "-out", made.cert_file]
        for extension in extensions:
            command += ["-addext", extension]
        if signed_by is not None:
            command += ["-CA", signed_by.cert_file, "-CAkey", signed_by.key_file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openssl made no certificate for the {name}: {done.stderr}")
        return made
