"""A node inside the test's own Trio run: simulated disk, settable clock, either front, clients over streams.

The log is written by the event loop itself (`fsync="never"` on a disk in memory), so `MockClock` sees every
wait.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from walrq import api
from walrq.daemon.clock import Clock
from walrq.daemon.config import Config
from walrq.daemon.reactor import Reactor
from walrq.daemon.stream_front import StreamFront
from walrq.daemon.supervisor import Front, Node, make_front, open_node, start_core
from walrq.limits import SEGMENT_BYTES_MIN
from walrq.protocol.client import Answer, ClientConnection, ClientEvent, Closed, Welcomed, WentAway
from walrq.protocol.handshake import Hello
from walrq.testing.disk import SimDisk

FRONTS = ("reactor", "stream")
WALL_MS = 1_700_000_000_000


def columns(*payloads: bytes, **rest: Any) -> api.Columns:
    """A batch of these payloads."""
    ends, total = [], 0
    for payload in payloads:
        total += len(payload)
        ends.append(total)
    return api.Columns(b"".join(payloads), struct.pack(f"<{len(ends)}I", *ends), **rest)


def payloads(polled: api.Reply) -> list[bytes]:
    """What a poll brought, message by message."""
    assert isinstance(polled, api.Polled), polled
    found = []
    for run in polled.runs:
        start = run.base
        for (end,) in struct.iter_unpack("<I", run.ends):
            found.append(run.payloads[start - run.base : end - run.base])
            start = end
    return found


@attrs.define(eq=False)
class Client:
    """One client connection; requests may be pipelined, answers are awaited by request."""

    stream: trio.abc.Stream
    protocol: ClientConnection
    answers: dict[int, api.Reply] = attrs.field(factory=dict)
    went_away: WentAway | None = None
    closed: Closed | None = None

    async def hello(self) -> Welcomed:
        """Say Hello, await the Welcome."""
        await self.flush()
        while True:
            for event in await self._receive():
                assert isinstance(event, Welcomed), event
                return event

    async def flush(self) -> None:
        """Send what the protocol has to say."""
        await self.stream.send_all(self.protocol.take_output())

    async def send(self, request: api.Request, sequence: int | None = None, lowest: int | None = None) -> int:
        """Send without awaiting; the request's number."""
        number = self.protocol.request(request, sequence=sequence, lowest=lowest)
        await self.flush()
        return number

    async def ask(self, request: api.Request, sequence: int | None = None, lowest: int | None = None) -> Any:
        """Send and await the reply."""
        return await self.answer(await self.send(request, sequence, lowest))

    async def answer(self, number: int) -> Any:
        """Await the reply of request `number`."""
        while number not in self.answers:
            if self.closed is not None:
                raise trio.EndOfChannel(str(self.closed.error))
            for event in await self._receive():
                self._note(event)
        return self.answers.pop(number)

    async def wait_closed(self) -> Closed:
        """Read on until the node has ended the connection."""
        while self.closed is None:
            for event in await self._receive():
                self._note(event)
        return self.closed

    def _note(self, event: ClientEvent) -> None:
        if isinstance(event, Answer):
            self.answers[event.id] = event.reply
        elif isinstance(event, WentAway):
            self.went_away = event
        elif isinstance(event, Closed):
            self.closed = event

    async def _receive(self) -> list[ClientEvent]:
        data = await self.stream.receive_some(1 << 20)
        return self.protocol.receive(bytes(data)) if data else self.protocol.receive_eof()

    async def aclose(self) -> None:
        """Leave without a word."""
        await self.stream.aclose()


@attrs.define(eq=False)
class World:
    """A running node and the way to connect to it."""

    node: Node
    front: Front
    disk: SimDisk
    streams: list[trio.abc.Stream] = attrs.field(factory=list)

    async def connect(self, *, session: int | None = None, hello: bool = True, unbuffered: bool = False) -> Client:
        """A client that has been welcomed. `unbuffered`: a stream that is not read stops its sender at
        once.
        """
        stream = await self.stream(unbuffered)
        client = Client(stream, ClientConnection(Hello(client="test", session=session)))
        if hello:
            await client.hello()
        return client

    async def stream(self, unbuffered: bool = False) -> trio.abc.Stream:
        """A raw connection to the front, closed at the latest when the world ends."""
        stream = self._stream(unbuffered)
        self.streams.append(stream)
        await trio.testing.wait_all_tasks_blocked()
        return stream

    def _stream(self, unbuffered: bool) -> trio.abc.Stream:
        if isinstance(self.front, Reactor):
            ours, theirs = socket.socketpair()
            self.front.add(theirs, "test")
            return trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        assert isinstance(self.front, StreamFront)
        near, far = trio.testing.lockstep_stream_pair() if unbuffered else trio.testing.memory_stream_pair()
        self.front.add(far, "test")
        return near

    async def open_session(self) -> tuple[Client, int]:
        """A client with a session of its own."""
        client = await self.connect()
        opened = await client.ask(api.OpenSession())
        assert isinstance(opened, api.SessionOpened), opened
        return client, opened.session

    async def info(self, queue: str) -> api.QueueInfo:
        """Counts of a queue, asked over a connection of its own."""
        client = await self.connect()
        info = await client.ask(api.ShowQueue(queue))
        await client.aclose()
        assert isinstance(info, api.QueueInfo), info
        return info


class HeldDisk:
    """Keeps the driver from taking a batch, as a slow disk would, until released."""

    def __init__(self, world: World) -> None:
        self._driver = world.node.driver

    def __enter__(self) -> None:
        self._driver._writing = True

    def __exit__(self, *_: object) -> None:
        self._driver._writing = False
        self._driver.wake()


def mock_wall() -> Clock:
    """A clock whose wall time runs with Trio's (mock) clock."""
    return Clock(wall_ms=lambda: WALL_MS + int(trio.current_time() * 1000))


@asynccontextmanager
async def running(
    front: str = "reactor", *, disk: SimDisk | None = None, clean: bool = False, **settings: Any
) -> AsyncIterator[World]:
    """A node with all its tasks, ended when the block ends."""
    disk = disk or SimDisk()
    settings.setdefault("max_wal_segment_size", SEGMENT_BYTES_MIN)
    config = Config(data_dir="data", fsync="never", front=front, **settings)
    node = await open_node(config, disk=disk, clock=mock_wall())
    try:
        async with trio.open_nursery() as core:
            start_core(core, node)
            carrier = make_front(node)
            await core.start(carrier.run)
            world = World(node, carrier, disk)
            try:
                yield world
            finally:
                with trio.CancelScope(shield=True):
                    for stream in world.streams:
                        await trio.aclose_forcefully(stream)
                core.cancel_scope.cancel()
        if clean:
            await node.compactor.snapshot()
    finally:
        node.replica.close(clean=clean)
