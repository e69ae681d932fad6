"""The HTTP door: its connections, and what each may cost.

    run
    ├── Listener            accepts, refuses beyond max_connections
    ├── a task for each     hypercorn's HTTP/1.1 over `Watched`, calling `http_app.App`
    └── _hang_up            closes the sockets when the node goes: nothing waits for a reader that never reads

Hypercorn parses and frames; this module owns the sockets, because what the door promises depends on them: a reply that
is not read within a time ends its connection, and a lease whose reply the kernel did not take whole goes back.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as ServerConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from walrq.daemon import listener
from walrq.doors.http_app import App, Watched
from walrq.doors.opening import Entrance
from walrq.limits import HTTP_HEAD_BYTES_MAX, HTTP_IDLE_S_MAX

log = logging.getLogger("walrq.http")

_REQUESTS_PER_CONNECTION_MAX: Final = 1_000_000_000


def _refusal(text: str) -> bytes:
    body = (text + "\n").encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def _server_config() -> ServerConfig:
    config = ServerConfig()
    config.h11_max_incomplete_size = HTTP_HEAD_BYTES_MAX
    config.keep_alive_timeout = HTTP_IDLE_S_MAX
    config.keep_alive_max_requests = _REQUESTS_PER_CONNECTION_MAX
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = log
    return config


class Server:
    """The connections of the door."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self._config = _server_config()
        self._context = WorkerContext(None)
        self.connections: set[Watched] = set()
        self.app = App(entrance, lambda: len(self.connections))
        # Set when the last connection of a stopping node has ended.
        self._empty = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Serve until the node stops and every connection is done."""
        entrance = self._entrance
        door = listener.Listener(
            entrance.sock,
            self.add,
            lambda: len(self.connections),
            connections_max=lambda: entrance.node.config.max_connections,
            refusal=_refusal,
        )
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._hang_up)
            listener.listen(entrance.sock)
            async with trio.open_nursery() as accepting:
                accepting.start_soon(door.run)
                task_status.started()
                await entrance.stopping.wait()
                accepting.cancel_scope.cancel()
            # Idle connections are closed by this, the others once their response is sent.
            await self._context.terminated.set()
            if self.connections:
                await self._empty.wait()
            nursery.cancel_scope.cancel()

    async def _hang_up(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            for each in self.connections:
                each.abort()

    def add(self, sock: socket.socket, peer: str) -> None:
        """Serve an accepted connection."""
        assert self._nursery is not None
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        stream = Watched(plain, plain.socket, peer)
        self.connections.add(stream)
        self._nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: Watched) -> None:
        state = ConnectionState({"connection": stream})
        tls = self._entrance.node.tls
        try:
            if tls is not None and not await stream.shake(tls):
                log.info("connection_refused peer=%s: no TLS handshake", stream.peer)
                return
            # Of the stream it wants what `Watched` has, and of the application what ASGI says.
            app = ASGIWrapper(self.app)  # type: ignore[arg-type]
            await TCPServer(app, self._config, self._context, state, stream).run()  # type: ignore[arg-type]
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as errors:
            log.debug("connection_lost peer=%s: %r", stream.peer, errors.exceptions[0])
        except* Exception as errors:
            # The barrier: a mistake of ours in one connection ends that connection only.
            log.exception("connection_failed peer=%s: %s", stream.peer, errors.exceptions[0])
        finally:
            self.connections.discard(stream)
            if not self.connections and self._entrance.stopping.is_set():
                self._empty.set()
            stream.abort()


async def run(entrance: Entrance, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """The door, as `opening` runs it."""
    server = Server(entrance)
    await server.app.start()
    try:
        await server.run(task_status)
    finally:
        server.app.stop()
