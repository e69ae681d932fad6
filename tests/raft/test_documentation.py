"""docs/consensus.md says what the code does: its tables are the code's tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from walrq.raft import progress, roles
from walrq.raft.messages import NUMBERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/consensus.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table behind a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_the_table_of_roles() -> None:
    """A reader who counts on it must be right."""
    told = {(row[0], row[1]) for row in rows("Roles")}

    assert told == {(one.value, other.value) for one, other in roles.TRANSITIONS}


def test_the_page_has_the_table_of_progress() -> None:
    """Row by row."""
    told = {(row[0], row[1], row[2]) for row in rows("A follower's progress")}

    assert told == {(state.value, event.value, to.value) for (state, event), to in progress.TRANSITIONS.items()}


def test_the_page_has_every_message() -> None:
    """In the order of their numbers."""
    assert [f"`{kind.__name__}`" for kind in NUMBERS] == [row[0] for row in rows("What peers say")]


def test_the_page_has_every_module() -> None:
    """And none that is gone."""
    told = set(re.findall(r"`(\w+\.py)`", PAGE.partition("\n## Who does what\n")[2].partition("\n## ")[0]))

    assert told == {path.name for path in (ROOT / "walrq/raft").glob("*.py")} - {"__init__.py"}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z]\w+)`", PAGE.partition("\nInvariants: ")[2]))))
def test_every_invariant_has_its_name_in_code_or_tests(name: str) -> None:
    """One name everywhere: one search finds all places."""
    texts = [path.read_text() for folder in ("walrq/raft", "tests/raft") for path in (ROOT / folder).glob("*.py")]

    assert any(re.search(rf"\b{name}\b", text) for text in texts if text is not PAGE), name
