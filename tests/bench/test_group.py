"""Several nodes measured as one, and the brake on a disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench import slow_disk
from bench.group import Group
from bench.load import Link, columns
from walrq import api


def test_a_group_is_reached_at_its_leader_and_ends_in_good_order(tmp_path: Path) -> None:
    """A bench that measured a follower's refusals would measure nothing; a brake must not stop the two others."""
    with Group(tmp_path, 3, slowable=True).start() as group:
        leader = group.leader()
        group.brake(group.followers()[0], 30.0)
        link = Link(group.address)
        reply = link.call(api.Push("bench", columns(3, 10)))
        link.close()
        group.brake(group.followers()[0], 0.0)

        assert isinstance(reply, api.Pushed)
        assert 3 == reply.count
        assert leader not in group.followers()
        assert group.cpu_s() > 0
        for node in group.nodes.values():
            node.kill()


def test_a_brake_makes_each_sync_wait_as_long_as_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at before every sync, so that it works on a node that runs."""
    waits: list[float] = []
    monkeypatch.setattr(os, "fdatasync", waits.append)
    monkeypatch.setattr(time, "sleep", waits.append)
    file = tmp_path / "brake"
    slow_disk.brake(file)

    os.fdatasync(7)
    file.write_text("0.25")
    os.fdatasync(8)

    assert [7, 0.25, 8] == waits
