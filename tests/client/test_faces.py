"""The blocking and the asynchronous client in a cluster whose leadership moves, over real sockets."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

import walrq
from tests.client.fake_server import Connection, FakeServer, running
from tests.client.socket_cluster import Cluster, three
from walrq import aio, api
from walrq.errors import Code, NotLeader, WrongCluster
from walrq.protocol.requests import Incoming

FACES = ("blocking", "asyncio", "trio")
pytestmark = pytest.mark.parametrize("face", FACES)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes, the first leads."""
    with three() as nodes:
        yield nodes


class Face:
    """One client behind the same awaitable calls, whichever it is."""

    def __init__(self, client: Any, *, blocking: bool) -> None:
        self.client = client
        self._blocking = blocking

    async def __call__(self, method: str, *args: Any, **more: Any) -> Any:
        """Call a method of the client."""
        call = getattr(self.client, method)
        if self._blocking:
            return await anyio.to_thread.run_sync(partial(call, *args, **more))
        return await call(*args, **more)


@contextlib.asynccontextmanager
async def connected(face: str, url: Any, **changes: Any) -> Any:
    """A client of the face."""
    if face == "blocking":
        client = await anyio.to_thread.run_sync(partial(walrq.connect, url, **changes))
        try:
            yield Face(client, blocking=True)
        finally:
            await anyio.to_thread.run_sync(client.close)
    else:
        async with aio.connect(url, **changes) as made:
            yield Face(made, blocking=False)


def run(face: str, scenario: Callable[[], Awaitable[None]]) -> None:
    """Play a scenario in the event loop of the face, with a bound that only a hang meets."""

    async def bounded() -> None:
        with anyio.fail_after(30):
            await scenario()

    anyio.run(bounded, backend="asyncio" if face == "blocking" else face)


async def arrived(node: FakeServer, kind: type[Any], count: int = 1) -> Incoming:
    """Wait until a node has been asked."""
    return await anyio.to_thread.run_sync(node.wait_for, kind, count)


def test_any_node_leads_to_the_leader(face: str, cluster: Cluster) -> None:
    """The session is opened there, the others are known, and the endpoint says where."""
    cluster.lead(2)

    async def scenario() -> None:
        async with connected(face, cluster.nodes[1].url) as client:
            await client("push", "q", b"x")
            assert cluster.nodes[2].port == client.client.nodes[-1].port
            assert 3 == len(client.client.nodes)
            assert f":{cluster.nodes[2].port}" in repr(client.client)

    run(face, scenario)
    assert [b"x"] == [payload for _, _, payload in cluster.nodes[0].messages]
    assert [] == cluster.nodes[1].asked


def test_a_leader_that_changed_is_followed(face: str, cluster: Cluster) -> None:
    """Between two calls, and again: each costs a hop."""

    async def scenario() -> None:
        async with connected(face, cluster.nodes[0].url) as client:
            for number in (0, 1, 2, 0):
                cluster.lead(number)
                await client("push", "q", b"%d" % number)

    run(face, scenario)
    assert [b"0", b"1", b"2", b"0"] == [payload for _, _, payload in cluster.nodes[0].messages]
    assert 1 == len(cluster.nodes[0].sessions)


@pytest.mark.parametrize("executes", [True, False])
@pytest.mark.parametrize("tells", [True, False])
def test_a_push_in_the_air_takes_effect_once(face: str, cluster: Cluster, executes: bool, tells: bool) -> None:
    """The leader loses its office, or dies, between the request and the answer."""
    cluster.holds, cluster.executes = (api.Push,), executes

    async def scenario() -> None:
        async with connected(face, cluster.nodes[0].url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client, "push", "q", b"x")
            await arrived(cluster.nodes[0], api.Push)
            cluster.holds = ()
            cluster.lead(1, tells=tells)
            if not tells:
                for connection in list(cluster.nodes[0].connections):
                    connection.cut()

    run(face, scenario)
    assert [b"x"] == [payload for _, _, payload in cluster.nodes[0].messages]


def test_a_parked_poll_moves_on_at_once(face: str, cluster: Cluster) -> None:
    """A worker waits where messages come."""
    cluster.holds = (api.Poll,)

    async def scenario() -> None:
        found: list[Any] = []

        async def poll() -> None:
            found.extend(await client("poll", "q", wait=20))

        async with connected(face, cluster.nodes[0].url) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                await arrived(cluster.nodes[0], api.Poll)
                cluster.lead(2)
                await arrived(cluster.nodes[2], api.Poll)
                cluster.holds = ()
                async with connected(face, cluster.nodes[2].url) as other:
                    await other("push", "q", b"m")
                connection, incoming = cluster._held.pop()
                connection.reply(incoming, cluster.nodes[2].list_queue(connection, incoming))  # type: ignore[arg-type]
            assert [b"m"] == [message.payload for message in found]
            await client("ack", found)

    run(face, scenario)
    assert 1 == len(cluster.nodes[0].settled)


def test_calls_that_travel_together_move_together(face: str, cluster: Cluster) -> None:
    """A merged batch is under way, more callers wait for it: every push takes effect once and gets its own id."""
    cluster.holds = (api.Push,)
    ids: list[str] = []

    async def scenario() -> None:
        async def push(number: int) -> None:
            ids.append(await client("push", "q", b"%d" % number))

        async with connected(face, cluster.nodes[0].url) as client, anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(push, number)
            await arrived(cluster.nodes[0], api.Push, 2)
            cluster.holds = ()
            cluster.lead(1)

    run(face, scenario)
    assert sorted(b"%d" % number for number in range(12)) == sorted(
        payload for _, _, payload in cluster.nodes[0].messages
    )
    assert 12 == len(set(ids))


def test_connecting_waits_out_an_election(face: str, cluster: Cluster) -> None:
    """The session cannot be opened yet; nodes that answer will elect somebody."""
    cluster.lead(None)

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:

            async def elect() -> None:
                await arrived(cluster.nodes[1], api.OpenSession)
                await arrived(cluster.nodes[0], api.OpenSession, 2)
                cluster.lead(2)

            tasks.start_soon(elect)
            async with connected(face, cluster.nodes[0].url, retry_first_s=0.001) as client:
                await client("push", "q", b"x")

    run(face, scenario)
    assert 1 == len(cluster.nodes[0].messages)


def test_connecting_to_a_cluster_without_a_leader_says_so(face: str, cluster: Cluster) -> None:
    """After the time-out, not for ever."""
    cluster.lead(None)

    async def scenario() -> None:
        with pytest.raises(NotLeader, match=r"no leader found at .*: this node does not lead"):
            async with connected(face, cluster.nodes[0].url, timeout_s=0.1, retry_first_s=0.01):
                raise AssertionError("entered without a leader")

    run(face, scenario)


def test_a_dead_leaders_name_is_no_dead_end(face: str, cluster: Cluster) -> None:
    """The others still name it; the client comes back to them until one leads."""
    cluster.holds = (api.Push,)
    with running() as gone:
        dead = f"127.0.0.1:{gone.port}"

    async def scenario() -> None:
        async with connected(face, cluster.nodes[0].url, retry_first_s=0.001) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client, "push", "q", b"x")
                await arrived(cluster.nodes[0], api.Push)
                cluster.hint = dead
                cluster.holds = ()
                cluster.lead(None)
                # At the others the push arrives again and again; then one is elected.
                await arrived(cluster.nodes[1], api.Push, 2)
                cluster.hint = None
                cluster.lead(2)

    run(face, scenario)
    assert [b"x"] == [payload for _, _, payload in cluster.nodes[0].messages]


def test_a_silent_leader_is_left(face: str, cluster: Cluster) -> None:
    """Stopped, or behind a cut cable: no reset comes, and no answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Its connections come about in the kernel; nobody reads them.
        cluster.hint = f"127.0.0.1:{listener.getsockname()[1]}"
        cluster.tell()

        async def scenario() -> None:
            async with connected(
                face, [cluster.nodes[1].url, cluster.nodes[0].url], node_timeout_s=0.05, retry_first_s=0.001
            ) as client:
                await client("push", "q", b"x")

        async def lead() -> None:
            await arrived(cluster.nodes[0], api.OpenSession)
            cluster.hint = None
            cluster.lead(0)

        async def both() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lead)
                await scenario()

        run(face, both)
    assert [b"x"] == [payload for _, _, payload in cluster.nodes[0].messages]


def test_a_leader_that_falls_silent_is_left(face: str, cluster: Cluster) -> None:
    """A request is under way and nothing comes, not even the answer to a probe."""
    stuck = threading.Event()

    def freeze(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) is api.Push:
            stuck.wait(20)
        return cluster.script(connection, incoming)

    cluster.nodes[0].script = freeze

    async def scenario() -> None:
        async with connected(face, cluster.nodes[0].url, node_timeout_s=0.1, retry_first_s=0.001) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client, "push", "q", b"x")
                await arrived(cluster.nodes[0], api.Push)
                cluster.lead(1)
            assert f":{cluster.nodes[1].port}" in repr(client.client)

    try:
        run(face, scenario)
        assert [b"x"] == [payload for _, _, payload in cluster.nodes[0].messages]
    finally:
        stuck.set()


def test_a_draining_node_is_left_for_the_new_leader(face: str, cluster: Cluster, caplog: Any) -> None:
    """A rolling restart is a line in the log, not an outage."""
    cluster.holds = (api.Poll,)
    caplog.set_level(logging.INFO, "walrq.client")

    async def scenario() -> None:
        async with connected(face, cluster.nodes[0].url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client, "poll", "q", wait=20))
            await arrived(cluster.nodes[0], api.Poll)
            cluster.leader = 1
            cluster.tell()
            (connection,) = cluster.nodes[0].connections
            connection.goaway(int(Code.DRAINING), "stopping")
            await client("push", "other", b"x")
            await arrived(cluster.nodes[1], api.Poll)
            tasks.cancel_scope.cancel() if face != "blocking" else cluster._held[-1][0].reply(
                cluster._held[-1][1], api.Polled(0, 30_000, ())
            )

    run(face, scenario)
    assert [b"x"] == [payload for _, _, payload in cluster.nodes[0].messages]
    levels = [record.levelno for record in caplog.records]
    assert logging.WARNING not in levels
    assert "it is stopping" in caplog.text


def test_a_hint_at_another_cluster_is_refused_in_words(face: str, cluster: Cluster, caplog: Any) -> None:
    """Nothing is ever sent there, the log tells whose mistake it is, and the calls go on elsewhere."""
    with running() as stranger:
        stranger.cluster = "other"

        async def scenario() -> None:
            async with connected(face, cluster.nodes[0].url, retry_first_s=0.001) as client:
                cluster.hint = f"127.0.0.1:{stranger.port}"
                cluster.leader = None
                cluster.tell()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client, "push", "q", b"x")
                    await arrived(cluster.nodes[2], api.Push)
                    cluster.hint = None
                    cluster.lead(2)

        run(face, scenario)
        assert [] == stranger.asked
    assert [b"x"] == [payload for _, _, payload in cluster.nodes[0].messages]
    assert "belongs to cluster other, this client talks to cluster cluster" in caplog.text


def test_two_clusters_in_one_address_are_a_clear_error(face: str, cluster: Cluster) -> None:
    """Whoever mixed them up learns it when the first one is gone, instead of working in the other."""
    with running() as stranger:
        stranger.cluster = "other"

        async def scenario() -> None:
            async with connected(
                face, f"{cluster.nodes[0].url},127.0.0.1:{stranger.port}", retry_first_s=0.001, timeout_s=1.0
            ) as client:
                for node in cluster.nodes:
                    node.cluster = "other"
                for connection in [each for node in cluster.nodes for each in node.connections]:
                    connection.cut()
                with pytest.raises(WrongCluster, match="belongs to cluster other"):
                    await client("push", "q", b"x")

        run(face, scenario)
        assert [] == stranger.asked
    assert [] == cluster.nodes[0].messages


def test_membership_is_asked_and_changed(face: str, cluster: Cluster) -> None:
    """The four words for operators."""
    state = api.ClusterState("n1", "cluster", "n1", 3, 9, 9, (api.MemberState("n1", "leader", "a:1", "a:2"),))
    asked: list[api.Request] = []

    def script(connection: Connection, incoming: Incoming) -> api.Reply | None:
        if type(incoming.request) in (api.ClusterStatus, api.AddNode, api.RemoveNode, api.TransferLeadership):
            asked.append(incoming.request)
            assert incoming.sequence is None
            return state
        return cluster.script(connection, incoming)

    cluster.nodes[0].script = script

    async def scenario() -> None:
        async with connected(face, cluster.nodes[0].url) as client:
            assert state == await client("cluster")
            assert state == await client("add_node", "n4", "10.0.0.4:7", learner=True, timeout=60)
            assert state == await client("remove_node", "n2")
            assert state == await client("transfer_leadership")
            assert state == await client("transfer_leadership", "n3")

    run(face, scenario)
    assert [
        api.ClusterStatus(),
        api.AddNode("n4", "10.0.0.4:7", True),
        api.RemoveNode("n2"),
        api.TransferLeadership(),
        api.TransferLeadership("n3"),
    ] == asked


def test_the_connections_of_a_pool_share_what_they_know(face: str, cluster: Cluster) -> None:
    """The second one goes to the leader that the first one found, though the given address is dead by then."""

    async def scenario() -> None:
        async with connected(face, cluster.nodes[0].url, pool=2, retry_first_s=0.001) as client:
            cluster.lead(1)
            together = threading.Barrier(2)

            def push(payload: bytes) -> None:
                together.wait(10)
                client.client.push("q", payload)

            async with anyio.create_task_group() as tasks:
                for payload in (b"a", b"b"):
                    if face == "blocking":
                        tasks.start_soon(anyio.to_thread.run_sync, push, payload)
                    else:
                        tasks.start_soon(client, "push", "q", payload)

    run(face, scenario)
    assert [b"a", b"b"] == sorted(payload for _, _, payload in cluster.nodes[0].messages)


def test_a_list_of_addresses_is_an_address(face: str, cluster: Cluster) -> None:
    """However the program keeps them."""
    with running() as gone:
        dead = f"walrq://127.0.0.1:{gone.port}"

    async def scenario() -> None:
        async with connected(face, [dead, f"127.0.0.1:{cluster.nodes[1].port}/?window=3"]) as client:
            assert 3 == client.client.config.window
            await client("push", "q", b"x")

    run(face, scenario)
    assert 1 == len(cluster.nodes[0].messages)
