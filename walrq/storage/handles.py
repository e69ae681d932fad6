"""Read descriptors of segment files: few are open, any number of files can be read.

The lock is held over the read, so a descriptor is never closed, and its number never reused, under a reader.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from walrq.storage.disk import Disk


class ReadHandles:
    """A small LRU of read-only handles, safe to use from several threads."""

    def __init__(self, disk: Disk, handles_max: int) -> None:
        self._disk = disk
        self._handles_max = handles_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, int] = OrderedDict()

    def pread(self, path: str, size: int, offset: int) -> bytes:
        """Read from a file by path. FileNotFoundError if it was renamed away; OSError as the disk says."""
        with self._lock:
            handle = self._open.get(path)
            if handle is None:
                handle = self._disk.open(path, read_only=True)
                self._open[path] = handle
                if len(self._open) > self._handles_max:
                    self._disk.close(self._open.popitem(last=False)[1])
            else:
                self._open.move_to_end(path)
            return self._disk.pread(handle, size, offset)

    def forget(self, path: str) -> None:
        """Close the handle of a path, because the file leaves it."""
        with self._lock:
            handle = self._open.pop(path, None)
            if handle is not None:
                self._disk.close(handle)

    def close(self) -> None:
        """Close all."""
        with self._lock:
            while self._open:
                self._disk.close(self._open.popitem()[1])
