"""The network between nodes, as something that can be cut: a proxy before each node's door for its peers.

Every node tells the others the address of its proxy. Who dials a proxy is found out by looking for the other end of the
connection among the nodes' open sockets (Linux), so each *directed* link has a gate of its own: what A says to B waits
while the gate A->B is closed, on the connections that A dialled and on those that B did. A closed gate swallows nothing
and passes nothing on, not even that a process has died: to the nodes it is a cable pulled out. When it opens, what
waited is delivered, as by TCP, or the connections of the link are reset.

Never: reads or changes what passes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import attrs
import trio

PIECE_BYTES = 65_536
# What one direction of a connection holds back while it is delayed.
PIECES_MAX = 256


@attrs.define(eq=False)
class Gate:
    """One directed link.

    Attributes:
        delay_s: how much later everything arrives.
    """

    delay_s: float = 0.0
    _opens: trio.Event | None = None
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def closed(self) -> bool:
        """Whether nothing passes."""
        return self._opens is not None

    def close(self) -> None:
        """Nothing passes from now on."""
        if self._opens is None:
            self._opens = trio.Event()

    def open(self, *, reset: bool = False) -> None:
        """What waited passes; with `reset`, the connections of this link end instead."""
        if self._opens is None:
            return
        if reset:
            for scope in self._scopes:
                scope.cancel()
        self._opens.set()
        self._opens = None

    async def passage(self) -> None:
        """Wait until it is open."""
        while self._opens is not None:
            await self._opens.wait()


@attrs.define(eq=False)
class Links:
    """The proxies and gates of a group of nodes.

    Attributes:
        doors: node -> (where its proxy listens, where the node itself does).
        pids: tells which process each running node is.
        strangers: connections whose dialler was no node (any more).
    """

    doors: Mapping[str, tuple[tuple[str, int], tuple[str, int]]]
    pids: Callable[[], Mapping[str, int]]
    strangers: int = 0
    _gates: dict[tuple[str, str], Gate] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._gates = {(here, there): Gate() for here in self.doors for there in self.doors if here != there}

    def gate(self, source: str, target: str) -> Gate:
        """What `source` says to `target` passes here."""
        return self._gates[source, target]

    def around(self, node: str) -> Iterator[Gate]:
        """Every gate from and to a node."""
        return (gate for (source, target), gate in self._gates.items() if node in (source, target))

    def heal(self, *, reset: bool = False) -> None:
        """Open all of them."""
        for gate in self._gates.values():
            gate.open(reset=reset)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pass on what is said until cancelled."""
        async with trio.open_nursery() as nursery:
            for node, (proxy, _) in self.doors.items():
                listeners = await trio.open_tcp_listeners(proxy[1], host=proxy[0])
                nursery.start_soon(trio.serve_listeners, _handler(self, node), listeners)
            task_status.started()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[Links]:
        """Pass on what is said until the block ends, for callers that block. They may slow gates, not close them."""
        began = threading.Event()
        stop: list[Callable[[], object]] = []

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.run)
                token = trio.lowlevel.current_trio_token()
                stop.append(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
                began.set()

        def outer() -> None:
            try:
                trio.run(run)
            finally:
                began.set()

        thread = threading.Thread(target=outer)
        thread.start()
        began.wait()
        try:
            if not stop:
                raise RuntimeError("the links could not be opened")
            yield self
        finally:
            for end in stop:
                end()
            thread.join()

    async def _serve(self, target: str, dialled: trio.SocketStream) -> None:
        """One connection to `target`."""
        proxy, real = self.doors[target]
        async with dialled:
            port = dialled.socket.getpeername()[1]
            source = _dialler(port, proxy[1], self.pids())
            if source is None or source == target:
                self.strangers += 1
                return
            out, back = self.gate(source, target), self.gate(target, source)
            with trio.CancelScope() as scope:
                out._scopes.add(scope)
                back._scopes.add(scope)
                try:
                    # The handshake of TCP needs both ways.
                    await out.passage()
                    await back.passage()
                    try:
                        onward = await trio.open_tcp_stream(*real)
                    except OSError:
                        return  # it is down; the dialler sees its connection end
                    async with onward, trio.open_nursery() as nursery:
                        nursery.start_soon(_pump, dialled, onward, out, nursery.cancel_scope)
                        nursery.start_soon(_pump, onward, dialled, back, nursery.cancel_scope)
                finally:
                    out._scopes.discard(scope)
                    back._scopes.discard(scope)


def _handler(links: Links, node: str) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def serve(stream: trio.SocketStream) -> None:
        await links._serve(node, stream)

    return serve


async def _pump(source: trio.SocketStream, target: trio.SocketStream, gate: Gate, scope: trio.CancelScope) -> None:
    """Carry one direction; its end ends the connection, once the gate lets that be known."""
    send, receive = trio.open_memory_channel[tuple[float, bytes]](PIECES_MAX)

    async def deliver() -> None:
        async for due, piece in receive:
            await trio.sleep_until(due)
            await gate.passage()
            try:
                await target.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
        await gate.passage()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        async with send:
            while True:
                try:
                    piece = await source.receive_some(PIECE_BYTES)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    piece = b""
                if not piece:
                    break
                await send.send((trio.current_time() + gate.delay_s, piece))


def _dialler(port: int, proxy_port: int, pids: Mapping[str, int]) -> str | None:
    """Which node holds the socket at the other end of a connection from `port` to `proxy_port`, on loopback."""
    inode = None
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        if int(parts[1].rpartition(":")[2], 16) == port and int(parts[2].rpartition(":")[2], 16) == proxy_port:
            inode = parts[9]
            break
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for node, pid in pids.items():
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    try:
                        if os.readlink(entry.path) == wanted:
                            return node
                    except FileNotFoundError:
                        continue  # closed while we look
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
    return None
