"""A daemon shared by the tests of a module, and a client for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import walrq
from tests.forks.nodes import Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Each test uses queues of its own."""
    flags = ("--max-wal-segment-size", "1MiB", "--fsync", "never")
    with Node(tmp_path_factory.mktemp("node") / "data", flags=flags) as started:
        yield started.start()


@pytest.fixture
def client(node: Node) -> Iterator[walrq.Client]:
    """Connected to the shared daemon."""
    with walrq.connect(node.url) as connected:
        yield connected
