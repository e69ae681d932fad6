"""The mutants fit the code they break; `make mutants` runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.catalogue import ROOT, BadMutant, Mutant, mutants
from tests.mutants.run import copy, first_failure

ALL = mutants()


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.id)
def test_each_mutant_still_fits(mutant: Mutant) -> None:
    """Its text stands in the code exactly once, what replaces it is Python, and it differs."""
    text = mutant.mutated(ROOT)

    assert mutant.search != mutant.replace
    ast.parse(text)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.id)
def test_each_killer_is_a_test_that_exists(mutant: Mutant) -> None:
    """A killer that was renamed would be noticed only by who runs the mutants."""
    assert bool(mutant.killers) == (mutant.equivalent is None)
    for killer in mutant.killers:
        path, _, name = killer.partition("::")
        names = name.partition("[")[0].split("::")
        source = (ROOT / path).read_text()

        assert not name or f"def {names[-1]}(" in source or f"{names[-1]} = " in source, killer


def test_ids_are_unique() -> None:
    """One table row each."""
    ids = [mutant.id for mutant in ALL]

    assert sorted(set(ids)) == ids


def test_text_that_is_gone_or_ambiguous_is_refused(tmp_path: Path) -> None:
    """A mutant that changes nothing, or two places, would say nothing."""
    (tmp_path / "code.py").write_text("a = 1\nb = 1\n")
    for search in ("c = 1", " = 1"):
        with pytest.raises(BadMutant):
            Mutant("X", "Y", "z", "code.py", search, "").mutated(tmp_path)


def test_the_copy_is_whole(tmp_path: Path) -> None:
    """Tests find all they read."""
    copy(tmp_path)

    assert (tmp_path / "walrq" / "queues" / "machine.py").is_file()
    assert (tmp_path / "tests" / "conftest.py").is_file()
    assert (tmp_path / "pyproject.toml").is_file()


def test_the_first_failure_of_a_killer_is_named() -> None:
    """The table says which test it was; another killer's failure is not counted for this one."""
    output = "...F\nFAILED tests/q/test_x.py::test_y[1] - assert\nFAILED tests/q/test_x.py::test_yes\n"

    assert "test_x.py::test_y[1]" == first_failure(output, "tests/q/test_x.py::test_y")
    assert "test_x.py::test_y[1]" == first_failure(output, "tests/q/test_x.py")
    assert "" == first_failure(output, "tests/q/test_x.py::test_ye")
    assert "test_z.py" == first_failure("ERROR tests/test_z.py - SyntaxError", "tests/test_z.py::test_a")
