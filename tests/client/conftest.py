"""A scripted server, and both asynchronous libraries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.fake_server import FakeServer, running


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every anyio test runs under both."""
    return str(request.param)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A scripted server on loopback."""
    with running() as server:
        yield server
