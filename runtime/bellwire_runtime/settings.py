"""Settings are read once, at the edge, and a combination that cannot work is refused there, with its mend.

Every field is `BELLWIRE_` and its name in upper case; the command line overrides by keyword. What is refused
is named without its value, because the value may be an address with a password in it.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from bellwire_runtime.broker.address import BrokerAddress
from bellwire_schema.errors import ConfigError

__all__ = ["DaemonSettings", "Duration", "load"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
S = TypeVar("S", bound=BaseSettings)


def _duration(value: object) -> object:
    """`30`, `30s`, `500ms`, `5m`, `2h`, `1d`; anything else is left to pydantic (ISO 8601, HH:MM:SS)."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    for unit in ("ms", "s", "m", "h", "d", ""):
        number = text.removesuffix(unit) if unit else text
        if number.replace(".", "", 1).isdigit() and (unit == "" or number != text):
            return timedelta(seconds=float(number) * _UNITS.get(unit, 1.0))
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Port = Annotated[int, Field(ge=0, le=65535)]


def _plain(url: str) -> str:
    """psycopg's form: SQLAlchemy's `postgresql+psycopg://` names a driver that libpq does not know."""
    scheme, colon, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{colon}{rest}" if colon else url


class DaemonSettings(BaseSettings):
    """What relay and consumer share. Each daemon adds its own fields in a subclass."""

    model_config = SettingsConfigDict(
        env_prefix="BELLWIRE_", extra="ignore", hide_input_in_errors=True, frozen=True, validate_default=True
    )

    database_url: str = Field(repr=False)
    """`postgresql://…`, as the daemon's own role. No default. Through a transaction pooler it works, with
    `listen_url` pointing past the pooler and `prepared_statements` off for poolers that lack them."""

    listen_url: str | None = Field(default=None, repr=False)
    """A direct address for LISTEN; by default `database_url`; `off` polls only, which costs up to
    the poll floor in latency and nothing else."""

    prepared_statements: bool = True
    """Off only behind a pooler that cannot carry them (PgBouncer before 1.21): each call is planned anew."""

    amqp_url: str | None = Field(default=None, repr=False)
    """`amqp://user:password@host:5672/vhost`, or `amqps://…`: RabbitMQ 3.10 or later. Unset: no broker, and
    nothing is missing but its fan-out. Jobs never depend on it; while it is away consumers poll."""

    amqp_ca_file: Path | None = None
    """Whom to trust as the server of an `amqps` address; by default the system's authorities."""

    amqp_cert_file: Path | None = None
    """A client certificate (PEM), for a broker that asks for one."""

    amqp_key_file: Path | None = None
    """The client certificate's key, where it is not in the same file."""

    amqp_heartbeat: Duration = timedelta(seconds=10)
    """How often each side shows that it lives, 1 s to 60 s. After three of them without a sign the connection
    is given up; too short, and a handler that blocks the event loop loses it."""

    amqp_timeout: Duration = timedelta(seconds=5)
    """For one wait for the broker (to connect, declare, confirm, close), 1 s to 60 s."""

    connect_timeout: Duration = timedelta(seconds=5)
    """For one try to connect, 1 s to 60 s. Too short and a busy server is never reached."""

    call_timeout: Duration = timedelta(seconds=35)
    """After this a database call is given up and its connection abandoned, 1 s to 10 min. It is the last
    resort behind `statement_timeout`, so keep it above that."""

    startup_timeout: Duration = timedelta(seconds=60)
    """How long a starting daemon tries to reach the database before it exits with code 3; `0` tries once."""

    shutdown_grace: Duration = timedelta(seconds=25)
    """From the first signal to a forced exit. Keep it below the supervisor's own (Kubernetes: 30 s), or
    work that could have been handed back waits for its lease instead."""

    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: key=value on a terminal, JSON elsewhere."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug` adds a line for each cycle that did something."""

    health_host: str = "127.0.0.1"
    """Where /live, /ready and /metrics are served. `0.0.0.0` shows kinds and counts, never payloads, to
    everybody who can reach the port."""

    health_port: Port = 0
    """0: no endpoint."""

    @field_validator("database_url", "listen_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None or value == "off":
            return value
        try:
            conninfo_to_dict(_plain(value))
        except psycopg.Error:
            raise ValueError(
                "is no PostgreSQL address: write postgresql://user:password@host:5432/name"
            ) from None
        return _plain(value)

    @field_validator("amqp_url")
    @classmethod
    def _broker(cls, value: str | None) -> str | None:
        if value is None or not value.strip():
            return None
        parts = urlsplit(value.strip())
        try:
            fine = parts.scheme in {"amqp", "amqps"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fine = False
        if not fine:
            raise ValueError(
                "is no RabbitMQ address: write amqp://user:password@host:5672/vhost, or amqps://…, with "
                "special characters of the password percent-encoded"
            )
        if parts.query:
            raise ValueError(
                "takes no '?…': use BELLWIRE_AMQP_CA_FILE, _CERT_FILE, _KEY_FILE, _HEARTBEAT, _TIMEOUT"
            )
        return value.strip()

    @field_validator("connect_timeout", "call_timeout", "startup_timeout", "shutdown_grace")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if not timedelta(0) <= value <= timedelta(days=1):
            raise ValueError("must be between 0 and a day")
        return value

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.database_url == "off":
            raise ValueError("BELLWIRE_DATABASE_URL: 'off' is for BELLWIRE_LISTEN_URL")
        if self.connect_timeout < timedelta(seconds=1):
            raise ValueError("BELLWIRE_CONNECT_TIMEOUT must be at least 1s")
        if self.call_timeout < timedelta(seconds=1):
            raise ValueError("BELLWIRE_CALL_TIMEOUT must be at least 1s")
        self._broker_fits()
        return self

    def _broker_fits(self) -> None:
        for name in ("amqp_heartbeat", "amqp_timeout"):
            if not timedelta(seconds=1) <= getattr(self, name) <= timedelta(seconds=60):
                raise ValueError(f"BELLWIRE_{name.upper()}: must be between 1 s and 60 s")
        files = {
            name: path
            for name in ("amqp_ca_file", "amqp_cert_file", "amqp_key_file")
            if (path := getattr(self, name)) is not None
        }
        if not files:
            return
        if not (self.amqp_url or "").startswith("amqps://"):
            first = next(iter(files)).upper()
            raise ValueError(f"BELLWIRE_{first}: is for an amqps:// address in BELLWIRE_AMQP_URL")
        for name, path in files.items():
            if not path.is_file():
                raise ValueError(f"BELLWIRE_{name.upper()}: no such file")
        if "amqp_key_file" in files and "amqp_cert_file" not in files:
            raise ValueError(
                "BELLWIRE_AMQP_KEY_FILE: its certificate is missing: set BELLWIRE_AMQP_CERT_FILE"
            )
        try:
            address = self.broker
            assert address is not None  # noqa: S101 (an amqps address was seen above)
            address.tls()
        except OSError:
            raise ValueError(
                "BELLWIRE_AMQP_CA_FILE, _CERT_FILE, _KEY_FILE: cannot be used: PEM files are needed, and the "
                "key must belong to the certificate and have no passphrase"
            ) from None

    @property
    def broker(self) -> BrokerAddress | None:
        """The broker; None: work without one."""
        if self.amqp_url is None:
            return None
        return BrokerAddress(
            url=self.amqp_url,
            heartbeat=self.amqp_heartbeat.total_seconds(),
            timeout=self.amqp_timeout.total_seconds(),
            ca_file=self.amqp_ca_file,
            cert_file=self.amqp_cert_file,
            key_file=self.amqp_key_file,
        )

    @property
    def listen_address(self) -> str | None:
        """Where to LISTEN; None: poll only."""
        if self.listen_url == "off":
            return None
        return self.listen_url or self.database_url


def load(settings: type[S], **overrides: Any) -> S:
    """Settings from the environment, keywords (those not None) winning. Raises `ConfigError`, in one line."""
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return settings(**given)
    except ValidationError as error:
        raise ConfigError(
            "; ".join(_line(dict(e)) for e in error.errors(include_input=False, include_url=False))
        ) from None


def _line(error: dict[str, Any]) -> str:
    name = "_".join(str(part) for part in error["loc"]).upper()
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        message = "is not set"
    return f"BELLWIRE_{name}: {message}" if name else message
