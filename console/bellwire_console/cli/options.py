"""Options that several commands share, said once."""

from typing import Annotated

import typer

__all__ = [
    "Actor",
    "AmqpUrl",
    "AppPath",
    "DatabaseUrl",
    "HealthPort",
    "Json",
    "LogFormat",
    "LogLevel",
    "OptionalAppPath",
]

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="BELLWIRE_DATABASE_URL",
        metavar="ADDRESS",
        help="postgresql://user:password@host:5432/name",
        show_default=False,
    ),
]
AmqpUrl = Annotated[
    str | None,
    typer.Option(
        "--amqp-url",
        envvar="BELLWIRE_AMQP_URL",
        metavar="ADDRESS",
        help="amqp://user:password@host:5672/vhost; none: no broker, jobs are found in the database.",
        show_default=False,
    ),
]
AppPath = Annotated[
    str,
    typer.Option(
        "--app",
        envvar="BELLWIRE_APP",
        metavar="MODULE:ATTRIBUTE",
        help="Where your App is, such as shop.work:app.",
    ),
]
OptionalAppPath = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:ATTRIBUTE",
        help="Your App: the payload is checked by the job's class, which also gives key and tenant.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="JSON instead of a table.")]
Actor = Annotated[
    str | None,
    typer.Option(
        "--actor", metavar="NAME", help="Who is on record for it; by default you.", show_default=False
    ),
]
HealthPort = Annotated[
    int | None,
    typer.Option(
        "--health-port",
        envvar="BELLWIRE_HEALTH_PORT",
        metavar="PORT",
        help="Serve /live, /ready and /metrics here; 0 or nothing: no endpoint.",
        show_default=False,
        min=0,
        max=65535,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        envvar="BELLWIRE_LOG_FORMAT",
        metavar="FORMAT",
        help="auto, json or console.",
        show_default=False,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        envvar="BELLWIRE_LOG_LEVEL",
        metavar="LEVEL",
        help="debug, info, warning or error.",
        show_default=False,
    ),
]
