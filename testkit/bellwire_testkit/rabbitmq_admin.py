"""What a test asks of a broker, or does to it, over the HTTP API of RabbitMQ's management plugin.

What the API shows is collected at intervals and may be a second or two old (ten in a broker that was not
made for tests), so tests wait for what they expect: `wait_for_queue`, `wait_for_consumers`.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bellwire_testkit.waiting import wait_until

__all__ = ["Admin", "AdminRefused", "QueueState"]

_CALL_DEADLINE_S = 10.0
_NOT_FOUND, _UNAVAILABLE = 404, 503


class AdminRefused(RuntimeError):
    """The broker refused; `status` is HTTP's, `reason` the body of its answer."""

    def __init__(self, request: str, status: int, reason: str) -> None:
        super().__init__(f"{request}: {status} {reason}")
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue as the broker last counted it."""

    name: str
    kind: str
    """quorum, classic, stream."""
    ready: int
    unacked: int
    consumers: int
    arguments: Mapping[str, Any]
    policy: str | None

    @property
    def depth(self) -> int:
        return self.ready + self.unacked


class Admin:
    """The verbs, each on one virtual host unless it says otherwise; every call ends within 10 s."""

    def __init__(self, api: str, *, user: str, password: str, vhost: str = "/") -> None:
        self._api = api.rstrip("/")
        self._credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.vhost = vhost

    def at(self, vhost: str) -> Admin:
        """The same broker's other virtual host."""
        other = object.__new__(type(self))
        other._api, other._credentials, other.vhost = self._api, self._credentials, vhost
        return other

    def call(
        self, method: str, *path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """One request; quotes the parts of the path. Answers the parsed JSON, None where none came."""
        request = urllib.request.Request(
            "/".join((self._api, *(quote(part, safe="") for part in path))),
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Basic {self._credentials}",
                "Content-Type": "application/json",
                **(headers or {}),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=_CALL_DEADLINE_S) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            with error:
                reason = error.read().decode(errors="replace")
            raise AdminRefused(f"{method} {'/'.join(path)}", error.code, reason) from None
        return json.loads(text) if text else None

    # --- Virtual hosts ---

    def vhosts(self) -> list[str]:
        return sorted(row["name"] for row in self.call("GET", "vhosts"))

    def create_vhost(self, name: str) -> None:
        self.call("PUT", "vhosts", name, body={})

    def delete_vhost(self, name: str) -> None:
        """Takes its queues along and closes its connections; one that is gone already is fine."""
        self._gone_is_fine("DELETE", "vhosts", name)

    # --- Queues ---

    def queues(self) -> dict[str, QueueState]:
        return {row["name"]: _queue(row) for row in self.call("GET", "queues", self.vhost)}

    def queue(self, name: str) -> QueueState | None:
        """None where there is no such queue."""
        row = self._gone_is_fine("GET", "queues", self.vhost, name)
        return _queue(row) if row else None

    def declare_queue(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, durable: bool = True
    ) -> None:
        body = {"durable": durable, "auto_delete": False, "arguments": dict(arguments or {})}
        self.call("PUT", "queues", self.vhost, name, body=body)

    def purge(self, name: str) -> None:
        self.call("DELETE", "queues", self.vhost, name, "contents")

    def delete_queue(self, name: str) -> None:
        """Its consumers are cancelled by the broker; a queue that is gone already is fine."""
        self._gone_is_fine("DELETE", "queues", self.vhost, name)

    def wait_for_queue(
        self, name: str, *, depth: int | None = None, unacked: int | None = None, deadline: float = 15.0
    ) -> QueueState:
        """Wait until the queue is there, with that many messages in all, that many of them unacknowledged."""
        seen: list[QueueState | None] = [None]

        def looks_right() -> QueueState | None:
            seen[0] = state = self.queue(name)
            right = state is not None and depth in {None, state.depth} and unacked in {None, state.unacked}
            return state if right else None

        return wait_until(
            looks_right,
            deadline=deadline,
            describe=lambda: f"queue {name} to have depth {depth}, {unacked} unacked; it is {seen[0]}",
        )

    # --- Consumers, connections ---

    def consumers(self, queue: str) -> list[str]:
        """The consumer tags that the broker lists for the queue, under channels that live."""
        listed = self.call("GET", "consumers", self.vhost)
        # Of a queue that was deleted the API keeps the consumers for good, without a channel.
        return sorted(
            row["consumer_tag"] for row in listed if row["queue"]["name"] == queue and row["channel_details"]
        )

    def wait_for_consumers(self, queue: str, count: int, *, deadline: float = 15.0) -> list[str]:
        """Wait until the broker lists exactly that many; answers their tags."""
        seen: list[list[str]] = [[]]

        def right() -> bool:
            seen[0] = self.consumers(queue)
            return len(seen[0]) == count

        wait_until(
            right,
            deadline=deadline,
            describe=lambda: f"{count} consumers of {queue}; the broker lists {seen[0]}",
        )
        return seen[0]

    def connections(self) -> list[dict[str, Any]]:
        """As the API has them: name, channels, state, client_properties and so on; of this virtual host."""
        return [row for row in self.call("GET", "vhosts", self.vhost, "connections") if "name" in row]

    def channel_count(self) -> int:
        return sum(int(row.get("channels", 0)) for row in self.connections())

    def close_connection(self, name: str, *, reason: str = "closed by a test") -> None:
        """The broker sends connection.close (320, CONNECTION_FORCED) and the reason."""
        self._gone_is_fine("DELETE", "connections", name, headers={"X-Reason": reason})

    def close_connections(self, *, reason: str = "closed by a test") -> int:
        """Close all of this virtual host; answers how many there were."""
        names = [row["name"] for row in self.connections()]
        for name in names:
            self.close_connection(name, reason=reason)
        return len(names)

    # --- Policies, messages ---

    def set_policy(
        self,
        definition: Mapping[str, Any],
        *,
        pattern: str = ".*",
        name: str = "test",
        apply_to: str = "queues",
    ) -> None:
        body = {"pattern": pattern, "definition": dict(definition), "apply-to": apply_to}
        self.call("PUT", "policies", self.vhost, name, body=body)

    def clear_policy(self, name: str = "test") -> None:
        self._gone_is_fine("DELETE", "policies", self.vhost, name)

    def publish(self, queue: str, body: bytes, properties: Mapping[str, Any] | None = None) -> bool:
        """Put a message into a queue by the default exchange; False where there was no such queue."""
        said = self.call(
            "POST",
            "exchanges",
            self.vhost,
            "amq.default",
            "publish",
            body={
                "routing_key": queue,
                "properties": dict(properties or {}),
                "payload": base64.b64encode(body).decode(),
                "payload_encoding": "base64",
            },
        )
        return bool(said["routed"])

    def take(self, queue: str, count: int = 1) -> list[bytes]:
        """Remove messages from the head of a queue and answer their bodies."""
        body = {"count": count, "ackmode": "ack_requeue_false", "encoding": "base64"}
        rows = self.call("POST", "queues", self.vhost, queue, "get", body=body)
        return [_body(row) for row in rows]

    def alarms(self) -> set[str]:
        """Which of "memory" and "disk space" are on now, on any node."""
        try:
            self.call("GET", "health", "checks", "alarms")
        except AdminRefused as refused:
            if refused.status != _UNAVAILABLE:
                raise
            return {alarm["resource"] for alarm in json.loads(refused.reason)["alarms"]}
        return set()

    def _gone_is_fine(self, method: str, *path: str, headers: Mapping[str, str] | None = None) -> Any:
        try:
            return self.call(method, *path, headers=headers)
        except AdminRefused as refused:
            if refused.status != _NOT_FOUND:
                raise
            return None


def _body(row: Mapping[str, Any]) -> bytes:
    payload: str = row["payload"]
    return base64.b64decode(payload) if row["payload_encoding"] == "base64" else payload.encode()


def _queue(row: Mapping[str, Any]) -> QueueState:
    # A queue that was just made has no counts yet.
    return QueueState(
        name=row["name"],
        kind=row.get("type", "classic"),
        ready=int(row.get("messages_ready", 0)),
        unacked=int(row.get("messages_unacknowledged", 0)),
        consumers=int(row.get("consumers", 0)),
        arguments=dict(row.get("arguments", {})),
        policy=row.get("policy"),
    )
