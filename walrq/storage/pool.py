"""Preallocated segment files that wait for use: recycled ones first, and the reserve for a full disk.

A file in the pool holds nothing. Whatever bytes it has belong to an incarnation that is over, so they never
verify under the one it gets next.
"""

from __future__ import annotations

from walrq.errors import DiskFull
from walrq.storage.disk import FULL_ERRNOS, Disk
from walrq.storage.segment import free_name


class SegmentPool:
    """Free segment files of one size. Used under the log's lock."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        segment_bytes: int,
        reserve: int,
        segments_max: int,
        free: list[str],
        next_number: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._reserve = reserve
        self._segments_max = segments_max
        self._free = list(free)
        # Renamed into the pool, but the directory is not synced yet: a crash may bring the old name back.
        self._returned: list[str] = []
        self._next_number = next_number
        self.recycled = 0

    @property
    def count(self) -> int:
        """Files ready for use."""
        return len(self._free)

    @property
    def reserve_is_whole(self) -> bool:
        """Pushes may go on: the reserve is untouched."""
        return len(self._free) >= self._reserve

    def take(self, file_bytes: int, *, may_use_reserve: bool) -> str:
        """Path of a preallocated file of `file_bytes`. DiskFull, OSError."""
        if file_bytes == self._segment_bytes:
            if len(self._free) > self._reserve:
                return self._recycle()
            try:
                return self._create(file_bytes)
            except DiskFull:
                if not (may_use_reserve and self._free):
                    raise
                return self._recycle()
        return self._create(file_bytes)

    def _recycle(self) -> str:
        # The newest first: its blocks were written before, so appends to it need no allocation at all.
        self.recycled += 1
        return self._free.pop()

    def _create(self, file_bytes: int) -> str:
        """A new preallocated file; its name becomes durable with the segment's own rename."""
        path = self._next_path()
        handle = self._disk.open(path, create=True)
        try:
            self._disk.preallocate(handle, file_bytes)
        except OSError as error:
            # What was allocated so far is given back, or a full disk would stay fuller by every attempt.
            self._disk.unlink(path)
            if error.errno in FULL_ERRNOS:
                raise DiskFull("no room for another segment") from error
            raise
        finally:
            self._disk.close(handle)
        return path

    def give_back(self, path: str, file_bytes: int) -> None:
        """Take a dead segment's file; usable after `settle_returns`."""
        if file_bytes != self._segment_bytes or self.count + len(self._returned) >= self._segments_max:
            self._disk.unlink(path)
            return
        free = self._next_path()
        self._disk.rename(path, free)
        self._returned.append(free)

    def settle_returns(self) -> None:
        """The directory was synced: returned files may be used from now on."""
        self._free.extend(self._returned)
        self._returned.clear()

    def trim(self) -> bool:
        """Remove all files beyond the reserve; whether there were any. OSError."""
        beyond = self._free[: max(0, len(self._free) - self._reserve)]
        for path in beyond:
            self._disk.unlink(path)
        del self._free[: len(beyond)]
        return bool(beyond)

    def replenish(self, *, spare: int) -> bool:
        """Create files until there are `spare` beside the reserve; False if there is no room. OSError."""
        created = False
        try:
            while len(self._free) < self._reserve + spare:
                self._free.append(self._create(self._segment_bytes))
                created = True
        except DiskFull:
            return False
        finally:
            if created:
                self._disk.fsync_directory(self._directory)
        return True

    def _next_path(self) -> str:
        self._next_number += 1
        return f"{self._directory}/{free_name(self._next_number)}"
