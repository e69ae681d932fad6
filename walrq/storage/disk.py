"""The file system as storage uses it: one protocol, and the real disk behind it.

Everything that touches a file goes through a `Disk`, so that the same storage code runs on the real disk and
on `walrq.testing.disk.SimDisk`, which loses, tears and reorders what was not synced. This is the only module
of walrq that calls fdatasync.

What storage assumes of a disk, and nothing more:
- bytes written to a file are durable once `fdatasync` of that file returned;
- a created, renamed or removed name is durable once `fsync_directory` of its directory returned;
- until then each write may survive whole, in part, not at all or as garbage, in any order;
- a write never harms bytes outside its own range (what SQLite calls powersafe overwrite).
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

if sys.platform == "win32":
    raise ImportError("a walrq node does not run on Windows; its client does")

import fcntl

# On macOS only.
_FULL_SYNC: Final[int] = getattr(fcntl, "F_FULLFSYNC", -1)

# The kernel refuses longer vectors (IOV_MAX on Linux and macOS).
BUFFERS_PER_WRITE_MAX: Final = 1024

# No room, however the system says it: disk, quota, or the process's file size limit.
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Disk(Protocol):
    """The operations of a file system that storage needs. Every method may raise OSError.

    A handle is an integer valid until `close`. Reads and writes carry their offset: there is no shared
    position, so threads may use one handle together.
    """

    def make_directory(self, path: str) -> None:
        """Create a directory; fine if it is there. NotADirectoryError if it is another thing."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """Open a file; `create` makes an empty one if it is absent."""

    def close(self, handle: int) -> None:
        """Give the handle back."""

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`; on an error any part of it may have been written."""

    def pwritev(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write `buffers` end to end at `offset` (at most BUFFERS_PER_WRITE_MAX of them)."""

    def fdatasync(self, handle: int) -> None:
        """Make the file's bytes and size durable. An error is final: what was lost is unknown."""

    def fsync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def preallocate(self, handle: int, size: int) -> None:
        """Reserve blocks and set the size to at least `size`; new bytes read as zeros."""

    def rename(self, source: str, target: str) -> None:
        """Move a name over another within one file system, at once or not at all."""

    def unlink(self, path: str) -> None:
        """Remove a name."""

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def exists(self, path: str) -> bool:
        """Whether a name is there."""

    def size(self, path: str) -> int:
        """Size of a file in bytes."""

    def free_bytes(self, path: str) -> int:
        """Bytes an unprivileged process may still allocate on the file system of `path`."""

    def lock(self, path: str) -> int:
        """Create and lock a file for this process alone; BlockingIOError if another one holds it."""

    def boot_id(self) -> str:
        """Changes with every boot of the kernel; empty where the system does not say."""

    def new_uuid(self) -> bytes:
        """Sixteen fresh bytes."""


class RealDisk:
    """The operating system's files."""

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, handle: int) -> None:
        os.close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        if len(data) == size:
            return data
        # A read may stop early only at the end of the file; ask again before believing so.
        parts = [data]
        got = len(data)
        while data and got < size:
            data = os.pread(handle, size - got, offset + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        written = os.pwrite(handle, data, offset)
        while written < len(data):
            # A short write precedes ENOSPC or EFBIG; writing on brings the reason out as the error.
            count = os.pwrite(handle, memoryview(data)[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, "a write made no progress")
            written += count

    if hasattr(os, "pwritev"):

        def pwritev(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
            written = os.pwritev(handle, buffers, offset)
            total = sum(map(len, buffers))
            if written != total:
                self.pwrite(handle, b"".join(buffers)[written:], offset + written)

    else:

        def pwritev(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
            self.pwrite(handle, b"".join(buffers), offset)

    if _FULL_SYNC >= 0:

        def fdatasync(self, handle: int) -> None:
            # fsync on macOS stops at the drive's volatile cache; F_FULLFSYNC goes through it.
            fcntl.fcntl(handle, _FULL_SYNC)

    elif hasattr(os, "fdatasync"):

        def fdatasync(self, handle: int) -> None:
            os.fdatasync(handle)

    else:

        def fdatasync(self, handle: int) -> None:
            os.fsync(handle)

    def fsync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def preallocate(self, handle: int, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(handle, 0, size)
                return
            except OSError as error:
                # musl does not emulate it where the file system cannot; then zeros do the same, slowly.
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        zeros = bytes(1 << 20)
        for offset in range(os.fstat(handle).st_size, size, len(zeros)):
            self.pwrite(handle, zeros[: size - offset], offset)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).free

    def lock(self, path: str) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # flock, not fcntl locks: those vanish when any descriptor of the file closes in this process.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def boot_id(self) -> str:
        path = Path("/proc/sys/kernel/random/boot_id")
        return path.read_text().strip() if path.exists() else ""

    def new_uuid(self) -> bytes:
        return uuid.uuid4().bytes


def read_file(disk: Disk, path: str) -> bytes:
    """The whole of a small file (hard state, manifest). OSError as the disk says."""
    handle = disk.open(path, read_only=True)
    try:
        return disk.pread(handle, disk.size(path), 0)
    finally:
        disk.close(handle)


def write_file_atomically(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Put `data` under `directory/name` so that a crash leaves the old file or the new one, whole.

    Write beside, sync, rename, sync the directory. Raises OSError; the old file stands then.
    """
    temporary = f"{directory}/{name}.tmp"
    if disk.exists(temporary):
        disk.unlink(temporary)
    handle = disk.open(temporary, create=True)
    try:
        disk.pwrite(handle, data, 0)
        disk.fdatasync(handle)
    except OSError:
        # On a full disk what was written so far takes room that somebody else may need.
        disk.unlink(temporary)
        raise
    finally:
        disk.close(handle)
    disk.rename(temporary, f"{directory}/{name}")
    disk.fsync_directory(directory)
