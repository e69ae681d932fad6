"""A scripted server, a real daemon, and both asynchronous libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.fake_server import FakeServer, running
from walrq.testing.node import Node


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every anyio test runs under both."""
    return str(request.param)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A scripted server on loopback."""
    with running() as server:
        yield server


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Node]:
    """A real `walrq serve` on a free port, killed at the end."""
    with Node(tmp_path / "data") as node:
        yield node


def url(node: Node) -> str:
    """For connect()."""
    return f"walrq://{node.ready['endpoints']['cbor']}"
