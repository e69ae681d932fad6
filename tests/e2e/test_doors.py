"""Bad neighbours at the door: floods, the slow, the silent, the senseless.

The node answers the others and stays small.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from chaos.stops import Line
from tests.e2e.conftest import Starter
from tests.e2e.talk import ack, push, take
from walrq import api
from walrq.errors import Code, WalrqError
from walrq.limits import FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S
from walrq.protocol.client import ClientConnection, Closed, WentAway
from walrq.protocol.handshake import Hello
from walrq.testing.node import Node

CAP = 64
FLOOD = 1_000
DESCRIPTORS = 40
WATCH_S = 2.0
MEMORY_GROWTH_BYTES = 40 * 1024 * 1024


def connect(node: Node) -> socket.socket:
    """A bare connection."""
    return socket.create_connection(node.address, timeout=30)


@contextlib.contextmanager
def many(node: Node, count: int) -> Iterator[list[socket.socket]]:
    """`count` bare connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 200)), hard))
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sockets.append(connect(node))
        yield sockets
    finally:
        for each in sockets:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def works(node: Node) -> bool:
    """A message goes all the way."""
    line = Line(node.address)
    try:
        assert isinstance(push(line, "jobs", [b"hello"]), api.Pushed)
        runs = take(line, "jobs")
        return (0,) == ack(line, runs)
    finally:
        line.close()


def said(sock: socket.socket) -> bytes:
    """Everything until the node closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            data += part
    return data


def reasons(data: bytes) -> set[int]:
    """The error codes with which the node said goodbye."""
    events = ClientConnection(Hello(client="flood")).receive(data)
    gone = {event.code for event in events if isinstance(event, WentAway)}
    return gone | {int(event.error.code) for event in events if isinstance(event, Closed) and event.error}


def works_again(node: Node) -> bool:
    """The node needs a turn to see that its connections ended; then it takes others."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(WalrqError, OSError, AssertionError):
            return works(node)
    return False


def test_a_thousand_connections_against_a_cap_of_64(start_node: Starter) -> None:
    """Those inside go on working, those outside are told why, and the door opens again afterwards."""
    node = start_node("--max-connections", str(CAP))
    inside = [Line(node.address) for _ in range(CAP)]
    before = node.rss_bytes()
    told = 0
    with many(node, FLOOD) as sockets:
        for sock in sockets:
            told += Code.TOO_MANY_CONNECTIONS in reasons(said(sock))
        for line in inside:
            assert isinstance(line.call(api.Ping()), api.Pong)
    grown = node.rss_bytes() - before
    for line in inside:
        line.close()

    assert FLOOD == told
    assert grown < MEMORY_GROWTH_BYTES
    assert works_again(node)


@pytest.mark.slow
def test_slow_and_silent_connections_are_ended_and_hold_nobody_up(start_node: Starter) -> None:
    """Half a frame, a byte at a time, or nothing at all: after the handshake's time-out they are gone."""
    node = start_node()
    began = time.monotonic()
    with many(node, 300) as sockets:
        hello = ClientConnection(Hello(client="slow")).take_output()
        for number, sock in enumerate(sockets):
            if number % 3 == 0:
                sock.sendall(hello[: 1 + number % (len(hello) - 1)])
            elif number % 3 == 1:
                sock.sendall(struct.pack(">I", FRAME_BYTES_MAX))
        assert works(node)
        for sock in sockets:
            said(sock)
        took = time.monotonic() - began

    assert HANDSHAKE_TIMEOUT_S * 0.8 <= took <= HANDSHAKE_TIMEOUT_S * 3
    assert works(node)


def test_connections_that_vanish_without_a_word_lose_no_lease(start_node: Starter) -> None:
    """Polls parked by clients that were reset swallow nothing: every message reaches a living client."""
    node = start_node()
    gone = [Line(node.address) for _ in range(50)]
    for line in gone:
        for _ in range(6):
            line.request(api.Poll(("jobs",), wait_ms=60_000), lambda reply: None)
    for line in gone:
        line.call(api.Ping())
    for number, line in enumerate(gone):
        if number % 2:
            # Close with a reset instead of a farewell.
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()
    line = Line(node.address)
    line.call(api.Ping())
    push(line, "jobs", [b"%d" % number for number in range(300)])
    deadline = time.monotonic() + 45
    found = 0
    while found < 300 and time.monotonic() < deadline:
        reply = line.call(api.Poll(("jobs",), max_messages=300, wait_ms=1_000))
        found += sum(run.count for run in reply.runs)
    line.close()

    assert 300 == found


def nonsense(rng: random.Random) -> Iterator[bytes]:
    """Byte strings that no client would send."""
    hello = ClientConnection(Hello(client="nonsense")).take_output()
    for _ in range(60):
        yield rng.randbytes(rng.randint(1, 400))
    for _ in range(60):
        body = rng.randbytes(rng.randint(1, 200))
        yield struct.pack(">I", len(body)) + body
    for _ in range(60):
        body = rng.randbytes(rng.randint(1, 200))
        yield hello + struct.pack(">I", len(body)) + body
    for body in (
        b"\x9b" + b"\xff" * 8,
        b"\x5b" + b"\x7f" + b"\xff" * 7,
        b"\x81" * 100_000,
        b"\xc1" * 100_000 + b"\0",
        b"\x9f" * 100_000,
        b"\x9a\x00\xff\xff\xff" * 8_000,
        b"",
    ):
        yield struct.pack(">I", len(body)) + body
        yield hello + struct.pack(">I", len(body)) + body
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield b"*1\r\n$4\r\nPING\r\n"
    yield struct.pack(">I", 0xFFFFFFFF)
    yield hello + struct.pack(">I", FRAME_BYTES_MAX + 1)
    yield hello + hello


def test_random_bytes_end_their_connection_only(start_node: Starter, rng: random.Random) -> None:
    """Whatever arrives, the node lives, answers others, and does not grow."""
    node = start_node()
    line = Line(node.address)
    before = node.rss_bytes()
    for data in nonsense(rng):
        with connect(node) as sock:
            sock.settimeout(30)
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            said(sock)
        assert node.running, node.last_words()
    assert isinstance(line.call(api.Ping()), api.Pong)
    line.close()

    assert works(node)
    assert node.rss_bytes() - before < MEMORY_GROWTH_BYTES
    assert "Traceback" not in node.last_words(1 << 20)
    assert 0 == node.stop()


def test_descriptors_run_out_and_come_back(start_node: Starter) -> None:
    """The accept loop must survive EMFILE without spinning, and accept again once descriptors are free."""
    node = start_node()
    kept = Line(node.address)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    kept.socket.settimeout(WATCH_S)
    with many(node, 200):
        assert isinstance(kept.call(api.Ping()), api.Pong)
        before = node.cpu_s()
        with contextlib.suppress(TimeoutError):
            kept.socket.recv(1)
        spent = node.cpu_s() - before
        assert node.running
    kept.close()

    assert spent < WATCH_S / 2
    assert works_again(node)
