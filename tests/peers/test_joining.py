"""A node without a cluster asks for one at any address it has, and is sent on to whoever decides."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from cbor2 import dumps

from tests.peers.harness import CLUSTER, SECRET, address_of, bound, group, hello, pass_time
from walrq.errors import (
    ConfigError,
    InvalidArgument,
    NotLeader,
    NotReady,
    RemoteProtocolError,
    Unauthenticated,
    WrongCluster,
    WrongNode,
)
from walrq.limits import PEER_JOIN_S, PEER_JOINS_MAX
from walrq.peers.joining import knock
from walrq.protocol.framing import frame
from walrq.protocol.peer import Admission, PeerHello, Purpose
from walrq.raft.membership import Configuration

pytestmark = pytest.mark.trio

CONFIGURATION = Configuration.of(["anna", "bert"], ["dora"])
DORA = hello("dora", cluster="", address="127.0.0.1:7004")


async def admit_all(peer: PeerHello) -> Admission:
    """A leader that takes everybody."""
    await trio.lowlevel.checkpoint()
    return Admission(CLUSTER, CONFIGURATION)


def dead() -> str:
    """An address where nobody listens."""
    with bound() as sock:
        return address_of(sock)


async def test_a_leader_admits_and_tells_the_cluster() -> None:
    """Name, data directory and address arrive; the cluster's id and members come back."""
    asked: list[PeerHello] = []

    async def admit(peer: PeerHello) -> Admission:
        asked.append(peer)
        return await admit_all(peer)

    async with group() as nodes:
        anna = await nodes.start("anna", admit=admit)
        admission = await knock([anna.address], DORA, SECRET)

        assert Admission(CLUSTER, CONFIGURATION) == admission
        assert [("dora", DORA.disk_uuid, "127.0.0.1:7004", "")] == [
            (peer.node, peer.disk_uuid, peer.address, peer.cluster) for peer in asked
        ]
        # It asked; it is no peer yet.
        assert {} == anna.mesh.stats()


async def test_any_member_will_do() -> None:
    """Dead addresses are passed over, a follower names the leader, and the leader is asked."""
    async with group() as nodes:
        anna = await nodes.start("anna", admit=admit_all)

        async def not_me(peer: PeerHello) -> Admission:
            raise NotLeader("bert does not lead", leader=anna.address)

        bert = await nodes.start("bert", admit=not_me)

        assert Admission(CLUSTER, CONFIGURATION) == await knock([dead(), bert.address], DORA, SECRET)


async def test_a_cluster_without_a_leader_is_to_be_asked_again() -> None:
    """The text says what each of them answered, and two followers that name each other are no endless way."""
    async with group() as nodes:
        socks = [bound(), bound()]

        async def ask_the_other(peer: PeerHello) -> Admission:
            raise NotLeader("no leader is known", leader=address_of(socks[1]))

        anna = await nodes.start("anna", admit=ask_the_other, sock=socks[0])
        bert = await nodes.start("bert", admit=ask_the_other, sock=socks[1])
        with pytest.raises(NotReady) as caught:
            await knock([anna.address, bert.address], DORA, SECRET)

        assert f"{anna.address}: no leader is known; {bert.address}: no leader is known" in str(caught.value)


async def test_nobody_there_is_said_with_the_addresses() -> None:
    """The first thing to check is the list."""
    where = dead()
    with pytest.raises(NotReady, match=f"{where} cannot be reached: Connection refused"):
        await knock([where], DORA, SECRET)
    with pytest.raises(NotReady, match="no address was given"):
        await knock([], DORA, SECRET)


async def test_a_refusal_for_good_is_not_asked_elsewhere() -> None:
    """A name that is taken is taken everywhere."""

    async def refuse(peer: PeerHello) -> Admission:
        raise InvalidArgument("node 'dora' is in the group already", field="node")

    async with group() as nodes:
        anna = await nodes.start("anna", admit=refuse)
        bert = await nodes.start("bert", admit=admit_all)
        with pytest.raises(InvalidArgument, match="in the group already"):
            await knock([anna.address, bert.address], DORA, SECRET)


async def test_a_wrong_secret_or_cluster_is_refused() -> None:
    """A node that belongs to another cluster does not wander into this one."""
    async with group() as nodes:
        anna = await nodes.start("anna", admit=admit_all)
        with pytest.raises(Unauthenticated):
            await knock([anna.address], DORA, b"the secret of another")
        with pytest.raises(WrongCluster):
            await knock([anna.address], hello("dora", cluster="c-2"), SECRET)
        with pytest.raises(WrongNode):
            await knock([anna.address], hello("anna", cluster=""), SECRET)


async def test_a_node_that_admits_nobody_says_so() -> None:
    """Rather than leaving the asker to wait."""
    async with group() as nodes:
        anna = await nodes.start("anna")
        with pytest.raises(NotReady, match="admits nobody"):
            await knock([anna.address], DORA, SECRET)


async def test_a_decision_that_does_not_come_is_not_waited_for(mock_clock: trio.testing.MockClock) -> None:
    """Without a quorum nothing is committed."""

    async def never(peer: PeerHello) -> Admission:
        await trio.sleep_forever()
        raise AssertionError

    caught: list[NotReady] = []

    async def ask(address: str) -> None:
        try:
            await knock([address], DORA, SECRET)
        except NotReady as error:
            caught.append(error)

    async with group() as nodes:
        anna = await nodes.start("anna", admit=never)
        nodes.nursery.start_soon(ask, anna.address)
        await trio.testing.wait_all_tasks_blocked(0.02)
        await pass_time(mock_clock, PEER_JOIN_S + 1)

        assert ["no configuration with node 'dora'" in str(error) for error in caught] == [True]


async def test_joins_are_bounded() -> None:
    """Each one waits for a commit; a flood of them is told to come back."""
    gate = trio.Event()

    async def slowly(peer: PeerHello) -> Admission:
        await gate.wait()
        return await admit_all(peer)

    answers: list[str] = []

    async def ask(address: str, node: str) -> None:
        try:
            await knock([address], hello(node, cluster=""), SECRET)
            answers.append("in")
        except NotReady as error:
            answers.append(str(error))

    async with group() as nodes:
        anna = await nodes.start("anna", admit=slowly)
        for number in range(PEER_JOINS_MAX + 1):
            nodes.nursery.start_soon(ask, anna.address, f"node{number}")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert ["are joining already" in answer for answer in answers] == [True]
        gate.set()
        with trio.fail_after(20):
            while len(answers) <= PEER_JOINS_MAX:
                await trio.testing.wait_all_tasks_blocked()

        assert PEER_JOINS_MAX == answers.count("in")


async def test_a_probe_tells_who_is_there_and_changes_nothing() -> None:
    """`cluster add` asks before it adds."""
    async with group() as nodes:
        anna = await nodes.start("anna")
        bert = await nodes.start("bert", cluster="")
        found = await anna.mesh.probe(bert.address)

        assert ("bert", bert.address, "", {"cbor": "bert:50051"}) == (
            found.node,
            found.address,
            found.cluster,
            dict(found.endpoints),
        )
        assert Purpose.ANSWER == found.purpose
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert {} == bert.mesh.stats()
        with pytest.raises(NotReady, match="cannot be reached: Connection refused"):
            await anna.mesh.probe(dead())
        with pytest.raises(ConfigError, match="not HOST:PORT"):
            await anna.mesh.probe("bert")


async def test_a_probe_of_something_that_is_no_peer_says_what_it_is() -> None:
    """An address of clients is the likeliest mistake."""

    async def client_port(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(100)
            await stream.send_all(frame(dumps([0, 80, "a connection begins with Hello", {}])))

    async with group() as nodes:
        anna = await nodes.start("anna")
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nodes.nursery.start_soon(trio.serve_listeners, client_port, [listener])
        with pytest.raises(RemoteProtocolError, match="not a node's peer address"):
            await anna.mesh.probe(address_of(listener.socket))
