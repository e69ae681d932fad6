"""What the disk alone can do: append a record to a preallocated file and fdatasync it, nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

PREALLOCATED_BYTES = 64 * 1024 * 1024


class Probe:
    """A preallocated file, written front to back and again from the front."""

    def __init__(self, folder: Path, size: int) -> None:
        """`size`: bytes of one record."""
        self._record = os.urandom(size)
        self._at = 0
        self._fd = os.open(folder / "probe", os.O_CREAT | os.O_RDWR)
        # Real blocks, written once: the first write into a reserved but unwritten extent costs a journal
        # entry.
        for _ in range(PREALLOCATED_BYTES // (1 << 20)):
            os.write(self._fd, bytes(1 << 20))
        os.fsync(self._fd)

    def append(self) -> int:
        """Write one record and sync it; returns nanoseconds."""
        if self._at + len(self._record) > PREALLOCATED_BYTES:
            self._at = 0
        begun = time.perf_counter_ns()
        os.pwrite(self._fd, self._record, self._at)
        os.fdatasync(self._fd)
        ended = time.perf_counter_ns()
        self._at += len(self._record)
        return ended - begun

    def close(self) -> None:
        """End it."""
        os.close(self._fd)
