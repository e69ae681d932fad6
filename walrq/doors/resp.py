"""The Redis door: accepts, and lets the node's own front carry its connections.

Plain TCP rides on the reactor, beside the native protocol: one epoll, one turn, one write to the log for both. Where
there is no epoll a stream front of its own carries it. What is said is `walrq.resp`'s; `resp_port.py` joins the two.
"""

from __future__ import annotations

import logging
import socket
from typing import Any

import trio

from walrq.daemon import listener
from walrq.daemon.reactor import Reactor
from walrq.doors.opening import Entrance
from walrq.doors.resp_port import RespDoor, RespFront, SocketPort
from walrq.resp import writing

log = logging.getLogger("walrq.resp")


async def run(entrance: Entrance, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Serve Redis clients on `entrance.sock` until told to stop."""
    node = entrance.node
    door = RespDoor(node, entrance.gate)
    node.driver.on_turn.append(door.written)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.run)
        front = node.front
        if isinstance(front, Reactor):
            reactor = front
            reactor.before_flush.append(door.merger.flush)

            def add(sock: socket.socket, peer: str) -> None:
                reactor.add(sock, peer, lambda *facts: SocketPort(door, *facts))

            count: Any = reactor.__len__
        else:
            streams = RespFront(door)
            streams.shake = None if node.tls is None else node.tls.shake
            streams.before_flush.append(door.merger.flush)
            await nursery.start(streams.run)

            def add(sock: socket.socket, peer: str) -> None:
                streams.add(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), peer)

            count = streams.__len__
        accepting = listener.Listener(
            entrance.sock,
            add,
            count,
            connections_max=lambda: node.config.max_connections,
            refusal=lambda why: writing.error(f"max number of clients reached: {why}"),
        )
        listener.listen(entrance.sock)
        async with trio.open_nursery() as acceptor:
            acceptor.start_soon(accepting.run)
            task_status.started()
            await entrance.stopping.wait()
            acceptor.cancel_scope.cancel()
        await door.leave()
        node.driver.on_turn.remove(door.written)
        nursery.cancel_scope.cancel()
