"""What others say to this node: connections are accepted, prove themselves, and are read until they end.

Strangers cost little: a handshake has a deadline, there are at most PEER_PENDING_MAX of them, and one more ends the
oldest, so that a flood of silent ones keeps no peer out for longer than its own handshake takes. A node has one
connection for each purpose; a new one replaces it, unless it is the word of another process with the same name.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from walrq.errors import NotReady, Overloaded, RemoteProtocolError, WalrqError, WrongNode
from walrq.limits import (
    PEER_HANDSHAKE_S,
    PEER_JOIN_S,
    PEER_JOINS_MAX,
    PEER_NODES_MAX,
    PEER_PENDING_MAX,
    PEER_PING_S,
)
from walrq.peers.greeting import Connection, last_word
from walrq.peers.outgoing import SILENCE_S
from walrq.peers.reports import Complaints, cause
from walrq.peers.wire import READ_BYTES, READ_BYTES_LARGE, join_address
from walrq.protocol.peer import (
    Admission,
    PeerHello,
    Ping,
    Purpose,
    Refusal,
    decode_item,
    encode_admission,
    encode_pong,
    encode_refusal,
)
from walrq.raft.messages import Message

log = logging.getLogger("walrq.peers")

_BACKLOG: Final = 128
_ACCEPTS_PER_TURN_MAX: Final = 16
_BACK_OFF_S: Final = 0.1
_OUT_OF_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_THEIR_TROUBLE: Final = frozenset(
    (errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM)
)
# Two processes with one name: the one that was heard so lately is alive, whatever the other one says.
_ALIVE_S: Final = 3 * PEER_PING_S
# How often the deadline of a busy connection is moved.
_DEADLINE_STEP_S: Final = 0.25

Admit = Callable[[PeerHello], Awaitable[Admission]]


@attrs.define(eq=False)
class _Link:
    """A connection of an authenticated node.

    Attributes:
        scope: ends it: silent, or replaced.
        ended: `receive_ready` has seen its end; `failure` says why, None for an orderly one.
    """

    connection: Connection
    scope: trio.CancelScope
    heard_at: float
    silence_s: float
    replaced: bool = False
    ended: trio.Event = attrs.field(factory=trio.Event)
    failure: BaseException | None = None

    @property
    def hello(self) -> PeerHello:
        """What the node says of itself."""
        return self.connection.peer

    def replace(self) -> None:
        """End it: the node has a newer one."""
        self.replaced = True
        self.scope.cancel()


class Incoming:
    """All connections that others opened.

    Attributes:
        refused: handshakes that failed, since the start.
    """

    def __init__(
        self,
        *,
        accept: Callable[[socket.socket], Awaitable[Connection]],
        deliver: Callable[[Message], None],
        admit: Admit | None,
        met: Callable[[PeerHello], None],
        left: Callable[[str], None],
        complaints: Complaints,
        now: Callable[[], float],
    ) -> None:
        """
        Args:
            accept: shakes hands over an accepted socket, which it closes if that fails.
            deliver: takes a message of an authenticated node; RemoteProtocolError ends the connection.
            admit: decides about a node that wants to join; None refuses all.
            met: a node has a new connection here.
            left: a node has none any more.
        """
        self.refused = 0
        self._accept = accept
        self._deliver = deliver
        self._admit = admit
        self._met = met
        self._left = left
        self._complaints = complaints
        self._now = now
        self._links: dict[tuple[str, Purpose], _Link] = {}
        self._pending: OrderedDict[trio.CancelScope, None] = OrderedDict()
        self._joins = 0
        # All plain sockets of links: whoever waits for this one descriptor reads them all.
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._by_descriptor: dict[int, _Link] = {}
        self._listened_to = False
        self._alone = trio.Event()
        self._draining = trio.CancelScope()
        self._over = False

    def nodes(self) -> dict[str, PeerHello]:
        """Who is connected, and what it said about itself."""
        return {node: link.hello for (node, _), link in self._links.items()}

    def count(self, node: str) -> int:
        """How many connections of a node there are."""
        return sum(1 for each, _ in self._links if each == node)

    def judge_again(self, judge: Callable[[PeerHello], None]) -> None:
        """End the connections of nodes that may not talk any more: the members are others now.

        Args:
            judge: raises a WalrqError for a node that is not the right one.
        """
        for link in self._links.values():
            try:
                judge(link.hello)
            except WalrqError as error:
                link.failure = error
                link.scope.cancel()

    async def run(self, listener: socket.socket) -> None:
        """Accept until cancelled; then close the socket and all connections."""
        try:
            listener.setblocking(False)
            listener.listen(_BACKLOG)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain)
                while True:
                    await trio.lowlevel.wait_readable(listener)
                    if not self._accept_ready(listener, nursery):
                        await trio.sleep(_BACK_OFF_S)
        finally:
            listener.close()
            self._over = True
            self._close_epoll()

    def listen(self) -> int | None:
        """From now on the caller waits until the descriptor is readable, and then calls `receive_ready`.

        None where there is no such thing; then links are read as they are otherwise.
        """
        if self._epoll is None:
            return None
        self._listened_to = True
        self._draining.cancel()
        return self._epoll.fileno()

    def stop_listening(self) -> None:
        """The caller does not wait any more."""
        self._listened_to = False
        self._alone.set()
        self._close_epoll()

    def _close_epoll(self) -> None:
        """Once nobody uses it any more: whoever listens must not meet another file under its number."""
        if self._over and not self._listened_to and self._epoll is not None:
            self._epoll.close()

    async def _drain(self) -> None:
        """Read links, unless somebody else listens."""
        if self._epoll is None:
            return
        while True:
            if self._listened_to:
                self._alone = trio.Event()
                await self._alone.wait()
            with trio.CancelScope() as self._draining:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            if not self._listened_to:
                self.receive_ready()

    def _accept_ready(self, listener: socket.socket, nursery: trio.Nursery) -> bool:
        """Accept what waits; False when descriptors ran out."""
        for _ in range(_ACCEPTS_PER_TURN_MAX):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._complaints.warn("peer_accept_backs_off", "", cause(error))
                    return False
                if error.errno in _THEIR_TROUBLE:
                    continue
                raise
            scope = trio.CancelScope(deadline=self._now() + PEER_HANDSHAKE_S)
            self._pending[scope] = None
            if len(self._pending) > PEER_PENDING_MAX:
                oldest, _ = self._pending.popitem(last=False)
                oldest.cancel()
            nursery.start_soon(self._serve, sock, join_address(address), scope)
        return True

    async def _serve(self, sock: socket.socket, where: str, scope: trio.CancelScope) -> None:
        """One connection from its first byte to its last. No error of it goes further than this."""
        connection: Connection | None = None
        host = where.rpartition(":")[0]
        try:
            with scope:
                connection = await self._accept(sock)
            if connection is None:
                raise NotReady("no handshake in time")
        except (WalrqError, trio.BrokenResourceError) as error:
            self.refused += 1
            self._complaints.warn(f"peer_refused from={where}", host, error)
            return
        finally:
            self._pending.pop(scope, None)
            if connection is None:
                sock.close()
        peer = connection.peer
        try:
            match peer.purpose:
                case Purpose.PROBE:
                    pass
                case Purpose.JOIN:
                    await self._join(connection)
                case _:
                    await self._link(connection)
        except (WalrqError, trio.BrokenResourceError) as error:
            self._complaints.warn(f"peer_dropped node={peer.node} from={where} lane={peer.purpose}", peer.node, error)
            if isinstance(error, WalrqError):
                await last_word(connection.wire, encode_refusal(error))
        finally:
            connection.wire.close()

    async def _join(self, connection: Connection) -> None:
        peer = connection.peer
        if self._admit is None:
            raise NotReady("this node admits nobody")
        if self._joins >= PEER_JOINS_MAX:
            raise Overloaded(f"{PEER_JOINS_MAX} nodes are joining already", limit=PEER_JOINS_MAX)
        self._joins += 1
        try:
            with trio.fail_after(PEER_JOIN_S):
                admission = await self._admit(peer)
        except trio.TooSlowError:
            raise NotReady(f"no configuration with node {peer.node!r} was committed in {PEER_JOIN_S:g} s") from None
        finally:
            self._joins -= 1
        log.info("peer_admitted node=%s address=%s", peer.node, peer.address)
        await last_word(connection.wire, encode_admission(admission))

    async def _link(self, connection: Connection) -> None:
        """Read what a node says until it ends, is silent, is replaced, or says what does not belong here."""
        peer, wire = connection.peer, connection.wire
        key = peer.node, peer.purpose
        self._check_life(peer)
        older = self._links.pop(key, None)
        if older is not None:
            older.replace()
        silence_s = SILENCE_S[peer.purpose]
        now = self._now()
        link = _Link(connection, trio.CancelScope(deadline=now + silence_s), now, silence_s)
        self._links[key] = link
        self._met(peer)
        descriptor = wire.descriptor if self._epoll is not None else None
        try:
            with link.scope:
                if descriptor is None:
                    await self._read(link)
                else:
                    await self._wait_for_end(link, descriptor)
        finally:
            if self._links.get(key) is link:
                del self._links[key]
                if not self.count(peer.node):
                    self._left(peer.node)
        if link.failure is not None:
            raise link.failure
        if link.scope.cancelled_caught and not link.replaced:
            raise trio.BrokenResourceError(f"silent for {silence_s:g} s")

    def _check_life(self, peer: PeerHello) -> None:
        others = [link for (node, _), link in self._links.items() if node == peer.node and link.hello.life != peer.life]
        for link in others:
            if self._now() - link.heard_at < _ALIVE_S:
                raise WrongNode(
                    f"node {peer.node!r} is connected already, from another process: two nodes go by one id",
                    field="node",
                )
            link.replace()
        if peer.node not in self.nodes() and len(self.nodes()) >= PEER_NODES_MAX:
            raise Overloaded(f"{PEER_NODES_MAX} nodes are connected already", limit=PEER_NODES_MAX)

    async def _read(self, link: _Link) -> None:
        """A wire that only a task can read."""
        connection = link.connection
        wire, frames = connection.wire, connection.frames
        bodies = connection.extra
        while True:
            pongs = self._take(link, bodies)
            if pongs:
                await wire.send_all(pongs)
            data = await wire.receive_some(READ_BYTES_LARGE if frames.partial > READ_BYTES else READ_BYTES)
            bodies = self._feed(link, data)
            if not data:
                return

    async def _wait_for_end(self, link: _Link, descriptor: int) -> None:
        """A wire that `receive_ready` reads."""
        assert self._epoll is not None
        self._answer(link, self._take(link, link.connection.extra))
        self._by_descriptor[descriptor] = link
        self._epoll.register(descriptor, select.EPOLLIN)
        try:
            await link.ended.wait()
        finally:
            self._epoll.unregister(descriptor)
            del self._by_descriptor[descriptor]
        if link.failure is not None:
            raise link.failure

    def receive_ready(self) -> None:
        """Take what has come on any connection, without waiting: one read of each."""
        if self._epoll is None or self._epoll.closed:
            return
        for descriptor, _ in self._epoll.poll(0):
            link = self._by_descriptor[descriptor]
            if link.ended.is_set():
                continue
            wire, frames = link.connection.wire, link.connection.frames
            try:
                data = wire.receive_nowait(READ_BYTES_LARGE if frames.partial > READ_BYTES else READ_BYTES)
                if data is None:
                    continue
                self._answer(link, self._take(link, self._feed(link, data)))
                if not data:
                    link.ended.set()
            except (WalrqError, trio.BrokenResourceError) as error:
                # Its task closes it and says why.
                link.failure = error
                link.ended.set()

    def _feed(self, link: _Link, data: bytes) -> list[bytes]:
        """The frames that `data` completes; b"" is the end."""
        frames = link.connection.frames
        if not data:
            if frames.partial:
                raise RemoteProtocolError("the connection ended inside a frame")
            return []
        link.heard_at = at = self._now()
        if link.scope.deadline - at < link.silence_s - _DEADLINE_STEP_S:
            link.scope.deadline = at + link.silence_s
        return frames.feed(data)

    def _take(self, link: _Link, bodies: list[bytes]) -> list[bytes]:
        """Deliver what these frames say; returns the pongs that are owed.

        Raises:
            RemoteProtocolError: they say what does not belong here; what came before counts.
        """
        pongs = []
        node, deliver = link.connection.peer.node, self._deliver
        for body in bodies:
            item = decode_item(body, node)
            if isinstance(item, Message):
                deliver(item)
            elif isinstance(item, Ping):
                pongs.append(encode_pong(item.number))
            elif isinstance(item, Refusal):
                raise type(item.error)(f"the other end refused: {item.error.text}", **item.error.details)
            else:
                raise RemoteProtocolError(f"a link does not carry {type(item).__name__}")
        if link.connection.frames.error is not None:
            raise link.connection.frames.error
        return pongs

    def _answer(self, link: _Link, pongs: list[bytes]) -> None:
        if pongs and link.connection.wire.send_nowait(pongs):
            raise trio.BrokenResourceError("it does not read its pongs")
