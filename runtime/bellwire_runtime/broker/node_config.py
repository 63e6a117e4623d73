"""What a private RabbitMQ node is told, as the text of its `advanced.config`: an Erlang term.

Everything goes into this one file and nothing into `rabbitmq.conf`, because translating the latter makes a
start half a second longer. Values are Erlang terms: `{"consumer_timeout": "10000"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NodeTls", "advanced_config"]

_QUICK_TO_TELL = {
    "collect_statistics_interval": "500",
    "quorum_tick_interval": "500",
    "channel_tick_interval": "1000",
}
_QUICK_TO_SHOW = "[{global, [{605, 1}]}, {basic, [{605, 1}]}, {detailed, [{605, 1}]}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTls:
    """The certificates (PEM) of a node's TLS listener; `client_required` refuses clients without one."""

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_required: bool = False


def quoted(text: object) -> str:
    """An Erlang string."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def advanced_config(
    settings: Mapping[str, str],
    *,
    quick: bool,
    address: str,
    port: int,
    management_port: int | None,
    tls_port: int | None,
    tls: NodeTls | None,
) -> str:
    """The whole file; `settings` are those of the application `rabbit` and win over ours.

    `quick` is for tests: counts are up to two seconds old instead of ten, and an acknowledgement that is
    overdue is noticed within a second instead of a minute.
    """
    interface = f"{{{address.replace('.', ',')}}}"
    rabbit = {
        "tcp_listeners": f"[{{{quoted(address)}, {port}}}]",
        # guest from another address than the loopback: a container's clients come from outside it.
        "loopback_users": "[]",
        # A developer's nearly full disk must not look like the product's fault.
        "disk_free_limit": "50000000",
    }
    if tls is not None and tls_port is not None:
        rabbit["ssl_listeners"] = f"[{{{quoted(address)}, {tls_port}}}]"
        rabbit["ssl_options"] = _list(
            {
                "cacertfile": quoted(tls.ca_file),
                "certfile": quoted(tls.cert_file),
                "keyfile": quoted(tls.key_file),
                "verify": "verify_peer",
                "fail_if_no_peer_cert": "true" if tls.client_required else "false",
            }
        )
    applications: dict[str, Mapping[str, str]] = {
        "kernel": {"inet_dist_use_interface": interface},
        "rabbit": {**rabbit, **(_QUICK_TO_TELL if quick else {}), **settings},
    }
    if management_port is not None:
        listener = _list({"ip": quoted(address), "port": str(management_port)})
        applications["rabbitmq_management"] = {"listener": listener}
        if quick:
            applications["rabbitmq_management_agent"] = {"sample_retention_policies": _QUICK_TO_SHOW}
    return _list({name: _list(terms) for name, terms in applications.items()}) + ".\n"


def _list(terms: Mapping[str, str]) -> str:
    return "[" + ", ".join(f"{{{name}, {value}}}" for name, value in terms.items()) + "]"
