"""The ledger in spec/README.md: promise, named invariant, specification, check in the code, test, chaos checker.

An invariant has one name everywhere, so that one search finds every place that states or checks it.
"""

from __future__ import annotations

import re

import pytest

from tests.references import ROOT, Row, problem, references, rows
from walrq.formal.models import load

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
    assert 6 == len(row.cells)
    _, invariants, *places = row.cells
    (invariant,) = references(invariants)
    silent = []
    for column, cell in zip(("specification", "code", "test", "chaos"), places, strict=True):
        if cell.startswith("—"):
            assert len(cell) > len("— why"), f"{invariant}: a dash comes with its reason"
            continue
        names = references(cell)
        assert [] == [wrong for name in names if (wrong := problem(name))], invariant
        # A test may drive a checker of another file, which then stands beside it and has the name.
        texts = [(ROOT / name.partition("::")[0]).read_text() for name in names]
        if not any(re.search(rf"\b{invariant}\b", text) for text in texts):
            silent.append(f"{column}: none of {names} names {invariant}")

    assert [] == silent


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line {row.line}")
def test_each_promise_is_tested(row: Row) -> None:
    """A dash may stand for a checker that has nothing to look at, never for the test."""
    assert any("::test_" in name for name in references(row.cells[4]))


def test_what_the_ledger_names_of_the_specification_is_checked() -> None:
    """A property that no model checks is only written down."""
    manifest = load(ROOT / "spec")
    checked = {
        f"spec/{model.module}.tla::{name}"
        for model in manifest.models
        for name in (*model.invariants, *model.steps, *model.properties)
    }

    assert set() == {name for row in ROWS for name in references(row.cells[2])} - checked
