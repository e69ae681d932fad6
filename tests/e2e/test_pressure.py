"""A node with too little of something: descriptors, memory, disk. Clear refusals, no end, recovery by itself."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import walrq
import walrq.aio
from walrq.errors import Overloaded
from walrq.testing.node import Node

DESCRIPTORS = 64


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A child with a small log."""
    with Node(tmp_path / "data", flags=["--max-wal-segment-size", "262144", "--fsync", "never"]) as node:
        node.start()
        yield node


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Closes what a test opens."""
    with contextlib.ExitStack() as stack:
        yield stack


def url(node: Node) -> str:
    """Where it is."""
    return f"walrq://{node.ready['endpoints']['cbor']}"


async def name_queues(address: str, number: int) -> None:
    """Make queues, many at a time."""
    async with walrq.aio.connect(address) as client, trio.open_nursery() as nursery:

        async def some(first: int) -> None:
            for k in range(first, number, 50):
                await client.push(f"queue-{k}", b"")

        for first in range(50):
            nursery.start_soon(some, first)


def test_with_64_descriptors_ten_thousand_queues_and_a_crowd_of_clients_the_log_goes_on(
    node: Node, stack: contextlib.ExitStack
) -> None:
    """Queues cost none; clients get all but the last; new segments are opened, old ones read; nobody hangs."""
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    before = len(os.listdir(f"/proc/{node.pid}/fd"))
    trio.run(name_queues, url(node), 10_000)
    client = stack.enter_context(walrq.connect(url(node)))
    client.push("large", b"")
    # Not one for a queue; a snapshot or two may be under way.
    assert len(os.listdir(f"/proc/{node.pid}/fd")) <= before + 8
    host, port = node.ready["endpoints"]["cbor"].split(":")
    told = 0
    for _ in range(2 * DESCRIPTORS):
        sock = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        sock.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            told += bool(sock.recv(1))
    assert told >= DESCRIPTORS, "hardly anybody was refused"
    # Several segments' worth, then all of it again from the disk.
    for k in range(100):
        client.push("large", b"%03d" % k * 10_000)
    (first,) = client.poll("large", max_messages=1)
    client.ack(first)
    taken = [client.poll("large", max_messages=1)[0].payload[:3] for _ in range(100)]
    assert taken == [b"%03d" % k for k in range(100)]


def test_a_node_with_a_bound_for_its_memory_refuses_pushes_and_serves_the_rest(tmp_path: Path) -> None:
    """What is there can be taken; pushes are told why they wait, and are taken again once there is less."""
    flags = ["--fsync", "never", "--max-memory", "1MiB"]
    with Node(tmp_path / "data", flags=flags) as node, walrq.connect(url(node.start()), timeout_s=2) as client:
        with pytest.raises(Overloaded, match=r"max_memory: this node uses .* MiB, allowed are 1 MiB"):
            for _ in range(1_000):
                client.push("jobs", b"x")
        assert [] == client.poll("other")
        for message in client.poll("jobs", max_messages=1_000):
            client.ack(message)
        assert "max_memory" in node.last_words()
        assert node.stop() == 0
