"""The pytest plugin: fixtures with a real walrq node in the test's own process; installed with walrq, always on.

    walrq_server          a fresh node; `url`, `connect(...)`, `connect_async(...)`; WALRQ_SERVER names it meanwhile
    walrq_client          a blocking client of it
    walrq_async_client    `async with walrq_async_client as client:`, under trio and asyncio, whatever runs the test
    walrq_clock           moves the node's time, and that of all clients and workers: `advance(seconds)`
    walrq_run             `walrq_run(worker)` runs the application's tasks until their queues are empty
    walrq_faults          crashes, cut connections, lost answers, a full disk
    walrq_seed            what is left to chance is drawn from it; repeated by --walrq-seed=N
    walrq_session_server  one node for all tests; `reset()` empties it

Nothing of walrq is imported before a fixture is used: projects that do not test with it pay one small module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from walrq.client.blocking import Client
    from walrq.testing.clock import MovableClock
    from walrq.testing.faults import Faults
    from walrq.testing.running import Runner
    from walrq.testing.server import AsyncConnection, Server

_SEED = pytest.StashKey[int]()
_SERVERS = pytest.StashKey["list[Server]"]()
_SEED_BYTES = 4
_OPTION = "--walrq-seed"
_MARKER = "walrq_settings"


def _seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << (8 * _SEED_BYTES):
        raise ValueError(text)
    return number


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one option."""
    parser.getgroup("walrq", "walrq").addoption(
        _OPTION,
        type=_seed,
        default=None,
        metavar="N",
        help="seed of walrq's faults, 0 to 4294967295; a failing test says which one it had. Default: a new one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the run's seed, once for all workers of pytest-xdist."""
    config.addinivalue_line(
        "markers", f"{_MARKER}(**settings): settings of this test's walrq node, such as auto_create=False"
    )
    seed = config.getoption(_OPTION.strip("-").replace("-", "_"), None)
    if seed is None:
        seed = getattr(config, "workerinput", {}).get(_OPTION)
    config.stash[_SEED] = int.from_bytes(os.urandom(_SEED_BYTES), "big") if seed is None else seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist the seed."""
    node.workerinput[_OPTION] = node.config.stash[_SEED]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The seed, when it was asked for: others are not bothered, and a failing test says its own."""
    given = config.getoption(_OPTION.strip("-").replace("-", "_"), None)
    return [] if given is None else [f"walrq: {_OPTION}={given}"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the server of a failing test while it is still there."""
    report = yield
    servers = list(item.stash.get(_SERVERS, ()))
    shared = getattr(item, "funcargs", {}).get("walrq_session_server")
    servers += [shared] if shared is not None else []
    if servers and report.failed and report.when != "teardown":
        from walrq.testing.report import describe

        repeat = f"pytest {_OPTION}={item.config.stash[_SEED]}"
        report.sections += [("walrq", describe(server, repeat=repeat)) for server in servers]
    return report


@pytest.fixture
def walrq_seed(request: pytest.FixtureRequest) -> int:
    """This test's own seed, from that of the run and the test's name."""
    from walrq.testing.faults import derive_seed

    return derive_seed(request.config.stash[_SEED], request.node.nodeid)


@pytest.fixture
def walrq_clock() -> Iterator[MovableClock]:
    """A clock that this test moves; clients and workers made without a clock of their own follow it meanwhile."""
    from walrq.client.clock import SYSTEM
    from walrq.testing.clock import MovableClock

    clock = MovableClock()
    clock.lead(SYSTEM)
    try:
        yield clock
    finally:
        clock.let_go(SYSTEM)


@pytest.fixture
def walrq_server(request: pytest.FixtureRequest, walrq_clock: MovableClock, walrq_seed: int) -> Iterator[Server]:
    """A fresh node for this test, up and listening; `walrq.connect()` without an address finds it."""
    from walrq.testing.server import Server

    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(_MARKER))):
        settings.update(marker.kwargs)
    with Server(walrq_clock, seed=walrq_seed, **settings) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("WALRQ_SERVER", server.url)
        shown = request.node.stash.setdefault(_SERVERS, [])
        shown.append(server)
        _close_publishers()
        try:
            yield server
        finally:
            _close_publishers()
            shown.remove(server)


def _close_publishers() -> None:
    """A worker of the application keeps the connection that `enqueue` made, and every test has another server."""
    if "walrq.worker.publishing" in sys.modules:
        from walrq.worker.publishing import close_all

        close_all()


@pytest.fixture
def walrq_client(walrq_server: Server) -> Client:
    """A connected blocking client; closed with the server."""
    return walrq_server.connect()


@pytest.fixture
def walrq_async_client(walrq_server: Server) -> AsyncConnection:
    """To be entered by the test itself, in whichever event loop runs it: `async with walrq_async_client as client:`."""
    return walrq_server.connect_async()


@pytest.fixture
def walrq_faults(walrq_server: Server) -> Faults:
    """What can be done to the server."""
    return walrq_server.faults


@pytest.fixture
def walrq_run(walrq_server: Server) -> Runner:
    """`walrq_run(worker)` runs a worker of the application until its queues are empty."""
    from walrq.testing.running import Runner

    return Runner(walrq_server, reported=True)


@pytest.fixture(scope="session")
def walrq_session_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One node for the whole run (of one pytest-xdist worker), with a clock of its own: `walrq_session_server.clock`.

    For fixtures that live as long, such as an application under test. Its queues are those of all tests: use names of
    your own in each, or call `reset()` before.
    """
    from walrq.testing.server import Server

    with Server(seed=request.config.stash[_SEED]) as server:
        yield server
