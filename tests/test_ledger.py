"""The ledger in spec/README.md: promise, named invariant, check in the code, test, chaos checker.

An invariant has one name everywhere, so that one search finds every place that states or checks it.
"""

from __future__ import annotations

import re

import pytest

from tests.references import ROOT, Row, problem, references, rows

PAGE = ROOT / "spec/README.md"
ROWS = rows(PAGE, header="promise")
PROMISES = 10


def test_all_ten_promises_are_in_the_ledger() -> None:
    """A promise without a row is a wish; docs/guarantees.md prints exactly these."""
    page = (ROOT / "docs/guarantees.md").read_text()
    printed = re.findall(r"^\*\*(\d+\. [\w ]+)\.\*\*", page, flags=re.MULTILINE)
    listed = list(dict.fromkeys(row.cells[0] for row in ROWS))

    assert printed == listed
    assert PROMISES == len(printed)


def test_an_invariant_has_one_row() -> None:
    """Two rows for one name could come to disagree."""
    names = [name for row in ROWS for name in references(row.cells[1])]

    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line {row.line}")
def test_each_place_in_the_ledger_exists_and_names_the_invariant(row: Row) -> None:
    """The ledger is worth as much as a search for the name: every place it leads to says the same name."""
    assert 5 == len(row.cells)
    _, invariants, *places = row.cells
    (invariant,) = references(invariants)
    silent = []
    for cell in places:
        if cell.startswith("—"):
            continue
        assert references(cell), f"{invariant}: an empty place is written as a dash with its reason"
        for name in references(cell):
            wrong = problem(name)
            assert wrong is None, f"{invariant}: {wrong}"
            path = ROOT / name.partition("::")[0]
            if path.suffix == ".py" and not re.search(rf"\b{invariant}\b", path.read_text()):
                silent.append(f"{path.relative_to(ROOT)} does not name {invariant}")

    assert [] == silent


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line {row.line}")
def test_each_promise_is_tested(row: Row) -> None:
    """A dash may stand for a checker that has nothing to look at, never for the test."""
    assert any("::test_" in name for name in references(row.cells[3]))
