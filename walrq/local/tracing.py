"""The trace of a node's consensus as a file: a line of JSON for each step, which `walrq spec validate --merge` judges.

A line is with the kernel before whatever follows from its step can leave the node: `kill -9` loses no line of
something that another node may have seen. A next start goes on behind the last whole line. Blocking, and only as long
as the kernel takes for a write into its cache; a power loss may take lines with it, so such runs are not judged.

Never: ends a node. A trace that cannot be written is given up, and that is logged.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from walrq.errors import ConfigError

log = logging.getLogger("walrq.trace")

SUFFIX: Final = ".jsonl"
_TAIL_BYTES: Final = 1 << 16


def path_of(folder: str, node_id: str) -> Path:
    """Where a node's trace lies; every name of a node is some file's."""
    return Path(folder) / (quote(node_id, safe="") + SUFFIX)


class TraceFile:
    """Takes the lines of one node, over all its lives; a sink of `walrq.raft.trace`."""

    def __init__(self, folder: str, node_id: str) -> None:
        """
        Raises:
            ConfigError: the folder or the file cannot be made.
        """
        path = path_of(folder, node_id)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.lseek(self._file, _cut(self._file), os.SEEK_SET)
        except OSError as error:
            raise ConfigError(f"trace_to {folder} cannot be used: {error.strerror}", setting="trace_to") from None
        self._is_whole = True

    def __call__(self, line: dict[str, Any]) -> None:
        """Take a line."""
        if not self._is_whole:
            return
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            # What comes later would not fit what is there.
            self._is_whole = False
            log.warning("trace_failed error=%s: the trace ends here and cannot be judged", error.strerror)

    def close(self) -> None:
        """No line comes any more."""
        self._is_whole = False
        os.close(self._file)


def _cut(file: int) -> int:
    """Cut a line that a killed process left half written; where the next one begins."""
    end = size = os.fstat(file).st_size
    while end:
        start = max(0, end - _TAIL_BYTES)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
    return end
