"""The consumer's settings, beside those that all daemons share."""

from datetime import timedelta
from typing import Self

from pydantic import Field, model_validator

from bellwire_runtime.settings import DaemonSettings, Duration

__all__ = ["ConsumerSettings"]


class ConsumerSettings(DaemonSettings):
    """What `bellwire consumer` can be told. How jobs run is not here: that is declared by the app and
    applied.

    Heartbeats have no setting either: each lease is renewed at a third of it, so the two cannot disagree.
    """

    slots: int = Field(default=100, ge=1, le=10_000)
    """How many attempts run at once in this process, over all its kinds. Sync handlers take a thread each;
    more slots than the user's connection pool has connections only makes handlers wait for one another."""

    consumer_poll_floor: Duration = timedelta(seconds=1)
    """How long an idle consumer goes without looking when no notification comes, 50 ms to 60 s."""

    consumer_poll: bool = True
    """Off: only hints through RabbitMQ are heard, and what a hint does not bring waits for the next. It is
    for proving that hints arrive; in production it gives up what makes the broker disposable."""

    app_version: str | None = None
    """Kept with each attempt, so that a bad deploy can be told from a bad job: a release name or commit."""

    log_failures: bool = False
    """A warning line for each failed attempt, with its code and the place it came from. For a developer's
    machine, where `bellwire dev` sets it; in production a bad deploy would fill the log with it."""

    consumer_drain: Duration | None = None
    """How long running attempts may go on after the first signal; what is left is then handed back. By
    default the grace less 5 s, at least half of it, so that handing back has its time."""

    @property
    def drain_seconds(self) -> float:
        """`consumer_drain`, or what it is derived to."""
        grace = self.shutdown_grace.total_seconds()
        if self.consumer_drain is not None:
            return self.consumer_drain.total_seconds()
        return max(grace / 2, grace - 5.0)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not timedelta(milliseconds=50) <= self.consumer_poll_floor <= timedelta(seconds=60):
            raise ValueError("BELLWIRE_CONSUMER_POLL_FLOOR: must be between 50 ms and 60 s")
        if not self.consumer_poll and self.amqp_url is None:
            raise ValueError(
                "BELLWIRE_CONSUMER_POLL: without polling nothing would ever start: set BELLWIRE_AMQP_URL too"
            )
        drain = self.consumer_drain
        if drain is not None and not timedelta(0) <= drain < self.shutdown_grace:
            raise ValueError(
                "BELLWIRE_CONSUMER_DRAIN: must be shorter than BELLWIRE_SHUTDOWN_GRACE, or no time is "
                "left to hand back"
            )
        return self
