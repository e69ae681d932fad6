"""Which tests share a process when the suite runs in several (`pytest -n 2`, as `make test` does).

A file's tests run in one process, one after the other and in their order, because they share fixtures and what those
made. So do those of the folders in `TOGETHER`, because they share a fixture that is dear, or because each test starts
several nodes: of two such at once none might have the time to elect a leader. Files that take long come first, so that
no process is left with one at the end.

The tests' ids, and so their seeds, are those of a run in one process. (xdist's own groups are part of the ids.)
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = ("tests/docs/", "tests/e2e/")
# The dearest first, as `pytest -p tests.expense` measures them.
FIRST: Final = (
    "tests/e2e/",
    "tests/simulator/test_seeds.py",
    "tests/docs/",
    "tests/spec/test_tlc.py",
    "tests/test_packaging.py",
    "tests/storage/test_crash_enumeration.py",
    "tests/replica/test_crash_enumeration.py",
    "tests/simulator/test_few_seeds.py",
    "tests/storage/test_install.py",
)


def file_of(nodeid: str) -> str:
    """The file in a test's id."""
    return nodeid.partition("::")[0]


def group_of(nodeid: str) -> str:
    """What a test shares its process with: every test that has the same group."""
    file = file_of(nodeid)
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def rank(nodeid: str) -> int:
    """The test's place in the order in which they are handed out, to sort by."""
    names = (file_of(nodeid), group_of(nodeid))
    return next((number for number, name in enumerate(FIRST) if name in names), len(FIRST))


class Scheduling(LoadScopeScheduling):
    """Hands out groups in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
