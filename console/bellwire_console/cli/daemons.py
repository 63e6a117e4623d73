"""`bellwire relay` and `bellwire consumer`: the daemons, in this process."""

from typing import Annotated

import typer

from bellwire_console.cli.exits import Exit, Failure
from bellwire_console.cli.loading import declared, load_app
from bellwire_console.cli.options import AmqpUrl, AppPath, DatabaseUrl, HealthPort, LogFormat, LogLevel
from bellwire_console.cli.parsing import did_you_mean
from bellwire_console.cli.session import address

__all__ = ["consumer", "relay"]


def relay(
    *,
    database_url: DatabaseUrl = None,
    amqp_url: AmqpUrl = None,
    health_port: HealthPort = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
) -> None:
    """Run a relay: it decides which jobs may go, and takes back what crashed. Run two for failover."""
    url = address(database_url)
    import asyncio

    from bellwire_relay.daemon import run
    from bellwire_relay.settings import RelaySettings
    from bellwire_runtime.settings import load

    settings = load(
        RelaySettings,
        database_url=url,
        amqp_url=amqp_url,
        health_port=health_port,
        log_format=log_format,
        log_level=log_level,
    )
    raise typer.Exit(asyncio.run(run(settings)))


def consumer(
    *,
    app: AppPath,
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND]...", help="Only these kinds of the app.", show_default=False),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            envvar="BELLWIRE_SLOTS",
            metavar="N",
            help="How many jobs run at once in this process; 100 if nothing is said.",
            show_default=False,
            min=1,
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    amqp_url: AmqpUrl = None,
    health_port: HealthPort = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
) -> None:
    """Run a consumer: it claims jobs of the app's kinds for its free slots, and runs them."""
    url = address(database_url)
    loaded = load_app(app)
    known = [policy.name for policy in declared(loaded)]
    for kind in kinds or ():
        if kind not in known:
            raise Failure(
                Exit.USAGE,
                f"{app} has no handler for {did_you_mean(kind, known)}; it has: {', '.join(known) or 'none'}",
            )
    import asyncio

    from bellwire_consumer.daemon import run
    from bellwire_consumer.settings import ConsumerSettings
    from bellwire_runtime.settings import load

    settings = load(
        ConsumerSettings,
        database_url=url,
        amqp_url=amqp_url,
        slots=slots,
        health_port=health_port,
        log_format=log_format,
        log_level=log_level,
    )
    raise typer.Exit(asyncio.run(run(loaded, settings, kinds=kinds or None)))
