"""All links of one node: whom to connect to, who may connect, and messages by name.

Connected to are all members, and those who are connected here: a node that was just added knows no members yet, and
answers whoever sends it the log.
"""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from walrq.peers.greeting import Connection, Credentials, accept, dial
from walrq.peers.incoming import Admit, Incoming
from walrq.peers.joining import probe
from walrq.peers.lane import Lane
from walrq.peers.outgoing import SILENCE_S, Outgoing, Surroundings
from walrq.peers.reports import Complaints, PeerStats
from walrq.peers.tls import PeerTls
from walrq.peers.wire import join_address
from walrq.protocol.peer import PeerHello, Purpose, check_peer, check_secret
from walrq.raft.membership import Member
from walrq.raft.messages import Append, Message

log = logging.getLogger("walrq.peers")

# Nodes whose addresses are remembered.
_REMEMBERED_MAX: Final = 256


class Mesh:
    """See the package. Everything but `run` and `probe` returns at once; all of it in Trio's thread.

    Attributes:
        unroutable: messages to nodes that this one has no link to, dropped.
    """

    def __init__(
        self,
        *,
        node_id: str,
        disk_uuid: bytes,
        cluster_id: Callable[[], str],
        secret: bytes,
        listener: socket.socket | None,
        address: str,
        endpoints: Callable[[], Mapping[str, str]],
        members: Callable[[], Mapping[str, Member]],
        deliver: Callable[[Message], None],
        fill: Callable[[Append], Append | None],
        link_up: Callable[[str, bytes, str], None],
        link_lost: Callable[[str], None],
        tls: PeerTls | None = None,
        admit: Admit | None = None,
        version: int = 1,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """
        Args:
            node_id, disk_uuid: who this node is.
            cluster_id: the cluster it belongs to now; "" for none yet.
            secret: what all nodes of the cluster know.
            listener: a bound socket that others connect to; None to be reached by nobody. Closed by `run`.
            address: where peers reach this node ("host:port"), told to them; "" for nowhere.
            endpoints: where clients reach it, by door; told to peers as a connection begins.
            members: whom to connect to; this node in it is skipped. Say `members_changed` when it may differ.
            deliver: takes a message of an authenticated peer. RemoteProtocolError ends that connection, anything
                else ends `run`.
            fill: blocking, called in threads, one at a time for each peer: an append with its entries; None when the
                log no longer has them, and then `link_lost` follows.
            link_up: a peer can be talked to: its name, data directory, own address.
            link_lost: what was sent to a peer lately may not arrive. Also while it stays connected. Never called from
                inside `send`.
            admit: decides about a node that asks to join, within PEER_JOIN_S: the cluster with it, committed, or a
                WalrqError. NotLeader with details leader="host:port" (the leader's peer address) sends it there.
            version: the newest version of the state machine that this node can be, told to peers.
            draw: from 0 to 1, for jitter.

        Raises:
            ConfigError: the secret is too short or too long.
        """
        self.unroutable = 0
        self._node_id = node_id
        self._disk_uuid = disk_uuid
        self._cluster_id = cluster_id
        self._credentials = Credentials(check_secret(secret), tls)
        self._listener = listener
        self._address = address
        self._endpoints = endpoints
        self._members = members
        self._version = version
        self._life = int.from_bytes(os.urandom(8), "big")
        # What nodes said about themselves last, members or not.
        self._told: dict[str, PeerHello] = {}
        self._peers: dict[str, Outgoing] = {}
        self._changed = trio.Event()
        self._complaints = Complaints(log, trio.current_time)
        self._incoming = Incoming(
            accept=self._accept,
            deliver=deliver,
            admit=admit,
            met=self._met,
            left=lambda node: self.members_changed(),
            complaints=self._complaints,
            now=trio.current_time,
        )
        self._around = Surroundings(
            dial=self._dial,
            addresses=self._addresses,
            fill=fill,
            link_up=link_up,
            link_lost=link_lost,
            complaints=self._complaints,
            now=trio.current_time,
            draw=draw,
        )

    # --- for the driver -------------------------------------------------------------------------------------
    def send(self, messages: Iterable[Message]) -> None:
        """Send each to its receiver, as far as that can be done without waiting; queue or drop the rest."""
        peers = self._peers
        lanes: dict[Lane, None] = {}
        for message in messages:
            peer = peers.get(message.receiver)
            if peer is None:
                self.unroutable += 1
            else:
                lanes[peer.put(message)] = None
        for lane in lanes:
            lane.flush()

    def listen(self) -> int | None:
        """Take over from Trio: from now on the caller waits until this descriptor is readable, and then calls
        `receive_ready`. None where there is no such thing. For a loop of its own that must not be late for answers.
        """
        return self._incoming.listen()

    def stop_listening(self) -> None:
        """The caller does not wait any more."""
        self._incoming.stop_listening()

    def receive_ready(self) -> None:
        """Take what has come, without waiting: `deliver` is called from inside."""
        self._incoming.receive_ready()

    def members_changed(self) -> None:
        """`members` may say something else now."""
        self._changed.set()

    def endpoints_of(self, node: str) -> Mapping[str, str]:
        """Where clients reach a node, by door, as it told last; empty for one that never told."""
        told = self._told.get(node)
        return {} if told is None else told.endpoints

    def version_of(self, node: str) -> int:
        """The newest version of the state machine that a node can be, as it told last; 1 for one that never told."""
        told = self._told.get(node)
        return 1 if told is None else told.version

    def stats(self) -> dict[str, PeerStats]:
        """Figures of each peer."""
        return {node: peer.stats(self._incoming.count(node)) for node, peer in self._peers.items()}

    @property
    def refused(self) -> int:
        """Connections whose handshake failed."""
        return self._incoming.refused

    async def probe(self, address: str) -> PeerHello:
        """Who answers at an address.

        Raises:
            NotReady: nobody.
            WalrqError: somebody with whom this node cannot talk, and why.
        """
        return await probe(address, self.hello(Purpose.PROBE), self._credentials)

    def hello(self, purpose: Purpose) -> PeerHello:
        """Who this node is."""
        return PeerHello(
            cluster=self._cluster_id(),
            node=self._node_id,
            disk_uuid=self._disk_uuid,
            address=self._address,
            endpoints=dict(self._endpoints()),
            purpose=purpose,
            life=self._life,
            version=self._version,
        )

    # --- tasks ----------------------------------------------------------------------------------------------
    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep all links until cancelled. Started with the address that is listened at, "" for none."""
        async with trio.open_nursery() as nursery:
            where = ""
            if self._listener is not None:
                where = join_address(self._listener.getsockname())
                nursery.start_soon(self._incoming.run, self._listener)
            self._reconcile(nursery)
            task_status.started(where)
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                self._reconcile(nursery)

    def _reconcile(self, nursery: trio.Nursery) -> None:
        """Start links to whom there are none, end those to whom nobody wants to talk any more."""
        # A removed node that still runs may not speak for a new one of its name: it would be counted for another disk.
        self._incoming.judge_again(lambda peer: self._judge(peer, None))
        members = self._members()
        for node in [node for node, peer in self._peers.items() if peer.is_another_than(members.get(node))]:
            self._peers.pop(node).stop()
        wanted = set(members) | set(self._incoming.nodes())
        wanted.discard(self._node_id)
        for node in sorted(set(self._peers) - wanted):
            self._peers.pop(node).stop()
            log.info("peer_left node=%s", node)
        for node in sorted(wanted - set(self._peers)):
            peer = self._peers[node] = Outgoing(node, self._around)
            nursery.start_soon(peer.run)

    # --- whom to talk to ------------------------------------------------------------------------------------
    def _judge(self, peer: PeerHello, expected: str | None) -> None:
        member = self._members().get(peer.node)
        check_peer(
            self.hello(Purpose.ANSWER),
            peer,
            expected=expected,
            bound=b"" if member is None else member.disk_uuid,
        )

    async def _dial(self, address: str, node: str, purpose: Purpose) -> Connection:
        connection = await dial(
            address,
            self.hello(purpose),
            self._credentials,
            lambda peer: self._judge(peer, node),
            silence_s=SILENCE_S[purpose],
        )
        self._remember(connection.peer)
        return connection

    async def _accept(self, sock: socket.socket) -> Connection:
        return await accept(sock, self.hello(Purpose.ANSWER), self._credentials, lambda peer: self._judge(peer, None))

    def _addresses(self, node: str) -> list[str]:
        """Where a node may be: as it says itself, which is the newest there is, then as the cluster knows it."""
        told = self._told.get(node)
        member = self._members().get(node)
        found = [told.address if told is not None else "", member.address if member is not None else ""]
        return list(dict.fromkeys(address for address in found if address))

    def _remember(self, peer: PeerHello) -> None:
        self._told.pop(peer.node, None)
        self._told[peer.node] = peer
        if len(self._told) > _REMEMBERED_MAX:
            del self._told[next(iter(self._told))]

    def _met(self, peer: PeerHello) -> None:
        """A node has connected here: it is there to be connected to."""
        self._remember(peer)
        outgoing = self._peers.get(peer.node)
        if outgoing is None:
            self.members_changed()
        else:
            outgoing.hurry()
