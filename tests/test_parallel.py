"""The suite in several processes is the suite in one: same ids, same seeds; what belongs together stays together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import conftest, parallel
from tests.seeds import derive_seed

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("run_seed", [0, 5])
def test_every_process_has_the_seed_of_the_run(run_seed: int) -> None:
    """A seed drawn by each for itself could not be repeated from the one that is printed."""
    leading: Any = SimpleNamespace(stash=pytest.Stash())
    leading.stash[conftest.SESSION_SEED] = run_seed
    node = SimpleNamespace(config=leading, workerinput={})
    conftest.pytest_configure_node(node)
    led: Any = SimpleNamespace(
        stash=pytest.Stash(), option=SimpleNamespace(hypothesis_seed="1"), workerinput=node.workerinput
    )
    conftest.pytest_configure(cast(pytest.Config, led))

    assert run_seed == led.stash[conftest.SESSION_SEED]


def test_a_tests_id_and_seed_are_those_of_a_run_in_one_process(
    request: pytest.FixtureRequest, session_seed: int, seed: int
) -> None:
    """What a run in several processes prints can be given to one."""
    name = "tests/test_parallel.py::test_a_tests_id_and_seed_are_those_of_a_run_in_one_process"

    assert name == request.node.nodeid
    assert derive_seed(session_seed, name) == seed


def test_a_file_stays_together() -> None:
    """Its tests may share a fixture, and what another of them left in it."""
    assert "tests/a/test_b.py" == parallel.group_of("tests/a/test_b.py::test_c[x::y/z]")


@pytest.mark.parametrize("name", parallel.TOGETHER)
def test_a_folder_that_stays_together_is_one_group(name: str) -> None:
    """Two processes would each make its fixture, or each start several nodes at once."""
    files = sorted((ROOT / name).glob("test_*.py"))

    assert 1 < len(files)
    assert {name} == {parallel.group_of(f"{file.relative_to(ROOT)}::test_x") for file in files}


@pytest.mark.parametrize("name", [*parallel.TOGETHER, *parallel.FIRST])
def test_every_name_is_there(name: str) -> None:
    """A file that was renamed would silently lose its place."""
    assert (ROOT / name).exists()


def test_long_tests_are_handed_out_first() -> None:
    """The last one decides when the run ends."""
    ids = [f"{name}{'test_x.py' if name.endswith('/') else ''}::test_y" for name in parallel.FIRST]

    assert list(range(len(ids))) == [parallel.rank(each) for each in ids]
    assert len(ids) == parallel.rank("tests/test_ids.py::test_x")
