"""Load: producers and consumers over raw sockets, many requests in flight, one epoll for all of them.

The sans-IO client protocol does the talking, so that what is measured is the server and the same bytes that
every client sends. One process generates all load: with few cores, more processes would measure the
scheduler.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from walrq import api
from walrq.protocol.client import Answer, ClientConnection, Closed
from walrq.protocol.handshake import Hello

from .figures import Latencies

RECV_BYTES = 1 << 20
CONNECT_S = 10.0
OnReply = Callable[[Any, int], None]


class LoadFailed(Exception):
    """The server refused a request or closed a connection."""


class Link:
    """One connection with its session: requests go out in order, each reply goes to the one who asked."""

    def __init__(self, address: tuple[str, int], *, session: bool = True) -> None:
        self.socket = socket.create_connection(address, timeout=CONNECT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = ClientConnection(Hello(client="bench"))
        self._unsent = memoryview(b"")
        self._waiting: dict[int, tuple[OnReply, int, int]] = {}
        self._open: dict[int, None] = {}
        self._sequence = 0
        self._flush_blocking()
        while self.connection.welcome is None:
            self.take(self._recv_blocking())
        self.session = False
        if session:
            reply = self.call(api.OpenSession())
            if not isinstance(reply, api.SessionOpened):
                raise LoadFailed(f"no session: {reply}")
            self.session = True

    def request(self, request: api.Request, on_reply: OnReply) -> None:
        """Put a request into the output; `on_reply(reply, ns since now)` follows."""
        if self.session:
            self._sequence = sequence = self._sequence + 1
            self._open[sequence] = None
            number = self.connection.request(request, sequence=sequence, lowest=next(iter(self._open)))
        else:
            sequence = 0
            number = self.connection.request(request)
        self._waiting[number] = (on_reply, time.perf_counter_ns(), sequence)

    def call(self, request: api.Request) -> Any:
        """Send one request and block for its reply (set-up and single-request latency)."""
        replies: list[Any] = []
        self.request(request, lambda reply, _: replies.append(reply))
        self._flush_blocking()
        while not replies:
            self.take(self._recv_blocking())
        return replies[0]

    def send(self) -> bool:
        """Send what waits; False when the kernel took only a part."""
        data: bytes | memoryview = self.connection.take_output()
        if self._unsent:
            data = memoryview(bytes(self._unsent) + bytes(data))
        if not data:
            return True
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = memoryview(data)[sent:]
        return not self._unsent

    def take(self, data: bytes) -> None:
        """Hand received bytes to the protocol and replies to their askers.

        Raises: LoadFailed when the connection ended.
        """
        if not data:
            raise LoadFailed("the server closed the connection")
        now = time.perf_counter_ns()
        waiting = self._waiting
        for event in self.connection.receive(data):
            if type(event) is Answer:
                on_reply, started, sequence = waiting.pop(event.id)
                if sequence:
                    del self._open[sequence]
                on_reply(event.reply, now - started)
            elif type(event) is Closed:
                raise LoadFailed(f"the server closed the connection: {event.error}")

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def _flush_blocking(self) -> None:
        self.socket.settimeout(CONNECT_S)
        self.socket.sendall(self.connection.take_output())

    def _recv_blocking(self) -> bytes:
        return self.socket.recv(RECV_BYTES)


class Loop:
    """Drives links until told to stop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._links: list[Link] = []
        self._fillers: list[Callable[[], None]] = []

    def add(self, link: Link, fill: Callable[[], None]) -> None:
        """`fill` puts as many requests into the link as it may; it is called after every turn."""
        link.socket.setblocking(False)
        self._selector.register(link.socket, selectors.EVENT_READ, link)
        self._links.append(link)
        self._fillers.append(fill)

    def run(self, until_ns: int, done: Callable[[], bool] = lambda: False) -> None:
        """Run until `time.perf_counter_ns()` reaches `until_ns` or `done()`."""
        selector = self._selector
        write = selectors.EVENT_READ | selectors.EVENT_WRITE
        while True:
            for fill in self._fillers:
                fill()
            for link in self._links:
                mode = selectors.EVENT_READ if link.send() else write
                if selector.get_key(link.socket).events != mode:
                    selector.modify(link.socket, mode, link)
            if time.perf_counter_ns() >= until_ns or done():
                return
            for key, mask in selector.select(0.05):
                if mask & selectors.EVENT_READ:
                    key.data.take(key.fileobj.recv(RECV_BYTES))  # type: ignore[union-attr]

    def close(self) -> None:
        """End all connections."""
        for link in self._links:
            self._selector.unregister(link.socket)
            link.close()
        self._selector.close()


def columns(batch: int, size: int) -> api.Columns:
    """A batch of `batch` payloads of `size` bytes each."""
    ends = struct.pack(f"<{batch}I", *range(size, size * (batch + 1), size))
    return api.Columns(
        payloads=bytes(range(256)) * (batch * size // 256) + b"x" * (batch * size % 256), ends=ends
    )


class Traffic:
    """Counts shared by the producers and consumers of one queue, and the bound on what waits between them."""

    def __init__(self, queue: str, *, batch: int, size: int, window: int, waiting_max: int) -> None:
        self.queue = queue
        self.batch = batch
        self.window = window
        self.waiting_max = waiting_max
        self.columns = columns(batch, size)
        self.offered = self.pushed = self.leased = self.acked = 0
        self.producing = True
        self.push_latency = Latencies()
        self.poll_latency = Latencies()
        self.ack_latency = Latencies()

    def reset(self) -> tuple[int, int, int]:
        """Forget latencies; the counts so far."""
        for latencies in (self.push_latency, self.poll_latency, self.ack_latency):
            latencies.clear()
        return self.pushed, self.leased, self.acked


class Producer:
    """Keeps `window` pushes in flight on its link, unless too much waits in the queue."""

    def __init__(self, link: Link, traffic: Traffic) -> None:
        self._link = link
        self._traffic = traffic
        self._in_flight = 0
        self._request = api.Push(traffic.queue, traffic.columns)

    def fill(self) -> None:
        """See `Loop.add`."""
        traffic = self._traffic
        while (
            traffic.producing
            and self._in_flight < traffic.window
            and traffic.offered - traffic.acked < traffic.waiting_max
        ):
            self._in_flight += 1
            traffic.offered += traffic.batch
            self._link.request(self._request, self._on_pushed)

    def _on_pushed(self, reply: Any, ns: int) -> None:
        if type(reply) is not api.Pushed:
            raise LoadFailed(f"push refused: {reply}")
        self._in_flight -= 1
        self._traffic.pushed += reply.count
        self._traffic.push_latency.record(ns)


class Consumer:
    """Keeps `window` polls in flight on its link and acknowledges what they bring."""

    def __init__(self, link: Link, traffic: Traffic, *, wait_ms: int = 1_000) -> None:
        self._link = link
        self._traffic = traffic
        self._in_flight = 0
        self._request = api.Poll(
            (traffic.queue,), max_messages=traffic.batch, visibility_ms=60_000, wait_ms=wait_ms
        )

    def fill(self) -> None:
        """See `Loop.add`."""
        while self._in_flight < self._traffic.window:
            self._in_flight += 1
            self._link.request(self._request, self._on_polled)

    def _on_polled(self, reply: Any, ns: int) -> None:
        if type(reply) is not api.Polled:
            raise LoadFailed(f"poll refused: {reply}")
        traffic = self._traffic
        if not reply.runs:
            self._in_flight -= 1
            return
        count = sum([run.count for run in reply.runs])
        traffic.leased += count
        traffic.poll_latency.record(ns)
        items = tuple([api.Item(run.receipt) for run in reply.runs])
        request = api.Settle(traffic.queue, api.SettleKind.ACK, items)
        self._link.request(request, lambda reply, ns: self._on_settled(reply, ns, count))

    def _on_settled(self, reply: Any, ns: int, count: int) -> None:
        if type(reply) is not api.Settled or any(reply.codes):
            raise LoadFailed(f"ack refused: {reply}")
        self._in_flight -= 1
        self._traffic.acked += count
        self._traffic.ack_latency.record(ns)
