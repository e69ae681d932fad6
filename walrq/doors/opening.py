"""Opening the doors that a node was asked to open, and closing them in good order.

A door is a module with one function::

    async def run(entrance: Entrance, *, task_status: trio.TaskStatus[None]) -> None

It listens on `entrance.sock` (bound, not listening yet; the caller closes it), calls `task_status.started()` once
connections can come, and serves until cancelled. When `entrance.stopping` is set it accepts nothing new, lets its
connections finish what is in flight (the broker refuses what is new and answers parked polls by then), says goodbye
where its protocol can, and returns. An error in one connection ends that connection only; an exception that leaves
`run` ends the node. A door with nothing to say for `drain_timeout` after `stopping` is cancelled.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from walrq.daemon.config import Door
from walrq.doors.forwarding import Forwarder
from walrq.doors.gate import Gate

if TYPE_CHECKING:
    from walrq.daemon.supervisor import Node


@attrs.frozen
class Entrance:
    """What a door is given.

    Attributes:
        door: which it is.
        sock: its own socket, bound.
        gate: where requests go.
        node: the node, for its settings (`node.config`), clock and native front (`node.welcome`).
        stopping: set when the node stops.
    """

    door: Door
    sock: socket.socket
    gate: Gate
    node: Node
    stopping: trio.Event


async def run(
    node: Node,
    sockets: Sequence[tuple[Door, socket.socket]],
    stopping: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve these doors until `stopping` is set and each of them is done; `started` once all of them listen."""
    async with trio.open_nursery() as carrying:
        forwarder = Forwarder(
            lambda: () if node.peers is None else node.peers.nodes(),
            node.doorman.lock.node_secret,
            lambda: None if node.tls is None else node.tls.outgoing,
        )
        await carrying.start(forwarder.run)
        gate = Gate(node.broker, forwarder)
        async with trio.open_nursery() as doors:
            for door, sock in sockets:
                module = importlib.import_module(door.module)
                await doors.start(module.run, Entrance(door, sock, gate, node, stopping))
            task_status.started()
        carrying.cancel_scope.cancel()
