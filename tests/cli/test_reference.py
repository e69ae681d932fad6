"""docs/cli.md has every command and option as the program has them, and no other exit status."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.reference import BEGIN, PAGE, written
from walrq.cli.app import INTERRUPTED, PIPE_CLOSED
from walrq.daemon.config import OTHERS_VARIABLES
from walrq.errors import ERRORS


def test_the_reference_is_that_of_the_program() -> None:
    """`python -m tests.cli.reference` writes it; nobody describes an option twice."""
    page = PAGE.read_text()

    assert BEGIN in page
    assert written() == page, "run python -m tests.cli.reference"


def test_the_statuses_are_those_of_the_table() -> None:
    """Scripts branch on them: each is there, with all the errors behind it."""
    text = PAGE.read_text().partition("## Exit status")[2].partition("\n## ")[0]
    listed = {
        int(status): set(re.findall(r"`([A-Z_]+)`", names))
        for status, names in re.findall(r"^\| (\d+) \| (.*) \|$", text, flags=re.MULTILINE)
    }
    expected: dict[int, set[str]] = {}
    for code, table_row in ERRORS.items():
        expected.setdefault(table_row.exit, set()).add(code.name)

    assert expected == {status: names for status, names in listed.items() if names}
    assert {0, 2, INTERRUPTED, PIPE_CLOSED} == {status for status, names in listed.items() if not names}


def test_every_variable_of_the_command_line_is_listed() -> None:
    """Those of the tests and of the daemon's settings have pages of their own."""
    text = PAGE.read_text().partition("## Variables")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)`", text, flags=re.MULTILINE))
    source = "".join(path.read_text() for path in sorted(Path(PAGE.parent.parent / "walrq/cli").glob("*.py")))

    assert {"WALRQ_SERVER", "WALRQ_CONTEXT", "WALRQ_CONFIG"} == {
        name for name in listed & OTHERS_VARIABLES if name in source
    }
    assert {"XDG_CONFIG_HOME", "NO_COLOR", "FORCE_COLOR", "TERM"} <= listed
