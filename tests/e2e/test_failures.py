"""Several real nodes under kill -9, SIGSTOP and cut links: no promise is broken, and the cluster is there again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.__main__ import main
from tests.requirements import require

SMALL = ["--serve-flag=--max-wal-segment-size", "--serve-flag=4MiB"]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "kills"), [(3, 8), (5, 4)])
def test_a_leader_killed_again_and_again_breaks_no_promise(
    tmp_path: Path, seed: int, capfd: pytest.CaptureFixture[str], nodes: int, kills: int
) -> None:
    """The long run in small: every fourth window may cost the majority, in between one node is in trouble."""
    require("linux")
    load = ["--rate", "400", "--workers", "6", "--producers", "2"]
    arguments = ["cluster", "--nodes", str(nodes), "--kills", str(kills), "--seed", str(seed), *load, *SMALL]
    status = main([*arguments, "--dir", str(tmp_path)])
    output = capfd.readouterr()
    summary = json.loads(output.out.splitlines()[-1])

    assert 0 == status, output.err + output.out
    assert kills == summary["leader_kills"]
    assert summary["verdict"]["valid"]
    assert summary["verdict"]["counts"]["messages pushed ok"] > 0
    assert 1 <= summary["windows"]["majority may be gone"]
