"""The relay's settings, beside those that all daemons share. Times that must fit each other are checked."""

from datetime import timedelta
from typing import Self

from pydantic import Field, field_validator, model_validator

from bellwire_runtime.settings import DaemonSettings, Duration

__all__ = ["RelaySettings"]


class RelaySettings(DaemonSettings):
    """What `bellwire relay` can be told. The defaults fit; change one only with a reason."""

    relay_poll_floor: Duration = timedelta(milliseconds=500)
    """The longest the relay goes without looking, 10 ms to 5 s: the worst latency of a job whose notification
    was not sent or not heard. Shorter costs statements while idle."""

    relay_ownership: Duration = timedelta(seconds=6)
    """How long a relay serves its kinds without renewing, 2 s to 60 s; renewed three times as often. It is
    the time a take-over takes after a kill; too short, and a busy database makes relays lose their kinds."""

    relay_recover_every: Duration = timedelta(seconds=1)
    """How often expired leases are looked for, 50 ms to 60 s."""

    relay_recover_wait: Duration = timedelta(seconds=10)
    """How long nothing is recovered after the database was away, 0 to 5 min: a heartbeat interval and the
    time to reconnect, so that an outage does not use up an attempt of everybody's. Shorter does just that."""

    relay_batch: int = Field(default=500, ge=1, le=10_000)
    """At most so many jobs are promoted, recovered or expired in one statement."""

    @field_validator("relay_poll_floor", "relay_ownership", "relay_recover_every", "relay_recover_wait")
    @classmethod
    def _not_negative(cls, value: timedelta) -> timedelta:
        if value < timedelta(0):
            raise ValueError("must not be negative")
        return value

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for name, low, high in (
            ("relay_poll_floor", 0.01, 5.0),
            ("relay_ownership", 2.0, 60.0),
            ("relay_recover_every", 0.05, 60.0),
            ("relay_recover_wait", 0.0, 300.0),
        ):
            seconds = getattr(self, name).total_seconds()
            if not low <= seconds <= high:
                raise ValueError(f"BELLWIRE_{name.upper()}: must be between {low:g} s and {high:g} s")
        if self.relay_ownership < 3 * self.relay_poll_floor:
            raise ValueError(
                "BELLWIRE_RELAY_OWNERSHIP must be at least three times BELLWIRE_RELAY_POLL_FLOOR"
            )
        return self
