"""docs/features.md names only what exists, and says of each feature what shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.references import Row, problem, program_of, references, rows

PAGE = Path(__file__).resolve().parent.parent / "docs/features.md"
ROWS = rows(PAGE, header="feature")
NOT_YET = "not yet"


def test_the_page_has_its_rows() -> None:
    """An unreadable table would make every check below pass."""
    assert len(ROWS) >= 30
    assert {3} == {len(row.cells) for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line {row.line}")
def test_each_feature_is_shown_or_marked(row: Row) -> None:
    """A feature has a place and a test or command that shows it, or says `not yet`; never half of both."""
    _, where, shown = row.cells
    if shown.startswith(NOT_YET):
        assert "—" == where, "what is not there yet has no place"
        return

    assert references(where), "say where it lives"
    assert references(shown), "say what shows it, or write `not yet`"
    assert [] == [text for name in references(where) + references(shown) if (text := problem(name))]
    shows = [name for name in references(shown) if "::test_" in name or program_of(name)]
    assert shows == references(shown), "a feature is shown by a test or a command"


@pytest.mark.parametrize(
    ("reference", "wrong"),
    [
        ("tests/test_features.py", None),
        ("tests/test_features.py::test_the_page_has_its_rows", None),
        ("tests/references.py::Row", None),
        ("make test", None),
        ("tests/no_such_file.py", "does not exist"),
        ("tests/test_features.py::test_nothing", "does not define"),
        ("make no-such-target", "no target"),
        ("python -m chaos no-such-scenario", "no help"),
    ],
)
def test_a_wrong_reference_is_noticed(reference: str, wrong: str | None) -> None:
    """The look-up behind both tables is itself tried on what is there and what is not."""
    found = problem(reference)

    if wrong is None:
        assert None is found
    else:
        assert found is not None
        assert wrong in found
