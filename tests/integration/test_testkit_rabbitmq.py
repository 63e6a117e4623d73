"""A private RabbitMQ does what the tests of the broker ask of it, and leaves nothing behind.

What a verb is said to do is looked at from a client's side, by aio-pika: the broker's own word for it would
prove little.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import aiormq
import psutil
import pytest

from bellwire_runtime.broker import node as node_module
from bellwire_runtime.broker.node import NodeFailed, NodeMissing, RabbitNode, find_bin_dir, speaks_amqp
from bellwire_testkit.certificates import Certificates, openssl_is_there
from bellwire_testkit.processes import Processes
from bellwire_testkit.proxy import Proxy
from bellwire_testkit.rabbitmq import Admin, AdminRefused, NodeTls, RabbitServer
from bellwire_testkit.waiting import wait_until, wait_until_async

QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}

OWNER = """
import os, sys, time
from bellwire_runtime.broker.node import RabbitNode
node = RabbitNode(management=False).start()
if (child := os.fork()) == 0:
    node.close()
    os._exit(0)
os.waitpid(child, 0)
print("after the fork:", node.evaluate("1 + 1"), node.folder, flush=True)
if sys.argv[1] == "stay":
    time.sleep(120)
"""

ORDINARY_USER = """
import encodings.idna, os
from pathlib import Path
from bellwire_runtime.broker.node import RabbitNode
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with RabbitNode(management=False) as node:
    print(Path(f"/proc/{node.pid}").stat().st_uid, node.evaluate("1 + 1"))
"""


def at_home_in(folder: str) -> list[str]:
    """The command lines of all processes that have the folder for their home."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [command for command in found if command]  # a process that has ended has none


async def connected(url: str) -> aio_pika.abc.AbstractConnection:
    return await aio_pika.connect(url, timeout=10)


async def ignore(message: aio_pika.abc.AbstractIncomingMessage) -> None:
    pass


async def take_no_notice(message: aiormq.abc.DeliveredMessage) -> None:
    pass


# --- The node ---


def test_listens_on_the_loopback_only_and_on_no_usual_port(own_rabbitmq: RabbitServer) -> None:
    folder = own_rabbitmq._running.folder  # type: ignore[attr-defined]
    commands = at_home_in(str(folder))
    assert any("epmd" in command for command in commands)
    sockets = psutil.Process(own_rabbitmq.pid).net_connections("tcp")
    addresses = {one.laddr for one in sockets if one.status == psutil.CONN_LISTEN}
    assert len(addresses) == 3  # AMQP, HTTP, Erlang's own
    for host, port in addresses:
        assert host == "127.0.0.1"
        assert 20000 <= port < 32000


@pytest.mark.slow
def test_data_outlive_a_stop_and_a_kill_and_not_a_wipe(own_rabbitmq: RabbitServer) -> None:
    admin = own_rabbitmq.admin
    admin.create_vhost("kept")
    kept = admin.at("kept")
    kept.declare_queue("q", QUORUM)
    assert kept.publish("q", b"one", {"delivery_mode": 2})
    url, before = own_rabbitmq.url, own_rabbitmq.pid
    own_rabbitmq.restart()
    assert (own_rabbitmq.url, own_rabbitmq.pid != before) == (url, True)
    own_rabbitmq.kill()
    assert not speaks_amqp(own_rabbitmq.host, own_rabbitmq.port)
    own_rabbitmq.start()
    assert kept.wait_for_queue("q", depth=1).kind == "quorum"
    assert kept.take("q") == [b"one"]
    own_rabbitmq.wipe()
    assert not speaks_amqp(own_rabbitmq.host, own_rabbitmq.port)
    own_rabbitmq.restore()
    assert own_rabbitmq.url == url
    assert admin.vhosts() == ["/"]


def test_start_twice_is_refused(own_rabbitmq: RabbitServer) -> None:
    with pytest.raises(NodeFailed, match="running already"):
        own_rabbitmq.start()


def test_restore_undoes_what_a_test_did(own_rabbitmq: RabbitServer) -> None:
    own_rabbitmq.admin.create_vhost("left behind")
    own_rabbitmq.set_consumer_timeout(10_000)
    own_rabbitmq.alarm()
    own_rabbitmq.disk_alarm()
    assert own_rabbitmq.admin.alarms() == {"memory", "disk space"}
    own_rabbitmq.restore()
    assert own_rabbitmq.admin.alarms() == set()
    assert own_rabbitmq.admin.vhosts() == ["/"]
    assert own_rabbitmq.evaluate("application:get_env(rabbit, consumer_timeout)") == "{ok,1800000}"


def test_settings_reach_the_node_and_bad_ones_are_told_in_its_words() -> None:
    with RabbitNode(settings={"consumer_timeout": "10000"}, management=False) as node:
        assert node.evaluate("application:get_env(rabbit, consumer_timeout)") == "{ok,10000}"
        assert node.evaluate("erlang:system_info(schedulers)") == "1"
        with pytest.raises(NodeFailed, match="without the management"):
            _ = node.management_url
        with pytest.raises(NodeFailed, match=r"no TLS listener"):
            _ = node.tls_url
        with pytest.raises(NodeFailed, match="undef"):
            node.evaluate("no_such:function()")
        folder = node.folder
    assert not folder.exists()
    node = RabbitNode(settings={"tcp_listeners": "not a term ("})
    with pytest.raises(NodeFailed, match="failed_to_read_advanced_configuration_file"):
        node.start()
    node.close()
    assert at_home_in(str(node.folder)) == []


def test_a_port_taken_meanwhile_is_exchanged_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        real = node_module._free_ports
        ports = real(6)
        # Erlang's own port: of all, the one whose trouble shows first.
        ports[4] = taken.getsockname()[1]
        monkeypatch.setattr(node_module, "_free_ports", lambda count: ports[:count])
        node = RabbitNode(management=False)
        monkeypatch.setattr(node_module, "_free_ports", real)
        with node:
            assert node.port != ports[0]
            assert "could not bind to distribution port" in node.log.read_text()


def test_missing_binaries_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: real(path) and "rabbitmq" not in str(path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeMissing, match=r"^No RabbitMQ .* apt-get install rabbitmq-server$"):
        RabbitServer(source="binaries").start()
    monkeypatch.undo()
    assert (find_bin_dir() / "rabbitmqctl").exists()


# --- Nothing is left behind ---


def test_exit_of_the_owner_takes_the_node_along_and_that_of_its_fork_does_not(processes: Processes) -> None:
    owner = processes.start("python", "-c", OWNER, "leave")
    folder = owner.wait_for_output(r"after the fork: 2 (\S+)", deadline=60).group(1)
    assert owner.wait_exit(within=60) == 0
    assert at_home_in(folder) == []
    assert not Path(folder).exists()


def test_next_node_ends_those_of_the_killed(processes: Processes) -> None:
    owner = processes.start("python", "-c", OWNER, "stay")
    folder = owner.wait_for_output(r"after the fork: 2 (\S+)", deadline=60).group(1)
    owner.kill()
    left = at_home_in(folder)
    assert any("beam" in command for command in left)
    assert any("epmd" in command for command in left)
    RabbitNode().close()
    wait_until(lambda: not at_home_in(folder), describe="the orphans' end")
    assert not Path(folder).exists()


def test_a_killed_nodes_helpers_leave_with_it(own_rabbitmq: RabbitServer) -> None:
    """Erlang's helper processes have groups of their own, so no signal to the node's reaches them."""
    folder = str(own_rabbitmq._running.folder)  # type: ignore[attr-defined]
    assert len(at_home_in(folder)) > 2
    own_rabbitmq.kill()
    wait_until(lambda: ["epmd" in command for command in at_home_in(folder)] == [True], describe="epmd alone")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_as_an_ordinary_user(processes: Processes) -> None:
    """Becomes one after its imports, because the interpreter may lie where another user may not look."""
    user = processes.start("python", "-c", ORDINARY_USER)
    assert user.wait_exit(within=90) == 0, user.output
    assert user.output == "65534 2\n"


def test_ctrl_c_in_the_terminal_does_not_reach_it(own_rabbitmq: RabbitServer) -> None:
    assert os.getsid(own_rabbitmq.pid) == own_rabbitmq.pid != os.getsid(0)
    os.kill(own_rabbitmq.pid, signal.SIGINT)
    assert speaks_amqp(own_rabbitmq.host, own_rabbitmq.port)


# --- Somebody else's broker ---


def test_address_in_the_environment_wins(
    rabbitmq: RabbitServer, amqp_url: str, amqp_admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BELLWIRE_TEST_AMQP_URL", amqp_url)
    monkeypatch.setenv("BELLWIRE_TEST_AMQP_MANAGEMENT_URL", rabbitmq._running.management_url)
    with RabbitServer() as server:
        assert (server.source, server.controllable, server.url) == ("address", False, amqp_url)
        assert amqp_admin.vhost in server.admin.vhosts()
        for refused in (server.stop, server.kill, server.wipe, server.restart, server.alarm):
            with pytest.raises(NodeFailed, match="not ours"):
                refused()
    assert speaks_amqp(rabbitmq.host, rabbitmq.port)


def test_address_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLWIRE_TEST_AMQP_URL", "amqp://ana:p%40w@mq.example:6000/x?heartbeat=5")
    with RabbitServer() as server:
        assert server.vhost_url("a/b") == "amqp://ana:p%40w@mq.example:6000/a%2Fb?heartbeat=5"
        assert server.vhost_url("y", port=7) == "amqp://ana:p%40w@127.0.0.1:7/y?heartbeat=5"


# --- What tests may ask and do ---


async def test_each_test_has_a_virtual_host_of_its_own(
    amqp_url: str, amqp_admin: Admin, amqp_proxy: Proxy, amqp_proxy_url: str
) -> None:
    assert amqp_admin.queues() == {}
    async with await connected(amqp_proxy_url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("q", durable=True, arguments=QUORUM)
        assert amqp_proxy.connections == 1
    assert amqp_proxy_url.rpartition("/")[2] == amqp_url.rpartition("/")[2]
    assert amqp_admin.wait_for_queue("q", depth=0).arguments == QUORUM


async def test_counts_of_a_queue_and_who_consumes(amqp_url: str, amqp_admin: Admin) -> None:
    amqp_admin.declare_queue("q", {**QUORUM, "x-message-ttl": 120_000})
    for _ in range(3):
        assert amqp_admin.publish("q", b"hint", {"delivery_mode": 2, "content_type": "text/plain"})
    assert not amqp_admin.publish("nowhere", b"hint")
    async with await connected(amqp_url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=2)
        queue = await channel.get_queue("q")
        tag = await queue.consume(ignore)
        # A thread, so that the client's heartbeats and deliveries go on while the test waits.
        state = await asyncio.to_thread(amqp_admin.wait_for_queue, "q", depth=3, unacked=2)
        assert (state.ready, state.unacked) == (1, 2)
        assert await asyncio.to_thread(amqp_admin.wait_for_consumers, "q", 1) == [tag]
        await wait_until_async(lambda: amqp_admin.channel_count() == 1, describe="the channel to be counted")
    await asyncio.to_thread(amqp_admin.wait_for_queue, "q", depth=3, unacked=0)
    amqp_admin.purge("q")
    await asyncio.to_thread(amqp_admin.wait_for_queue, "q", depth=0)
    with pytest.raises(TimeoutError, match=r"to have depth 1.*ready=0"):
        amqp_admin.wait_for_queue("q", depth=1, deadline=0.1)
    with pytest.raises(TimeoutError, match=r"1 consumers of q"):
        amqp_admin.wait_for_consumers("q", 1, deadline=0.1)


async def test_a_closed_connection_and_a_deleted_queue_are_heard(amqp_url: str, amqp_admin: Admin) -> None:
    amqp_admin.declare_queue("q", QUORUM)
    connection = await aiormq.connect(amqp_url)
    channel = await connection.channel()
    cancelled = asyncio.Event()
    channel.on_consumer_cancel_callbacks.add(lambda _tag: cancelled.set())
    await channel.basic_consume("q", take_no_notice)
    amqp_admin.delete_queue("q")
    amqp_admin.delete_queue("q")
    assert amqp_admin.queue("q") is None
    async with asyncio.timeout(10):
        await cancelled.wait()
    await wait_until_async(amqp_admin.connections, describe="the connection to be listed")
    assert amqp_admin.close_connections(reason="by a test") == 1
    with pytest.raises(aiormq.exceptions.ConnectionClosed, match="by a test"):
        async with asyncio.timeout(10):
            await connection.closing
    await connection.close()


def test_policies(amqp_admin: Admin) -> None:
    amqp_admin.declare_queue("q", QUORUM)
    amqp_admin.set_policy({"max-length": 1, "overflow": "reject-publish"})
    wait_until(lambda: amqp_admin.queue("q").policy == "test", describe="the policy")  # type: ignore[union-attr]
    amqp_admin.clear_policy()
    amqp_admin.clear_policy()
    wait_until(lambda: amqp_admin.queue("q").policy is None, describe="no policy")  # type: ignore[union-attr]
    with pytest.raises(AdminRefused, match="PUT policies") as refused:
        amqp_admin.set_policy({"max-length": "many"})
    assert refused.value.status == 400


@pytest.mark.parametrize("alarm", ["alarm", "disk_alarm"])
async def test_an_alarm_blocks_who_publishes_and_ends(
    own_rabbitmq: RabbitServer, own_amqp_url: str, alarm: str
) -> None:
    async with await connected(own_amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("q", durable=True, arguments=QUORUM)
        await asyncio.to_thread(getattr(own_rabbitmq, alarm))
        publishing = asyncio.ensure_future(
            channel.default_exchange.publish(aio_pika.Message(b"hint"), routing_key="q")
        )
        done, _ = await asyncio.wait([publishing], timeout=0.5)
        assert not done
        await asyncio.to_thread(getattr(own_rabbitmq, alarm), False)
        async with asyncio.timeout(10):
            await publishing
            assert (await queue.get()).body == b"hint"


async def test_late_acknowledgements_close_the_channel_within_the_timeout_and_a_second_or_two(
    own_rabbitmq: RabbitServer, own_amqp_url: str
) -> None:
    own_rabbitmq.set_consumer_timeout(1000)
    async with await connected(own_amqp_url) as connection:
        channel = await connection.channel()
        closed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        channel.close_callbacks.add(lambda _channel, error: closed.set_result(error))
        queue = await channel.declare_queue("q", durable=True, arguments=QUORUM)
        await queue.consume(ignore)
        await channel.default_exchange.publish(aio_pika.Message(b"hint"), routing_key="q")
        async with asyncio.timeout(15):
            assert "timeout" in str(await closed)


async def test_channels_closed_by_the_broker_leave_their_connection(
    own_rabbitmq: RabbitServer, own_amqp_url: str
) -> None:
    async with await connected(own_amqp_url) as connection:
        channel = await connection.channel()
        closed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        channel.close_callbacks.add(lambda _channel, error: closed.set_result(error))
        vhost = own_amqp_url.rpartition("/")[2]
        assert await asyncio.to_thread(own_rabbitmq.close_channels, vhost) == 1
        async with asyncio.timeout(10):
            error = await closed
        assert re.search("PRECONDITION_FAILED.*unknown delivery tag", str(error))
        assert not (await connection.channel()).is_closed


# --- TLS ---


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if not openssl_is_there():
        pytest.skip("openssl is not installed")
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(certificates: Certificates) -> Iterator[RabbitServer]:
    tls = NodeTls(
        ca_file=certificates.ca_file,
        cert_file=certificates.server.cert_file,
        key_file=certificates.server.key_file,
        client_required=True,
    )
    with RabbitServer(tls=tls) as server:
        yield server


async def test_tls_with_a_clients_certificate(secure: RabbitServer, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    context.load_cert_chain(certificates.client.cert_file, certificates.client.key_file)
    async with await aio_pika.connect(secure.tls_url, ssl_context=context, timeout=10) as connection:
        assert not (await connection.channel()).is_closed


@pytest.mark.parametrize("who", ["nobody", "stranger"])
async def test_tls_refuses_who_is_not_known(
    secure: RabbitServer, certificates: Certificates, who: str
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca_file))
    if who == "stranger":
        context.load_cert_chain(certificates.stranger.cert_file, certificates.stranger.key_file)
    with pytest.raises((ssl.SSLError, OSError, aiormq.exceptions.AMQPError)):
        await aio_pika.connect(secure.tls_url, ssl_context=context, timeout=10)


async def test_a_client_that_trusts_somebody_else_refuses_the_server(
    secure: RabbitServer, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.stranger.cert_file))
    with pytest.raises((ssl.SSLError, OSError)):
        await aio_pika.connect(secure.tls_url, ssl_context=context, timeout=10)
