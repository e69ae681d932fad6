"""Known hard cases, told as commands and what follows. `python -m tests.raft.stage --rewrite FILE` after a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.stage import BROKEN, HERE, difference, main, played

FILES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_goes_as_it_is_told(path: Path) -> None:
    """Each file opens with the case it guards; a difference is shown as a diff."""
    found = difference(path)

    assert not found, f"\n{found}"
    assert BROKEN not in path.read_text()


def test_the_known_cases_are_there() -> None:
    """A case whose file was lost would guard nothing."""
    assert {
        "conflicting_snapshot",
        "disruptive_rejoin",
        "disruptive_rejoin_without_pre_vote",
        "figure_7",
        "figure_8",
        "learner",
        "membership_bug",
        "partial_connectivity",
        "removed_leader",
        "stale_leader_read",
        "stalled_disk",
        "transfer",
    } <= {path.stem for path in FILES}


def test_a_difference_is_seen_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner must be able to fail."""
    path = tmp_path / "one.txt"
    path.write_text("# nothing\n\ngroup a\ncampaign a\nstate\n----\nsomething else\n")
    assert 1 == main([str(path)])
    assert "+a is leader in term 1" in capsys.readouterr().out

    assert 0 == main(["--rewrite", str(path)])
    assert 0 == main([str(path)])
    assert path.read_text() == played(path.read_text())
