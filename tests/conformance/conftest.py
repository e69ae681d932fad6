"""The nodes that the suite shares, and the count of what it compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.doors.lodge import Lodge


@pytest.fixture(scope="module")
def lodge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lodge]:
    """Three nodes with all doors open."""
    with Lodge(tmp_path_factory.mktemp("lodge")) as opened:
        opened.leader()
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases there were, and on how many doors."""
    cases: dict[str, set[str]] = {}
    failed = 0
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            where, _, name = getattr(report, "nodeid", "").rpartition("::")
            if "tests/conformance/" in where and getattr(report, "when", "call") == "call" and "[" in name:
                door = name.partition("[")[2].partition(".")[0].rstrip("]")
                cases.setdefault(door, set()).add(name)
                failed += outcome != "passed"
    if cases:
        total = sum(map(len, cases.values()))
        verdict = "all equal" if not failed else f"{failed} NOT equal"
        doors = ", ".join(f"{door} {len(found)}" for door, found in sorted(cases.items()))
        terminalreporter.write_line(f"conformance: {total} cases over {len(cases)} doors, {verdict} ({doors})")
