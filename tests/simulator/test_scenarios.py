"""Known hard cases of whole replicas, told as commands and what follows.

`python -m tests.simulator.stage --rewrite FILE` after a change.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.stage import HERE, difference, main, played

FILES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_goes_as_it_is_told(path: Path) -> None:
    """Each file opens with the case it guards; a difference is shown as a diff, a broken promise as itself."""
    found = difference(path)

    assert not found, f"\n{found}"


def test_the_known_cases_are_there() -> None:
    """A case whose file was lost would guard nothing."""
    assert {
        "disruptive_rejoin",
        "exactly_once_over_failover",
        "figure_7",
        "figure_8",
        "lease_over_failover",
        "membership_bug",
        "rotten_follower",
        "snapshot_over_conflict",
        "stale_leader_read",
        "wall_clocks",
    } <= {path.stem for path in FILES}


def test_a_difference_is_seen_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner must be able to fail."""
    path = tmp_path / "one.txt"
    path.write_text("# nothing\n\nnodes 1\nstate\n----\nsomething else\n")
    assert 1 == main([str(path)])
    assert "+n1 leader term 1" in capsys.readouterr().out

    assert 0 == main(["--rewrite", str(path)])
    assert 0 == main([str(path)])
    assert path.read_text() == played(path.read_text())
