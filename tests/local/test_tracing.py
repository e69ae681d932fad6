"""A node's trace as a file: whole over all its lives, and never in the way of the node."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from walrq.errors import ConfigError
from walrq.local.tracing import TraceFile, path_of

LINE = {"event": "Start", "node": "n1"}


def test_the_next_life_goes_on_behind_the_last_whole_line(tmp_path: Path) -> None:
    """A process that was killed in the middle of a line leaves half of it, also of one longer than a look back."""
    path = path_of(str(tmp_path / "traces"), "n1")
    for number, half in enumerate((b'{"event": "Pers', b"x" * 200_000, b"")):
        trace = TraceFile(str(tmp_path / "traces"), "n1")
        trace({**LINE, "tick": number})
        trace.close()
        with path.open("ab") as file:
            file.write(half)
    TraceFile(str(tmp_path / "traces"), "n1").close()

    assert [0, 1, 2] == [json.loads(line)["tick"] for line in path.read_text().splitlines()]


def test_any_name_of_a_node_is_the_name_of_a_file(tmp_path: Path) -> None:
    """Names are free text; a slash leads into no other folder."""
    TraceFile(str(tmp_path), "../a/b c").close()

    assert [path_of(str(tmp_path), "../a/b c")] == list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    """The setting and why."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"trace_to .*file/x cannot be used: Not a directory"):
        TraceFile(str(tmp_path / "file/x"), "n1")


def test_a_full_disk_ends_the_trace_and_not_the_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; what would come later does not fit what is there."""
    (tmp_path / "n1.jsonl").symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING):
        trace = TraceFile(str(tmp_path), "n1")
        trace(LINE)
        trace(LINE)
        trace.close()

    assert ["trace_failed error=No space left on device: the trace ends here and cannot be judged"] == caplog.messages
