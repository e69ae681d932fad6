"""What every test gets: a printed seed, Hypothesis profiles, signals as they were, a list of what was skipped.

Seeds. One integer drives all randomness of a run. It is printed in the header; `WALRQ_SEED=123` repeats it. Without it
the `ci` profile always takes the same one, and `soak` draws one. A test takes `seed` (its own integer, derived from the
session's and the test's id, so that tests do not shift each other's draws) or `rng` (a random.Random started from it);
a failing test prints its seed.

Profiles. `ci` (the default) draws the same examples on every run, so that a landing is never red by
chance; `WALRQ_HYPOTHESIS=soak` draws many and new ones, from the session's seed.

Trio tests are marked `pytest.mark.trio` module by module. The trio mode of pytest-trio is never switched
on: it would run anyio's asyncio tests under trio without saying so.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import parallel
from tests.requirements import required_names
from tests.seeds import SEED_MAX, derive_seed

hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    print_blob=True,
    max_examples=60,
    stateful_step_count=40,
    # Two shared cores: the time of one example says nothing about the code.
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "soak",
    print_blob=True,
    max_examples=2_000,
    stateful_step_count=200,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
SESSION_SEED = pytest.StashKey[int]()
SEED_OF_RUN = "walrq_session_seed"
PROFILE = os.environ.get("WALRQ_HYPOTHESIS", "ci")
hypothesis.settings.load_profile(PROFILE)


# A landing is never red by chance; new ground is for `soak`, or for a WALRQ_SEED of one's own.
LANDING_SEED = 20_261_130


def _session_seed() -> int:
    text = os.environ.get("WALRQ_SEED", "")
    if text:
        return int(text)
    return secrets.randbelow(SEED_MAX + 1) if PROFILE == "soak" else LANDING_SEED


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    try:
        required_names(os.environ.get("WALRQ_REQUIRE", ""))
        # One of several processes is told the run's.
        told = getattr(config, "workerinput", {}).get(SEED_OF_RUN)
        session_seed = _session_seed() if told is None else told
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SESSION_SEED] = session_seed
    # A run in the background of a script inherits an ignored SIGINT, and would hand it on to every node and command
    # that it starts: what Ctrl-C does could not be tested.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The same of a run under nohup, whose nodes would never reload.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(session_seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell one of several processes the run's seed."""
    node.workerinput[SEED_OF_RUN] = node.config.stash[SESSION_SEED]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> parallel.Scheduling:
    """Decide which tests share a process."""
    return parallel.Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes none is left with a long test at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: parallel.rank(item.nodeid))


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.stash[SESSION_SEED]
    required = os.environ.get("WALRQ_REQUIRE") or "nothing"
    return [f"walrq: WALRQ_SEED={seed} WALRQ_HYPOTHESIS={PROFILE} WALRQ_REQUIRE={required}"]


@pytest.fixture(scope="session")
def session_seed(pytestconfig: pytest.Config) -> int:
    """The integer behind all randomness of this run, as printed in the header."""
    return pytestconfig.stash[SESSION_SEED]


@pytest.fixture
def seed(session_seed: int, request: pytest.FixtureRequest) -> int:
    """This test's own seed. It is printed when the test fails."""
    value = derive_seed(session_seed, request.node.nodeid)
    request.node.add_report_section("setup", "seed", f"seed {value} (from WALRQ_SEED={session_seed})")
    return value


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A random stream started from this test's seed."""
    return random.Random(seed)


@pytest.fixture
def repository_root() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of the person who runs the tests never reach the code under test."""
    steering = {"WALRQ_SEED", "WALRQ_REQUIRE", "WALRQ_HYPOTHESIS"}
    for name in list(os.environ):
        if (name.startswith("WALRQ_") and name not in steering) or name in {
            "DATA_DIR",
            "NODE_ID",
            "ENABLE_METRICS",
        }:
            monkeypatch.delenv(name)
    yield


# What ends, stops or wakes a process from outside: who runs the tests counts on these.
WATCHED_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGTSTP", "SIGWINCH", "SIGCHLD", "SIGPIPE")
    if hasattr(signal, name)
)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """A test that leaves a signal handler behind makes the whole run deaf to Ctrl-C and to `kill`: it fails."""
    before = {number: signal.getsignal(number) for number in WATCHED_SIGNALS}
    yield
    left = {number: now for number, handler in before.items() if (now := signal.getsignal(number)) != handler}
    for number in left:
        signal.signal(number, before[number])
    assert not left, f"the test left signal handlers behind: {left}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason for a skip once, with the tests it left out."""
    rows: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        rows.setdefault(reason.removeprefix("Skipped: "), []).append(report.nodeid)
    if not rows:
        return
    terminalreporter.section("skipped: what this machine lacks", sep="-")
    width = max(len(reason) for reason in rows)
    for reason, tests in sorted(rows.items()):
        shown = ", ".join(tests[:3]) + (f" and {len(tests) - 3} more" if len(tests) > 3 else "")
        terminalreporter.write_line(f"{reason:<{width}}  {len(tests):>4}  {shown}")
