"""A `SimDisk` below a running node: for several threads, and with faults that come and go while it runs.

The node's persist thread writes while others read, so every operation is one step under a lock. `cut_power` ends the
disk: what an instant later would have been written never is, and whoever tries learns it by `PowerOff`, so that nothing
can be acknowledged that the disk of the next life does not hold.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from walrq.storage.snapshot import RESERVE_NAME
from walrq.testing.disk import PowerOff, SimDisk

# The simulated disk numbers its operations for tests of storage; nobody asks here, and a long session has many.
_OPERATIONS_KEPT_MAX: Final = 10_000
_RESERVE: Final = f"/{RESERVE_NAME}"


class FaultyDisk:
    """See the module. An implementation of `walrq.storage.disk.Disk`.

    Attributes:
        sync_s: real seconds that every sync takes longer.
        full: nothing can be allocated any more.
        refuse_next_write: the next write finds no room, as on a file system that allocates with every write.
    """

    def __init__(self, inner: SimDisk) -> None:
        self.sync_s = 0.0
        self.full = False
        self.refuse_next_write = False
        self._inner = inner
        self._lock = threading.Lock()
        self._off = False
        # The room held back for a full disk is a promise, not bytes: here it costs no memory.
        self._held_back: dict[str, int] = {}
        self._reserve_handles: dict[int, str] = {}

    def cut_power(self, seed: int | None) -> SimDisk:
        """The disk as the next life finds it; this one does nothing any more.

        Args:
            seed: decides the fate of what was not synced; None = all of it is there, as when only the process died.
        """
        with self._lock:
            self._off = True
            return self._inner.keep_all() if seed is None else self._inner.crash(seed)

    def _change(self) -> SimDisk:
        """The disk below, for an operation that changes it. With the lock held."""
        if self._off:
            raise PowerOff("the power is off")
        if len(self._inner.operations) > _OPERATIONS_KEPT_MAX:
            self._inner.operations.clear()
        return self._inner

    def _no_room(self, path: str) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    # --- the protocol ---------------------------------------------------------------------------------------
    def make_directory(self, path: str) -> None:
        with self._lock:
            self._change().make_directory(path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        with self._lock:
            handle = (self._change() if create else self._inner).open(path, create=create, read_only=read_only)
            if path.endswith(_RESERVE):
                self._reserve_handles[handle] = path
            return handle

    def close(self, handle: int) -> None:
        with self._lock:
            self._inner.close(handle)
            self._reserve_handles.pop(handle, None)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        with self._lock:
            return self._inner.pread(handle, size, offset)

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        with self._lock:
            self._change().pwrite(handle, data, offset)

    def pwritev(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        with self._lock:
            if self.refuse_next_write:
                self.refuse_next_write = False
                raise self._no_room("log")
            self._change().pwritev(handle, buffers, offset)

    def fdatasync(self, handle: int) -> None:
        if self.sync_s:
            time.sleep(self.sync_s)
        with self._lock:
            self._change().fdatasync(handle)

    def fsync_directory(self, path: str) -> None:
        if self.sync_s:
            time.sleep(self.sync_s)
        with self._lock:
            self._change().fsync_directory(path)

    def preallocate(self, handle: int, size: int) -> None:
        with self._lock:
            if self.full:
                raise self._no_room("")
            if handle in self._reserve_handles:
                self._held_back[self._reserve_handles[handle]] = size
                size = 1
            self._change().preallocate(handle, size)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._change().rename(source, target)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._change().unlink(path)
            self._held_back.pop(path, None)

    def list_directory(self, path: str) -> list[str]:
        with self._lock:
            return self._inner.list_directory(path)

    def exists(self, path: str) -> bool:
        with self._lock:
            return self._inner.exists(path)

    def size(self, path: str) -> int:
        with self._lock:
            return self._held_back.get(path) or self._inner.size(path)

    def free_bytes(self, path: str) -> int:
        with self._lock:
            return 0 if self.full else self._inner.free_bytes(path)

    def lock(self, path: str) -> int:
        with self._lock:
            return self._change().lock(path)

    def boot_id(self) -> str:
        return self._inner.boot_id()

    def new_uuid(self) -> bytes:
        with self._lock:
            return self._inner.new_uuid()
