"""A follower that comes back: what counts as a pause, and that the bench runs to its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.catchup import pauses, unexplained

MS = 1_000_000


def test_a_pause_is_long_and_ends_in_the_time_that_is_looked_at() -> None:
    """What happened before the follower came back is not its doing."""
    times = [(0, 150 * MS), (100 * MS, 350 * MS), (400 * MS, 601 * MS), (700 * MS, 1_000 * MS)]

    assert times[1:3] == pauses(times, 300 * MS, 900 * MS)


def test_a_pause_that_the_bare_disk_had_as_well_is_explained() -> None:
    """Whoever shares a disk waits when it does; only what the disk does not explain is the cluster's."""
    pushes = [(1_000 * MS, 1_300 * MS), (2_000 * MS, 2_300 * MS), (3_000 * MS, 3_300 * MS)]
    disk = [(1_250 * MS, 1_500 * MS), (2_350 * MS, 2_600 * MS)]

    assert [pushes[2]] == unexplained(pushes, disk)
    assert [] == unexplained([], disk)


@pytest.mark.slow
def test_a_follower_is_stopped_and_catches_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three real nodes and few messages: the figures are there, and the follower got what it lacked."""
    arguments = ["--messages", "2000", "--by", "snapshot", "--settled", "--fsync", "never"]
    status = main(["catchup", *arguments, "--dir", str(tmp_path), "--json"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert 0 == status
    assert 0 < figures["caught_up_s"]
    assert 0 < figures["pushes_meanwhile"]
