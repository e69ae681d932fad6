"""The WebSocket door: pages and whoever else speaks RFC 6455.

    run
    ├── accepting     the listener of every door's kind
    ├── sweeping      who is silent is pinged, who stays so is closed (`websocket_front.py`)
    ├── links         of sessions, on a node that does not lead (`session_link.py`)
    └── a task for each connection: handshake (`websocket_greeting.py`), then its language's front

An error in one connection ends that connection only.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, Final

import attrs
import trio

from walrq import api
from walrq.daemon import listener
from walrq.doors.opening import Entrance
from walrq.doors.session_link import SessionLink
from walrq.doors.websocket_front import JsonConnection, WebSocketFront
from walrq.doors.websocket_greeting import HEAD_END, JSON, Admitted, Refused, first_look, judge, refuse
from walrq.doors.websocket_stream import Growing, WebSocketStream
from walrq.errors import Code
from walrq.limits import HANDSHAKE_TIMEOUT_S, WS_CLOSE_S, WS_HEAD_BYTES_MAX
from walrq.protocol.handshake import Hello, Welcome

if TYPE_CHECKING:
    from walrq.daemon.supervisor import Node

log = logging.getLogger("walrq.websocket")

# Requests that crossed our GoAway still get their definite refusal, as at the native door.
_QUIET_S: Final = 0.1


async def run(entrance: Entrance, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Serve WebSockets on `entrance.sock`; see `opening.py` for what a door owes."""
    door = _Door(entrance)
    async with trio.open_nursery() as serving:
        door.links = serving
        for front in door.fronts:
            await serving.start(front.run)
            serving.start_soon(front.sweep)
        async with trio.open_nursery() as connections:
            door.connections = connections
            async with trio.open_nursery() as accepting:
                listener.listen(entrance.sock)
                accepting.start_soon(door.accept)
                task_status.started()
                await entrance.stopping.wait()
                accepting.cancel_scope.cancel()
            await door.leave()
            connections.cancel_scope.cancel()
        serving.cancel_scope.cancel()


class _Door:
    """The parts of the door, and the connections that are in their handshake or served."""

    links: trio.Nursery
    connections: trio.Nursery

    def __init__(self, entrance: Entrance) -> None:
        node = entrance.node
        self._entrance = entrance
        self._node = node
        welcome = Greeter(node).welcome
        self._cbor = WebSocketFront(node.broker, node.clock, welcome)
        self._json = WebSocketFront(node.broker, node.clock, welcome, gate=entrance.gate, link_to=self._link)
        self.fronts = (self._cbor, self._json)
        self._growing = Growing()
        self._count = 0

    async def accept(self) -> None:
        """Accept until cancelled."""
        door = listener.Listener(
            self._entrance.sock,
            self._take,
            lambda: self._count,
            connections_max=lambda: self._node.config.max_connections,
            refusal=lambda text: refuse(503, "Service Unavailable", text).answer,
        )
        await door.run()

    def _take(self, sock: socket.socket, peer: str) -> None:
        self._count += 1
        self.connections.start_soon(self._serve, sock, peer)

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        stream: trio.abc.Stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        try:
            if self._node.tls is not None:
                shaken = await self._node.tls.shake(stream)  # type: ignore[arg-type]  # it is the socket's
                if shaken is None:
                    log.info("connection_refused peer=%s: no TLS handshake", peer)
                    return
                stream = shaken
            with trio.move_on_after(HANDSHAKE_TIMEOUT_S) as patience:
                found = await self._greet(stream, sock)
            if patience.cancelled_caught:
                log.info("connection_timed_out peer=%s: no WebSocket handshake within %g s", peer, HANDSHAKE_TIMEOUT_S)
                return
            if found is None:
                return
            verdict, early = found
            if isinstance(verdict, Refused):
                log.info("connection_refused peer=%s: %s", peer, verdict.reason)
                await _part(stream, verdict.answer)
                return
            text = verdict.subprotocol == JSON
            socket_ = WebSocketStream(stream, sock, verdict.wire, text=text, early=early, growing=self._growing)
            await (self._json if text else self._cbor).serve(socket_, peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.debug("connection_lost peer=%s: %r", peer, error)
        except Exception as error:
            # The barrier: a mistake of ours in one connection ends that connection only.
            log.exception("connection_failed peer=%s: %s", peer, error)
        finally:
            self._count -= 1
            await trio.aclose_forcefully(stream)

    async def _greet(self, stream: trio.abc.Stream, sock: socket.socket) -> tuple[Admitted | Refused, bytes] | None:
        """The handshake, and what came behind it; None when nobody is there any more."""
        head = bytearray()
        while (end := head.find(HEAD_END)) < 0:
            data = await stream.receive_some(WS_HEAD_BYTES_MAX)
            if not data:
                return None
            head += data
            refused = first_look(bytes(head))
            if refused is not None:
                return refused, b""
        end += len(HEAD_END)
        here = ipaddress.ip_address(sock.getsockname()[0].partition("%")[0])
        verdict = judge(bytes(head[:end]), allowed=self._node.config.allowed_origins, loopback=here.is_loopback)
        if isinstance(verdict, Admitted):
            await stream.send_all(verdict.answer)
        return verdict, bytes(head[end:])

    def _link(self, connection: JsonConnection) -> SessionLink:
        """A link to the leader for the connection's session."""
        broker = self._node.broker
        node = self._node
        link = SessionLink(
            connection,
            broker.not_leader().details["leader"],
            broker.flush,
            secret=node.doorman.lock.node_secret(),
            behalf=None if connection.guard is None else connection.guard.principal.name,
            tls=None if node.tls is None else node.tls.outgoing,
        )
        if not link.over:
            self.links.start_soon(link.run)
        return link

    async def leave(self) -> None:
        """The node stops: say so, let what is in flight be answered, and say goodbye."""
        for front in self.fronts:
            front.go_away(Code.DRAINING, "the node is stopping")
        await trio.sleep(_QUIET_S if any(map(len, self.fronts)) else 0)
        for front in self.fronts:
            front.end_all()
        for front in self.fronts:
            await front.wait_empty()


async def _part(stream: trio.abc.Stream, answer: bytes) -> None:
    """Say why nobody is let in. What the client still sends is thrown away, or it would never read the answer."""
    with trio.move_on_after(WS_CLOSE_S):
        await stream.send_all(answer)
        if isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
        while await stream.receive_some(WS_HEAD_BYTES_MAX):
            pass


@attrs.frozen
class Greeter:
    """Welcomes at this door: where to go is told as addresses of this door's kind."""

    _node: Node

    def welcome(self, hello: Hello) -> Welcome | api.Failed:
        """Judge a Hello as the native door does."""
        answer = self._node.welcome(hello)
        peers = self._node.peers
        if isinstance(answer, api.Failed) or peers is None:
            return answer
        leader = self._node.broker.replica.leader
        return Welcome(
            node=answer.node,
            cluster=answer.cluster,
            shards=answer.shards,
            limits=answer.limits,
            session=answer.session,
            server_ms=answer.server_ms,
            version=answer.version,
            nodes=peers.nodes("ws"),
            leader=None if leader is None else peers.endpoint_of(leader, "ws"),
        )
