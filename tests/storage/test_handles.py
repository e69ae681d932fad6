"""Read descriptors: few are open, however many files there are."""

from __future__ import annotations

import random

from walrq.storage.cache import ReadHandles
from walrq.testing.disk import SimDisk

HANDLES_MAX = 3
FILES = 40


class CountingDisk(SimDisk):
    """A disk that counts the descriptors that are open."""

    open_now = 0
    open_most = 0

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """Open and count."""
        handle = super().open(path, create=create, read_only=read_only)
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        return handle

    def close(self, handle: int) -> None:
        """Close and count."""
        super().close(handle)
        self.open_now -= 1


def filled() -> CountingDisk:
    """A disk with FILES files, each holding its own number."""
    disk = CountingDisk()
    for number in range(FILES):
        handle = disk.open(f"file-{number}", create=True)
        disk.pwritev(handle, [bytes([number])], 0)
        disk.close(handle)
    disk.open_most = 0
    return disk


def test_any_number_of_files_is_read_through_few_descriptors(rng: random.Random) -> None:
    """A descriptor per segment would run out just when the backlog is large."""
    disk = filled()
    handles = ReadHandles(disk, HANDLES_MAX)
    numbers = [rng.randrange(FILES) for _ in range(500)]

    read = [handles.pread(f"file-{number}", 1, 0)[0] for number in numbers]

    assert numbers == read
    # One more for a moment: the new one is opened before the oldest is closed.
    assert disk.open_most <= HANDLES_MAX + 1
    assert disk.open_now <= HANDLES_MAX


def test_closed_means_none_is_open() -> None:
    """A descriptor left behind keeps a recycled file's blocks busy."""
    disk = filled()
    handles = ReadHandles(disk, HANDLES_MAX)
    for number in range(5):
        handles.pread(f"file-{number}", 1, 0)

    handles.forget("file-4")
    assert HANDLES_MAX - 1 == disk.open_now
    handles.close()
    assert 0 == disk.open_now
