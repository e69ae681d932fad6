"""`walrq spec` as people run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.requirements import require

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 120


def test_a_terminated_check_leaves_nothing_behind(tmp_path: Path) -> None:
    """A search that outlived its command would heat a machine for hours."""
    require("java")
    command = [sys.executable, "-m", "walrq", "spec", "check", "Queue.drift", "Queue.order_again"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # The first model is done, the second on its way.
        assert process.stdout.readline().startswith(b"Queue.drift\t")
        process.send_signal(signal.SIGTERM)
        status = process.wait(SECONDS_MAX)

    assert 143 == status
    assert [] == list(tmp_path.glob("walrq-spec-*"))
