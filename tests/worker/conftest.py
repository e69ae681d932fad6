"""A server in this process, on a clock that tests move, and workers in threads beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.running import Running
from walrq.testing.server import Server


@pytest.fixture(params=["trio", "asyncio"])
def backend(request: pytest.FixtureRequest) -> str:
    """The event loops that handlers may run in."""
    return str(request.param)


@pytest.fixture
def server() -> Iterator[Server]:
    """A node of this test's own."""
    with Server() as started:
        yield started


@pytest.fixture
def running(server: Server) -> Iterator[Running]:
    """Starts workers of the server; all of them have ended when the test ends."""
    with Running(server) as workers:
        yield workers
