"""Load: producers and consumers over raw sockets, many requests in flight, one epoll for all of them.

The sans-IO client protocol opens the connection; the hot path below it sends the same bytes that
every client sends. One process generates all load: with few cores, more processes would measure the
scheduler.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import cbor2

from walrq import api
from walrq.ids import RECEIPT_BYTES
from walrq.limits import FRAME_BYTES_MAX
from walrq.protocol.client import Answer, ClientConnection, Closed
from walrq.protocol.framing import FrameBuffer
from walrq.protocol.handshake import Hello
from walrq.protocol.requests import encode_request

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

    def call_all(self, requests: Sequence[api.Request]) -> list[Any]:
        """Send them together and block for all replies, which come in any order; in the order of the requests."""
        replies: dict[int, Any] = {}
        for number, request in enumerate(requests):
            self.request(request, lambda reply, _, number=number: replies.__setitem__(number, reply))
        self._flush_blocking()
        while len(replies) < len(requests):
            self.take(self._recv_blocking())
        return [replies[number] for number in range(len(requests))]

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


class Template:
    """A request whose frame is made once: only its numbers change from one sending to the next."""

    def __init__(self, request: api.Request) -> None:
        body = encode_request(1, request, 1, 1)
        # Array head, operation, and three integers below 24, one byte each.
        assert body[2:5] == b"\x01\x01\x01", "a request starts with its operation and three numbers"
        self._head = int.from_bytes(body[:2], "big")
        self.tail = body[5:]

    def frame(self, number: int, sequence: int, lowest: int, tail: bytes) -> bytes:
        """The frame with these numbers; `sequence` 0 = no session."""
        if sequence:
            start = _NUMBERS.pack(17 + len(tail), self._head, 0x1A, number, 0x1A, sequence, 0x1A, lowest)
        else:
            start = _NO_SESSION.pack(9 + len(tail), self._head, 0x1A, number, 0xF6, 0xF6)
        return start + tail


_NUMBERS = struct.Struct(">IHBIBIBI")
_NO_SESSION = struct.Struct(">IHBIBB")
_RECEIPT_MARK = bytes(RECEIPT_BYTES)
# The first number that a hot link uses: above all that its set-up used.
_FIRST_HOT = 1_000
FAILED, PUSHED, POLLED, SETTLED = 0, 1, 2, 3


class HotLink:
    """A link after its set-up, stripped to what a load generator needs.

    It trusts the server: replies are not checked against the table of the protocol, and requests are cut from
    templates. So the generator takes less of the machine that both share, and more is left to measure. The
    bytes are those of any other client.
    """

    def __init__(self, link: Link) -> None:
        self.socket = link.socket
        self.socket.setblocking(False)
        self._frames = FrameBuffer(FRAME_BYTES_MAX)
        self._session = link.session
        self._unsent = b""
        self._output: list[bytes] = []
        self._waiting: dict[int, tuple[OnReply, int]] = {}
        self._next = _FIRST_HOT

    def request(self, template: Template, tail: bytes, on_reply: OnReply) -> None:
        """Put a request into the output; `on_reply(raw reply, ns since now)` follows."""
        number = self._next
        self._next = number + 1
        waiting = self._waiting
        waiting[number] = (on_reply, time.perf_counter_ns())
        # The session's sequence is the request's number: both rise by one, and answered ones leave the table.
        sequence, lowest = (number, next(iter(waiting))) if self._session else (0, 0)
        self._output.append(template.frame(number, sequence, lowest, tail))

    def send(self) -> bool:
        """Send what waits; False when the kernel took only a part."""
        if not self._output and not self._unsent:
            return True
        data = b"".join([self._unsent, *self._output])
        self._output.clear()
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]
        return not self._unsent

    def read(self) -> None:
        """Receive once and hand replies to their askers.

        Raises: LoadFailed when the connection ended.
        """
        data = self.socket.recv(RECV_BYTES)
        if not data:
            raise LoadFailed("the server closed the connection")
        now = time.perf_counter_ns()
        take = self._waiting.pop
        for frame in self._frames.feed(data):
            reply = cbor2.loads(frame)
            on_reply, started = take(reply[1])
            on_reply(reply, now - started)

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


class Loop:
    """Drives hot links until told to stop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._links: list[HotLink] = []
        self._fillers: list[Callable[[], None]] = []

    def add(self, link: HotLink, fill: Callable[[], None]) -> None:
        """`fill` puts as many requests into the link as it may; it is called after every turn."""
        self._selector.register(link.socket, selectors.EVENT_READ, link)
        self._links.append(link)
        self._fillers.append(fill)

    def run(self, until_ns: int, done: Callable[[], bool] = lambda: False) -> None:
        """Run until `time.perf_counter_ns()` reaches `until_ns` or `done()`."""
        selector = self._selector
        write = selectors.EVENT_READ | selectors.EVENT_WRITE
        while True:
            for link, fill in zip(self._links, self._fillers, strict=True):
                fill()
                mode = selectors.EVENT_READ if link.send() else write
                if selector.get_key(link.socket).events != mode:
                    selector.modify(link.socket, mode, link)
            if time.perf_counter_ns() >= until_ns or done():
                return
            for key, mask in selector.select(0.05):
                if mask & selectors.EVENT_READ:
                    key.data.read()

    def close(self) -> None:
        """End all connections."""
        for link in self._links:
            self._selector.unregister(link.socket)
            link.close()
        self._selector.close()


def columns(batch: int, size: int) -> api.Columns:
    """A batch of `batch` payloads of `size` bytes each."""
    ends = struct.pack(f"<{batch}I", *range(size, size * (batch + 1), size))
    return api.Columns(payloads=bytes(range(256)) * (batch * size // 256) + b"x" * (batch * size % 256), ends=ends)


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
        self.link = HotLink(link)
        self._traffic = traffic
        self._in_flight = 0
        self._push = Template(api.Push(traffic.queue, traffic.columns))

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
            self.link.request(self._push, self._push.tail, self._on_pushed)

    def _on_pushed(self, reply: Any, ns: int) -> None:
        if reply[0] != PUSHED:
            raise LoadFailed(f"push refused: {reply}")
        self._in_flight -= 1
        self._traffic.pushed += reply[3]
        self._traffic.push_latency.record(ns)


class Consumer:
    """Keeps `window` polls in flight on its link and acknowledges what they bring."""

    def __init__(self, link: Link, traffic: Traffic, *, wait_ms: int = 1_000) -> None:
        self.link = HotLink(link)
        self._traffic = traffic
        self._in_flight = 0
        poll = api.Poll((traffic.queue,), max_messages=traffic.batch, visibility_ms=60_000, wait_ms=wait_ms)
        self._poll = Template(poll)
        self._ack = Template(self._settle([_RECEIPT_MARK]))
        # Most polls bring one run: its receipt is put where the template's stands.
        self._before, self._after = self._ack.tail.split(_RECEIPT_MARK)

    def fill(self) -> None:
        """See `Loop.add`."""
        while self._in_flight < self._traffic.window:
            self._in_flight += 1
            self.link.request(self._poll, self._poll.tail, self._on_polled)

    def _settle(self, receipts: Sequence[bytes]) -> api.Settle:
        items = tuple([api.Item(receipt) for receipt in receipts])
        return api.Settle(self._traffic.queue, api.SettleKind.ACK, items)

    def _on_polled(self, reply: Any, ns: int) -> None:
        if reply[0] != POLLED:
            raise LoadFailed(f"poll refused: {reply}")
        traffic = self._traffic
        runs = reply[4]
        if not runs:
            self._in_flight -= 1
            return
        traffic.poll_latency.record(ns)
        if len(runs) == 1:
            count = runs[0][2]
            tail = self._before + runs[0][1] + self._after
        else:
            count = sum([run[2] for run in runs])
            tail = Template(self._settle([run[1] for run in runs])).tail
        traffic.leased += count
        self.link.request(self._ack, tail, lambda reply, ns: self._on_settled(reply, ns, count))

    def _on_settled(self, reply: Any, ns: int, count: int) -> None:
        if reply[0] != SETTLED or any(reply[2]):
            raise LoadFailed(f"ack refused: {reply}")
        self._in_flight -= 1
        self._traffic.acked += count
        self._traffic.ack_latency.record(ns)
