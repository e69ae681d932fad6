"""The wait for a new leader is measured from the signal on, and it is the longest push that counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.failover import Pusher


def test_the_longest_push_after_the_signal_counts_from_the_signal_on() -> None:
    """A push that was under way when the leader went has waited since then, not since it began."""
    pusher = Pusher("walrq://127.0.0.1:1", 1)
    pusher.pushes = [(0, 900), (950, 1_300), (1_310, 1_400), (1_405, 1_410)]

    assert 300 == pusher.longest_since(1_000)
    assert 90 == pusher.longest_since(1_305)


def test_what_ends_the_pushes_is_said() -> None:
    """A bench that waits for pushes of a thread that has ended waits for ever."""
    pusher = Pusher("walrq://127.0.0.1:1", 1)
    pusher.failed = ConnectionRefusedError()

    with pytest.raises(RuntimeError, match="no more pushes"):
        pusher.wait_begun_after(0)


@pytest.mark.slow
def test_one_leader_lost_of_each_kind_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three real nodes, one kill, one polite stop: both figures are there, and the cluster was whole in between."""
    status = main(["failover", "--rounds", "1", "--dir", str(tmp_path), "--fsync", "never", "--json"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert 0 == status
    assert {"kill", "term"} == set(figures["wait_ms"])
    assert all(0 < waits["max"] < 60_000 for waits in figures["wait_ms"].values())
