"""Where the broker is, and who we are to it. The password is in here, so nothing here is ever shown whole."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["BrokerAddress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """`heartbeat` and `timeout` are in seconds; `timeout` bounds every single wait for the broker."""

    url: str
    heartbeat: float = 10.0
    timeout: float = 5.0
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def secure(self) -> bool:
        return self.url.startswith("amqps://")

    @property
    def shown(self) -> str:
        """Host, port and virtual host, for a log line."""
        parts = urlsplit(self.url)
        port = parts.port or (5671 if self.secure else 5672)
        return f"{parts.hostname}:{port}/{unquote(parts.path.removeprefix('/'))}"

    def tls(self) -> ssl.SSLContext | None:
        """The context of an `amqps` address: the server is always verified. Raises OSError for bad files."""
        if not self.secure:
            return None
        context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context

    def __repr__(self) -> str:
        return f"BrokerAddress({self.shown})"
