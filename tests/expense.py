"""What each file of tests costs: `pytest -p tests.expense` prints the processor seconds, not those on the wall.

Wall time says little on a machine that does other things too. Counted are this process and the children that it waited
for; a child that outlives its test is counted where it is reaped, a fixture's where the fixture ends.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Final

import pytest

PROPERTY: Final = "processor seconds"
FILES_MAX: Final = 60
TESTS_MAX: Final = 40


def spent() -> float:
    """Processor seconds of this process and of the children it has reaped, user and system."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """Read the meter once before the test's fixtures."""
    item.stash[_BEFORE] = spent()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    """Read it again when the test's fixtures are gone; a report's properties reach the process that prints."""
    report: pytest.TestReport = yield
    if report.when == "teardown":
        report.user_properties = [*report.user_properties, (PROPERTY, spent() - item.stash[_BEFORE])]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The dearest files, then the dearest tests, then all of it."""
    tests: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == PROPERTY:
                    tests[report.nodeid] = value
    files: dict[str, float] = {}
    for nodeid, value in tests.items():
        file = nodeid.partition("::")[0]
        files[file] = files.get(file, 0.0) + value
    terminalreporter.section(f"processor seconds: {sum(files.values()):.1f} in all", sep="-")
    for rows, most in ((files, FILES_MAX), (tests, TESTS_MAX)):
        for name, value in sorted(rows.items(), key=lambda row: -row[1])[:most]:
            terminalreporter.write_line(f"{value:8.2f}  {name}")


_BEFORE: Final = pytest.StashKey[float]()
