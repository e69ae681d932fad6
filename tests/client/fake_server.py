"""A scripted server on a real loopback socket: the protocol is the real one, the queue is a list.

It runs in threads of its own, so that one fixture serves trio, asyncio and blocking callers alike. What it
answers is decided by `script`, a function that a test replaces; what it was asked is in `asked`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import attrs

from walrq import api
from walrq.ids import make_receipt, make_uid
from walrq.protocol.handshake import Hello, Shards, Welcome
from walrq.protocol.requests import Incoming
from walrq.protocol.server import Closed, HelloReceived, ServerConnection

SECRET = b"0123456789abcdef"
UID = make_uid(3, 1)
VISIBILITY_MS = 30_000


class Drop(Exception):
    """Raised by a script: close this connection now, as a killed server does."""


@attrs.define(eq=False)
class Connection:
    """One accepted connection."""

    server: FakeServer
    sock: socket.socket
    protocol: ServerConnection
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    def reply(self, incoming: Incoming, reply: api.Reply) -> None:
        """Answer a request, from any thread."""
        with self.lock:
            self.protocol.reply(incoming.id, reply)
            self.sock.sendall(self.protocol.take_output())

    def goaway(self, code: int, text: str) -> None:
        """Take no more requests."""
        with self.lock:
            self.protocol.send_goaway(code, text)
            self.sock.sendall(self.protocol.take_output())

    def cut(self) -> None:
        """End the connection with a reset, losing what is on its way."""
        # Its own thread may have closed it in this very moment: then there is nothing left to cut.
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                self.sock.close()  # it was closed already: nothing is left to cut

    def serve(self) -> None:
        """Read and answer until the connection ends."""
        try:
            while data := self.sock.recv(1 << 16):
                self.server.reads += 1
                with self.lock:
                    events = self.protocol.receive(data)
                for event in events:
                    if isinstance(event, HelloReceived):
                        self.server.hellos.append(event.hello)
                    elif isinstance(event, Incoming):
                        self.server.note(self, event)
                        reply = self.server.script(self, event)
                        if reply is not None:
                            self.reply(event, reply)
                    elif isinstance(event, Closed):
                        return
                with self.lock:
                    self.sock.sendall(self.protocol.take_output())
        except (OSError, Drop):
            return
        finally:
            self.sock.close()
            self.server.connections.remove(self)


Script: TypeAlias = Callable[[Connection, Incoming], api.Reply | None]


@attrs.define(eq=False)
class FakeServer:
    """See the module's text.

    Attributes:
        script: answers a request; None keeps it unanswered; `Drop` ends the connection.
        asked: every request so far, in order.
        messages: what the list queue holds, as (queue, id, payload).
        sessions: numbers of the sessions this server knows.
        reads: how many pieces the requests came in.
        node, cluster, nodes, leader: what its Welcome says.
    """

    listener: socket.socket
    script: Script = attrs.field(init=False)
    asked: list[Incoming] = attrs.field(factory=list)
    hellos: list[Hello] = attrs.field(factory=list)
    connections: list[Connection] = attrs.field(factory=list)
    sessions: set[int] = attrs.field(factory=set)
    messages: list[tuple[str, int, bytes]] = attrs.field(factory=list)
    settled: list[api.Settle] = attrs.field(factory=list)
    results: dict[tuple[int, int], api.Reply] = attrs.field(factory=dict)
    node: str = "fake"
    cluster: str = "cluster"
    nodes: tuple[api.NodeAt, ...] = ()
    leader: str | None = None
    executed: int = 0
    reads: int = 0
    _ids: int = 1000
    _leases: int = 0
    _news: threading.Condition = attrs.field(factory=threading.Condition)

    def __attrs_post_init__(self) -> None:
        self.script = self.list_queue

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        """For connect()."""
        return f"walrq://127.0.0.1:{self.port}"

    def welcome(self, hello: Hello) -> Welcome | api.Failed:
        """Known sessions are resumed."""
        session = hello.session if hello.session in self.sessions else None
        return Welcome(
            self.node,
            self.cluster,
            (Shards(0, 31, None),),
            {},
            session,
            1_700_000_000_000,
            nodes=self.nodes,
            leader=self.leader,
        )

    def accept(self) -> None:
        """Accept until the listener is closed."""
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            connection = Connection(self, sock, ServerConnection(welcome=self.welcome))
            self.connections.append(connection)
            threading.Thread(target=connection.serve, daemon=True).start()

    def note(self, connection: Connection, incoming: Incoming) -> None:
        """Remember a request and tell those who wait for one."""
        with self._news:
            self.asked.append(incoming)
            self._news.notify_all()

    def wait_for(self, kind: type[api.Request], count: int = 1) -> Incoming:
        """The `count`-th request of a kind, as soon as it is there (blocking; call it from a thread)."""

        def found() -> list[Incoming]:
            return [each for each in self.asked if type(each.request) is kind]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, 10), (kind, count, self.asked)
            return found()[count - 1]

    def kinds(self) -> list[str]:
        """Names of the requests so far, sessions' own left out."""
        names = [type(each.request).__name__ for each in self.asked]
        return [name for name in names if name not in ("OpenSession", "CloseSession")]

    def list_queue(self, connection: Connection, incoming: Incoming) -> api.Reply | None:
        """The default script: exactly once per (session, sequence), like the real machine."""
        request = incoming.request
        if type(request) is api.OpenSession:
            session = 7 + len(self.sessions)
            self.sessions.add(session)
            return api.SessionOpened(session)
        session = connection.protocol.session
        if incoming.sequence is None or session is None:
            return self.execute(request)
        if session not in self.sessions:
            return api.Failed(73, "the session ended")
        key = (session, incoming.sequence)
        if key not in self.results:
            self.results[key] = self.execute(request)
        return self.results[key]

    def execute(self, request: api.Request) -> api.Reply:
        """Change the list."""
        self.executed += 1
        if type(request) is api.Push:
            first = self._ids
            count = request.columns.count
            ends = struct.unpack(f"<{count}I", request.columns.ends)
            for position in range(count):
                start = ends[position - 1] if position else 0
                payload = request.columns.payloads[start : ends[position]]
                self.messages.append((request.queue, first + position, payload))
            self._ids += count
            return api.Pushed(first, count)
        if type(request) is api.Poll:
            return self.lease(request)
        if type(request) is api.Settle:
            self.settled.append(request)
            return api.Settled((0,) * len(request.items))
        if type(request) is api.Touch:
            return api.Touched((0,) * len(request.items), (request.visibility_ms,) * len(request.items))
        if type(request) is api.Ping:
            return api.Pong()
        if type(request) is api.Stats:
            return api.StatsReply({"node": "fake"})
        return api.Done()

    def lease(self, request: api.Poll) -> api.Polled:
        """Up to max_messages from the front, one run each."""
        taken = [each for each in self.messages if each[0] in request.queues][: request.max_messages]
        for each in taken:
            self.messages.remove(each)
        runs = []
        for queue, identifier, payload in taken:
            self._leases += 1
            runs.append(delivered(queue, identifier, (payload,), lease=self._leases))
        return api.Polled(0, request.visibility_ms or VISIBILITY_MS, tuple(runs))


def delivered(
    queue: str, first_id: int, payloads: tuple[bytes, ...], *, lease: int = 1, base: int = 0
) -> api.Delivered:
    """A leased run as a server sends it, cut out of a larger batch when `base` is given."""
    ends = []
    position = base
    for payload in payloads:
        position += len(payload)
        ends.append(position)
    return api.Delivered(
        queue=queue,
        receipt=make_receipt(SECRET, UID, lease),
        count=len(payloads),
        first_id=first_id,
        delivery=1,
        attempts=0,
        fence=(lease, 0),
        priority=0,
        pushed_ms=1_700_000_000_000,
        group=None,
        base=base,
        ends=struct.pack(f"<{len(ends)}I", *ends),
        payloads=b"".join(payloads),
    )


@contextmanager
def running(port: int = 0) -> Iterator[FakeServer]:
    """A fake server that listens on loopback until the block ends."""
    listener = socket.create_server(("127.0.0.1", port))
    server = FakeServer(listener)
    thread = threading.Thread(target=server.accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        # A blocked accept() does not notice close(); shutdown wakes it.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for connection in list(server.connections):
            connection.cut()
