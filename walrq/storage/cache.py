"""What is kept at hand, least recently used out first: values bounded by bytes, and open files bounded by number."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from walrq.storage.disk import Disk

OUT_OF_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE))

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteBoundedCache(Generic[K, V]):
    """Least recently used out first, as soon as the bytes of all values exceed `max_bytes`.

    A value larger than the whole cache is not kept. One thread.
    """

    def __init__(self, max_bytes: int, *, size_of: Callable[[V], int] = len) -> None:  # type: ignore[assignment]
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        # Invariant: bytes == sum of size_of(value) <= max_bytes
        self._bytes = 0
        self.hits = 0
        self.misses = 0

    @property
    def bytes(self) -> int:
        """Bytes of all values held."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, now the most recently used; None if it is not held."""
        value = self._values.get(key)
        if value is None:
            self.misses += 1
            return None
        self.hits += 1
        self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Hold a value, in place of an earlier one under this key."""
        self.discard(key)
        size = self._size_of(value)
        if size > self._max_bytes:
            return
        self._values[key] = value
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= self._size_of(self._values.popitem(last=False)[1])

    def discard(self, key: K) -> None:
        """Let go of a value; fine if it is not held."""
        old = self._values.pop(key, None)
        if old is not None:
            self._bytes -= self._size_of(old)

    def clear(self) -> None:
        """Let go of all."""
        self._values.clear()
        self._bytes = 0


class ReadHandles:
    """Read descriptors of segment files: few are open, any number of files can be read. Safe in several threads.

    The lock is held over the read, so a descriptor is never closed, and its number never reused, under a reader.
    """

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
                handle = self._open_read(path)
                self._open[path] = handle
                if len(self._open) > self._handles_max:
                    self._disk.close(self._open.popitem(last=False)[1])
            else:
                self._open.move_to_end(path)
            return self._disk.pread(handle, size, offset)

    def _open_read(self, path: str) -> int:
        try:
            return self._disk.open(path, read_only=True)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._open:
                raise
        # The process has fewer than it was promised: what is open here can be opened again.
        while self._open:
            self._disk.close(self._open.popitem()[1])
        return self._disk.open(path, read_only=True)

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
