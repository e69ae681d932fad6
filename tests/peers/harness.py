"""Meshes on real loopback sockets, and a line between them that can be cut, held and healed."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from walrq.peers.incoming import Admit
from walrq.peers.mesh import Mesh
from walrq.peers.tls import PeerTls
from walrq.protocol.peer import (
    NONCE_BYTES,
    AcceptorHandshake,
    DialerHandshake,
    PeerHello,
    Ping,
    Purpose,
    decode_item,
    encode_pong,
)
from walrq.raft.entries import Entry, Kind
from walrq.raft.membership import Member
from walrq.raft.messages import Append, Heartbeat, Message

SECRET = b"0123456789abcdef"
CLUSTER = "c-1"
# Real time that a thing may take which takes milliseconds; never waited out unless the test fails.
PATIENCE_S = 20


def bound() -> socket.socket:
    """A free port of this machine's own."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def address_of(sock: socket.socket) -> str:
    """ "host:port" of a bound socket."""
    host, port = sock.getsockname()
    return f"{host}:{port}"


def uuid_of(node: str) -> bytes:
    """The mark of a node's data directory."""
    return node.encode().ljust(16, b"\0")


@attrs.define(eq=False)
class Node:
    """One mesh and what it told its driver."""

    name: str
    mesh: Mesh
    address: str
    scope: trio.CancelScope
    got: list[Message]
    news: list[tuple[str, str]]
    members: dict[str, Member]
    filled: list[Append]

    def up(self) -> set[str]:
        """Peers whose last news is that they can be talked to."""
        last = {node: what for what, node in self.news}
        return {node for node, what in last.items() if what == "up"}

    async def wait_up(self, *nodes: str) -> None:
        """Until links to all of them stand."""
        await until(lambda: set(nodes) <= self.up())

    async def wait_up_without_time(self, *nodes: str) -> None:
        """The same under a clock that stands still."""
        for _ in range(2_000):
            if set(nodes) <= self.up():
                return
            await trio.testing.wait_all_tasks_blocked(0.005)
        raise AssertionError(self.mesh.stats())

    async def wait_got(self, count: int) -> None:
        """Until so many messages arrived."""
        await until(lambda: len(self.got) >= count)


async def until(condition: Callable[[], object]) -> None:
    """Until it is so: asks at each turn of the loop, a few times a millisecond at most."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # conditions of many kinds, none of which rings a bell
            await trio.sleep(0.002)


async def pass_time(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let time go by in steps, and everything happen that happens in each of them."""
    for _ in range(int(seconds / 0.25)):
        clock.jump(0.25)
        await trio.testing.wait_all_tasks_blocked(0.005)


@attrs.define(eq=False)
class Group:
    """Nodes that are started one by one and know each other by name."""

    nursery: trio.Nursery
    nodes: dict[str, Node] = attrs.field(factory=dict)

    async def start(
        self,
        name: str,
        members: Mapping[str, str] | None = None,
        *,
        sock: socket.socket | None = None,
        address: str | None = None,
        cluster: str = CLUSTER,
        secret: bytes = SECRET,
        disk_uuid: bytes | None = None,
        tls: PeerTls | None = None,
        admit: Admit | None = None,
        deliver: Callable[[Message], None] | None = None,
        fill: Callable[[Append], Append | None] | None = None,
        listens: bool = True,
    ) -> Node:
        """A node whose members (name -> address) are these; `address` is the one that it tells."""
        sock = sock or bound()
        own = address_of(sock)
        got: list[Message] = []
        news: list[tuple[str, str]] = []
        filled: list[Append] = []
        known = {node: Member(node, where) for node, where in (members or {}).items()}

        def fill_all(append: Append) -> Append:
            filled.append(append)
            return with_entries(append)

        mesh = Mesh(
            node_id=name,
            disk_uuid=uuid_of(name) if disk_uuid is None else disk_uuid,
            cluster_id=lambda: cluster,
            secret=secret,
            listener=sock if listens else None,
            address=own if address is None else address,
            endpoints=lambda: {"cbor": f"{name}:50051"},
            members=lambda: known,
            deliver=deliver or got.append,
            fill=fill or fill_all,
            link_up=lambda node, uuid, where: news.append(("up", node)),
            link_lost=lambda node: news.append(("lost", node)),
            tls=tls,
            admit=admit,
        )
        scope = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[str]) -> None:
            with scope:
                await mesh.run(task_status)

        await self.nursery.start(run)
        if not listens:
            sock.close()
        node = self.nodes[name] = Node(name, mesh, own, scope, got, news, known, filled)
        return node


@asynccontextmanager
async def group() -> AsyncIterator[Group]:
    """Nodes that end with the block."""
    async with trio.open_nursery() as nursery:
        yield Group(nursery)
        nursery.cancel_scope.cancel()


async def start_all(nodes: Group, *names: str) -> list[Node]:
    """Nodes that know each other, all links up."""
    socks = {name: bound() for name in names}
    members = {name: address_of(sock) for name, sock in socks.items()}
    started = [await nodes.start(name, members, sock=socks[name]) for name in names]
    for node in started:
        await node.wait_up(*(set(names) - {node.name}))
    return started


class Line:
    """A forwarder that stands between two nodes: passes, holds (takes nothing any more), or is cut (refuses)."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._open = trio.Event()
        self._open.set()
        self._alive: set[trio.CancelScope] = set()
        self._refusing = False
        self.connections = 0

    def hold(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._open = trio.Event()

    def release(self) -> None:
        """Everything passes again."""
        self._open.set()

    def cut(self) -> None:
        """All connections end, new ones end at once."""
        self._refusing = True
        for scope in self._alive:
            scope.cancel()

    def heal(self) -> None:
        """New ones pass."""
        self._refusing = False

    @classmethod
    async def before(cls, nodes: Group, name: str) -> tuple[Line, Node]:
        """A line, and a node that is reached over it only."""
        sock = bound()
        line = cls(address_of(sock))
        where = await nodes.nursery.start(line.run)
        return line, attrs.evolve(await nodes.start(name, sock=sock, address=where), address=where)

    async def run(self, task_status: trio.TaskStatus[str]) -> None:
        """Started with the address to connect to."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(address_of(listener.socket))
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            if self._refusing:
                return
            self.connections += 1
            host, _, port = self.target.rpartition(":")
            with trio.CancelScope() as scope:
                self._alive.add(scope)
                try:
                    async with await trio.open_tcp_stream(host, int(port)) as onward:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(self._carry, stream, onward, nursery.cancel_scope)
                            nursery.start_soon(self._carry, onward, stream, nursery.cancel_scope)
                finally:
                    self._alive.discard(scope)

    async def _carry(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some(65_536):
                await self._open.wait()
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


def beat(sender: str, receiver: str, number: int = 0) -> Heartbeat:
    """A small message that can be told from others."""
    return Heartbeat(CLUSTER, sender, receiver, 1, 0, number)


def append(sender: str, receiver: str, index: int, body: bytes = b"x", *, filled: bool = True) -> Append:
    """One entry at `index`, in it or yet to be filled in."""
    bare = Append(CLUSTER, sender, receiver, 1, index, 1 if index else 0, index + 1, 0)
    return bare.filled([Entry(1, Kind.COMMANDS, body)]) if filled else bare


def with_entries(bare: Append, body: bytes = b"from the log") -> Append:
    """What a log would make of it."""
    return bare.filled([Entry(1, Kind.COMMANDS, body)] * (bare.last_index - bare.prev_index))


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Log lines that begin with `event`."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "walrq.peers" and record.getMessage().startswith(event) and record.levelno >= logging.INFO
    ]


async def shake(stream: trio.abc.Stream, handshake: DialerHandshake | AcceptorHandshake) -> None:
    """A handshake by hand."""
    while True:
        output = handshake.take_output()
        if output:
            await stream.send_all(output)
        if handshake.peer is not None:
            return
        data = await stream.receive_some(65_536)
        if not data:
            handshake.receive_eof()
        handshake.receive(bytes(data))


def hello(node: str, **changes: object) -> PeerHello:
    """How a node introduces itself."""
    return attrs.evolve(PeerHello(CLUSTER, node, uuid_of(node)), **changes)  # type: ignore[arg-type]


def dialer(own: PeerHello, secret: bytes = SECRET) -> DialerHandshake:
    """The dialing end of a handshake, which judges nobody."""
    return DialerHandshake(secret=secret, hello=own, nonce=os.urandom(NONCE_BYTES))


async def dial(address: str) -> trio.SocketStream:
    """A plain connection to a node."""
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


class Puppet:
    """A peer that knows the secret and does only as it is told: reads nothing of bulk until `gate` opens.

    Attributes:
        got: the messages that it read, by purpose.
        mute: it answers no ping.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = trio.Event()
        self.mute = False
        self.got: dict[Purpose, list[Message]] = {Purpose.CONTROL: [], Purpose.BULK: []}

    async def run(self, task_status: trio.TaskStatus[str]) -> None:
        """Started with the address to connect to."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(address_of(listener.socket))
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            own = hello(self.name, purpose=Purpose.ANSWER)
            handshake = AcceptorHandshake(secret=SECRET, hello=own, nonce=os.urandom(NONCE_BYTES))
            await shake(stream, handshake)
            assert handshake.peer is not None
            purpose = handshake.peer.purpose
            if purpose is Purpose.BULK:
                await self.gate.wait()
            while data := await stream.receive_some(1 << 20):
                for body in handshake.frames.feed(bytes(data)):
                    item = decode_item(body, handshake.peer.node)
                    if isinstance(item, Ping):
                        if self.mute:
                            continue
                        await stream.send_all(encode_pong(item.number))
                    else:
                        assert isinstance(item, Message)
                        self.got[purpose].append(item)
