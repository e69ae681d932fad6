"""A disk in memory that loses what was not synced.

Every file is its durable bytes plus a list of writes that no sync has covered yet; every directory is its
durable names plus a list of changes likewise. At a crash each entry of a list is kept, dropped, torn at
sectors or turned to
garbage, independently of the others: that is any order the hardware may choose. A write never harms bytes
outside its own range. A failed fdatasync leaves its writes in limbo: no later sync makes them durable, as on
Linux.

Everything is decided by seeds. `crash(seed)` gives one disk as it may look after a power loss; `aftermaths()`
gives
the systematic ones: all kept, all dropped, each one alone lost, kept, torn or garbage, and seeded mixtures.

Faults: `fail(...)` makes the n-th operation fail; `power_off_at` stops the world before it; `quota_bytes`
makes the disk full; `flip_bit`, `zero`, `cut` damage what is durable. Slowness is counted in `virtual_ms`,
never slept.

Source of the idea: the crash test layer of SQLite, which keeps writes in a list until they are synced.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs

SECTOR_BYTES: Final = 512


class PowerOff(BaseException):
    """The power went: nothing after this operation happened. Not an OSError, so no one handles it."""


@attrs.frozen
class Write:
    """Bytes written and not synced. An empty `data` with `size` is a change of size alone."""

    offset: int
    data: bytes
    size: int = 0

    @property
    def end(self) -> int:
        """File size that the write implies."""
        return max(self.size, self.offset + len(self.data))


@attrs.define(eq=False)
class File:
    """One file, whatever its names."""

    durable: bytearray = attrs.field(factory=bytearray)
    current: bytearray = attrs.field(factory=bytearray)
    unsynced: list[Write] = attrs.field(factory=list)
    # Lost their sync to an error: kept or dropped at a crash, but no later sync covers them.
    limbo: list[Write] = attrs.field(factory=list)


@attrs.frozen
class NameChange:
    """A change of one directory's names: `target` gets `file` (None: is removed); `source` loses it."""

    target: str
    file: File | None
    source: str = ""


@attrs.define(eq=False)
class Directory:
    """One directory."""

    durable: dict[str, File] = attrs.field(factory=dict)
    current: dict[str, File] = attrs.field(factory=dict)
    unsynced: list[NameChange] = attrs.field(factory=list)


@attrs.frozen
class Operation:
    """One line of the log of operations."""

    number: int
    name: str
    path: str
    detail: str = ""


@attrs.frozen
class _Fault:
    errno: int
    short: bool


# What a crash does to one entry of a list of writes: None drops it.
_Fate = Callable[[Write], Sequence[Write]]


def _kept(write: Write) -> Sequence[Write]:
    return (write,)


def _dropped(_write: Write) -> Sequence[Write]:
    return ()


def _torn_prefix(write: Write) -> Sequence[Write]:
    """The first half, cut at a sector border of the file (or within the only sector)."""
    middle = write.offset + len(write.data) // 2
    border = middle - middle % SECTOR_BYTES
    keep = border - write.offset if border > write.offset else len(write.data) // 2
    return (Write(write.offset, write.data[:keep]),)


def _torn_suffix(write: Write) -> Sequence[Write]:
    """Only the second half reached the disk."""
    keep = len(_torn_prefix(write)[0].data)
    return (Write(write.offset + keep, write.data[keep:], write.size),)


def _garbage(write: Write) -> Sequence[Write]:
    """The range holds something else, the same for every run."""
    noise = random.Random(write.offset * 1_000_003 + len(write.data))
    return (Write(write.offset, noise.randbytes(len(write.data)), write.size),)


_FATES: Final[tuple[tuple[str, _Fate], ...]] = (
    ("dropped", _dropped),
    ("torn", _torn_prefix),
    ("headless", _torn_suffix),
    ("garbage", _garbage),
)


class SimDisk:
    """An implementation of `walrq.storage.disk.Disk`. Not for several threads at once.

    Attributes:
        operations: every operation that changes something, in order (bounded only by the test).
        before_sync: called with the disk before each fdatasync and fsync_directory takes effect.
        latency_ms: virtual cost by operation name; summed up in `virtual_ms`.
    """

    def __init__(self, *, seed: int = 0, quota_bytes: int | None = None, boot: int = 1) -> None:
        self.seed = seed
        self.quota_bytes = quota_bytes
        self.boot = boot
        self.operations: list[Operation] = []
        self.before_sync: Callable[[SimDisk], None] | None = None
        self.power_off_at: int | None = None
        self.latency_ms: dict[str, float] = {}
        self.virtual_ms = 0.0
        self.syncs = 0
        self._random = random.Random(seed)
        self._directories: dict[str, Directory] = {"": Directory(), ".": Directory()}
        self._handles: dict[int, tuple[str, File, bool]] = {}
        self._locks: dict[str, int] = {}
        self._next_handle = 3
        self._faults: dict[int, _Fault] = {}
        self._named_faults: dict[str, dict[int, _Fault]] = {}
        self._named_counts: dict[str, int] = {}

    # --- faults ---------------------------------------------------------------------------------------------

    @property
    def operation_count(self) -> int:
        """Operations so far; the next one has this number."""
        return len(self.operations)

    def fail(self, number: int, code: int = errno.EIO, *, name: str = "", short: bool = False) -> None:
        """Let an operation fail: the `number`-th from the start, counted from 0.

        Args:
            name: count only operations of this name (`pwritev`, `fdatasync`, ...), from now on.
            short: a write leaves half of its bytes behind before it fails.
        """
        if name:
            self._named_faults.setdefault(name, {})[self._named_counts.get(name, 0) + number] = _Fault(code, short)
        else:
            self._faults[number] = _Fault(code, short)

    def clear_faults(self) -> None:
        """From now on everything works."""
        self._faults.clear()
        self._named_faults.clear()
        self.power_off_at = None

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage one bit of a file, durably."""
        file = self._file(path)
        for data in (file.durable, file.current):
            data[bit // 8] ^= 1 << bit % 8

    def zero(self, path: str, start: int, end: int) -> None:
        """Let a span of a file read as zeros, durably."""
        file = self._file(path)
        for data in (file.durable, file.current):
            data[start:end] = bytes(end - start)

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Change bytes of a file, durably."""
        file = self._file(path)
        for held in (file.durable, file.current):
            held[offset : offset + len(data)] = data

    def cut(self, path: str, size: int) -> None:
        """Shorten a file, durably."""
        file = self._file(path)
        for data in (file.durable, file.current):
            del data[size:]

    def content(self, path: str) -> bytes:
        """The whole of a file as a reader sees it."""
        return bytes(self._file(path).current)

    def _operate(self, name: str, path: str, detail: str = "") -> _Fault | None:
        """Count an operation; the fault it meets, if any. Raises PowerOff."""
        number = len(self.operations)
        if self.power_off_at is not None and number >= self.power_off_at:
            raise PowerOff(f"power off before operation {number}: {name} {path} {detail}")
        self.operations.append(Operation(number, name, path, detail))
        self.virtual_ms += self.latency_ms.get(name, 0.0)
        count = self._named_counts.get(name, 0)
        self._named_counts[name] = count + 1
        return self._faults.get(number) or self._named_faults.get(name, {}).get(count)

    def _raise(self, fault: _Fault | None, path: str) -> None:
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), path)

    # --- the crash ------------------------------------------------------------------------------------------

    def crash(self, seed: int) -> SimDisk:
        """The disk after a power loss, every unsynced thing's fate drawn from `seed`."""
        draw = random.Random(seed)

        def fate_of(_write: Write) -> _Fate:
            chance = draw.random()
            if chance < 0.35:
                return _kept
            if chance < 0.65:
                return _dropped
            if chance < 0.85:
                return lambda write: _torn_sectors(write, draw)
            return lambda write: (Write(write.offset, draw.randbytes(len(write.data)), write.size),)

        return self._after(fate_of, lambda _change: draw.random() < 0.5, draw)

    def keep_all(self) -> SimDisk:
        """The disk after the process died and the machine did not: all writes are there, the kernel is the same."""
        after = self._after(lambda _write: _kept, lambda _change: True, None)
        after.boot = self.boot
        return after

    def aftermaths(self, *, mixtures: int = 4, seed: int = 0) -> Iterator[tuple[str, SimDisk]]:
        """(what happened, disk after it): every systematic outcome of a power loss now, some mixtures."""
        writes = [write for file in self._files() for write in (*file.limbo, *file.unsynced)]
        changes = [change for directory in self._directories.values() for change in directory.unsynced]
        yield "all kept", self._after(lambda _write: _kept, lambda _change: True, None)
        yield "all dropped", self._after(lambda _write: _dropped, lambda _change: False, None)
        yield "writes kept, names dropped", self._after(lambda _write: _kept, lambda _change: False, None)
        yield "writes dropped, names kept", self._after(lambda _write: _dropped, lambda _change: True, None)
        for name, fate in _FATES[1:]:
            yield f"all {name}", self._after(_every(fate), lambda _change: True, None)
        for number, chosen in enumerate(writes):
            for name, fate in _FATES:
                yield f"write {number} {name}", self._after(_only(chosen, fate, _kept), lambda _c: True, None)
            yield (
                f"write {number} alone kept",
                self._after(_only(chosen, _kept, _dropped), lambda _c: True, None),
            )
        for number, one in enumerate(changes):
            yield f"name {number} lost", self._after(lambda _w: _kept, _is_not(one), None)
        if writes or changes:
            for mixture in range(mixtures):
                yield f"mixture {seed + mixture}", self.crash(seed + mixture)

    def _after(
        self,
        fate_of: Callable[[Write], _Fate],
        name_kept: Callable[[NameChange], bool],
        shuffle: random.Random | None,
    ) -> SimDisk:
        after = SimDisk(seed=self.seed + 1, quota_bytes=self.quota_bytes, boot=self.boot + 1)
        twins: dict[int, File] = {}

        def twin(file: File) -> File:
            if id(file) not in twins:
                twins[id(file)] = _crashed(file, fate_of, shuffle)
            return twins[id(file)]

        after._directories = {}
        for path, directory in self._directories.items():
            names = dict(directory.durable)
            for change in directory.unsynced:
                if name_kept(change):
                    _apply(names, change)
            held = {name: twin(file) for name, file in names.items()}
            after._directories[path] = Directory(dict(held), dict(held))
        return after

    def _files(self) -> list[File]:
        """Every file that has a name, once, in a stable order."""
        seen: dict[int, File] = {}
        for path in sorted(self._directories):
            directory = self._directories[path]
            for names in (directory.durable, directory.current):
                for name in sorted(names):
                    seen.setdefault(id(names[name]), names[name])
        return list(seen.values())

    # --- the protocol ---------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        # Directories are durable at once: no rule of storage depends on losing an empty one.
        parent, name = _split(path)
        if parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if name in self._directories[parent].current:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if path not in self._directories:
            self._raise(self._operate("make_directory", path), path)
            self._directories[path] = Directory()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        parent, name = _split(path)
        directory = self._directory(parent)
        if name not in directory.current:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._raise(self._operate("create", path), path)
            file = File()
            directory.current[name] = file
            directory.unsynced.append(NameChange(name, file))
        return self._handle_for(path, directory.current[name], read_only)

    def close(self, handle: int) -> None:
        path, _, _ = self._handles.pop(handle)
        if self._locks.get(path) == handle:
            del self._locks[path]

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._handles[handle][1].current[offset : offset + size])

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        self._write("pwrite", handle, bytes(data), offset)

    def pwritev(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        self._write("pwritev", handle, b"".join(buffers), offset)

    def _write(self, name: str, handle: int, data: bytes, offset: int) -> None:
        path, file, read_only = self._handles[handle]
        if read_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        fault = self._operate(name, path, f"{offset}+{len(data)}")
        room = self._room_for(offset + len(data) - len(file.current))
        if fault is not None or room < 0:
            kept = len(data) // 2 if (fault is None or fault.short) else 0
            self._put(file, Write(offset, data[: min(kept, max(0, len(file.current) - offset))]))
            self._raise(fault or _Fault(errno.ENOSPC, short=True), path)
        self._put(file, Write(offset, data))

    def fdatasync(self, handle: int) -> None:
        path, file, _ = self._handles[handle]
        if self.before_sync is not None:
            self.before_sync(self)
        fault = self._operate("fdatasync", path)
        if fault is not None:
            file.limbo += file.unsynced
            file.unsynced.clear()
            self._raise(fault, path)
        self.syncs += 1
        for write in file.unsynced:
            _put(file.durable, write)
        file.unsynced.clear()

    def fsync_directory(self, path: str) -> None:
        directory = self._directory(path)
        if self.before_sync is not None:
            self.before_sync(self)
        self._raise(self._operate("fsync_directory", path), path)
        directory.durable = dict(directory.current)
        directory.unsynced.clear()

    def preallocate(self, handle: int, size: int) -> None:
        path, file, _ = self._handles[handle]
        fault = self._operate("preallocate", path, str(size))
        if self._room_for(size - len(file.current)) < 0:
            fault = fault or _Fault(errno.ENOSPC, short=False)
        self._raise(fault, path)
        self._put(file, Write(0, b"", size))

    def rename(self, source: str, target: str) -> None:
        source_parent, source_name = _split(source)
        target_parent, target_name = _split(target)
        origin, goal = self._directory(source_parent), self._directory(target_parent)
        if source_name not in origin.current:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._raise(self._operate("rename", source, target), source)
        file = origin.current[source_name]
        if origin is goal:
            changes = [(origin, NameChange(target_name, file, source_name))]
        else:
            # Across directories the two ends may be lost apart; the file has both names in between.
            changes = [(goal, NameChange(target_name, file)), (origin, NameChange(source_name, None))]
        for directory, change in changes:
            _apply(directory.current, change)
            directory.unsynced.append(change)

    def unlink(self, path: str) -> None:
        parent, name = _split(path)
        directory = self._directory(parent)
        if name not in directory.current:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._raise(self._operate("unlink", path), path)
        change = NameChange(name, None)
        _apply(directory.current, change)
        directory.unsynced.append(change)

    def list_directory(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        nested = {
            other.removeprefix(prefix)
            for other in self._directories
            if other and other.startswith(prefix) and "/" not in other.removeprefix(prefix)
        }
        return sorted({*self._directory(path).current, *nested})

    def exists(self, path: str) -> bool:
        if path in self._directories:
            return True
        parent, name = _split(path)
        return parent in self._directories and name in self._directories[parent].current

    def size(self, path: str) -> int:
        return len(self._file(path).current)

    def free_bytes(self, path: str) -> int:
        return 1 << 40 if self.quota_bytes is None else max(0, self.quota_bytes - self.used_bytes)

    def lock(self, path: str) -> int:
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        handle = self.open(path, create=True)
        self._locks[path] = handle
        return handle

    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def new_uuid(self) -> bytes:
        return self._random.randbytes(16)

    @property
    def used_bytes(self) -> int:
        """Bytes of every file that has a name."""
        return sum(len(file.current) for d in self._directories.values() for file in set(d.current.values()))

    def _room_for(self, more_bytes: int) -> int:
        if self.quota_bytes is None or more_bytes <= 0:
            return 0
        return self.quota_bytes - self.used_bytes - more_bytes

    def _put(self, file: File, write: Write) -> None:
        if write.data or write.size:
            _put(file.current, write)
            file.unsynced.append(write)

    def _handle_for(self, path: str, file: File, read_only: bool) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = (path, file, read_only)
        return handle

    def _directory(self, path: str) -> Directory:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._directories[path]

    def _file(self, path: str) -> File:
        parent, name = _split(path)
        file = self._directory(parent).current.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent, name


def _apply(names: dict[str, File], change: NameChange) -> None:
    """One change of names; a rename whose source is not there any more does nothing."""
    if change.source:
        if names.get(change.source) is not change.file:
            return
        del names[change.source]
    if change.file is None:
        names.pop(change.target, None)
    else:
        names[change.target] = change.file


def _put(data: bytearray, write: Write) -> None:
    if len(data) < write.end:
        data.extend(bytes(write.end - len(data)))
    data[write.offset : write.offset + len(write.data)] = write.data


def _crashed(file: File, fate_of: Callable[[Write], _Fate], shuffle: random.Random | None) -> File:
    data = bytearray(file.durable)
    survivors = [part for write in (*file.limbo, *file.unsynced) for part in fate_of(write)(write)]
    if shuffle is not None:
        # Writes of the same range may reach the disk in any order as well.
        shuffle.shuffle(survivors)
    for write in survivors:
        _put(data, write)
    return File(data, bytearray(data))


def _torn_sectors(write: Write, draw: random.Random) -> Sequence[Write]:
    """Each sector of the write by itself is there or not."""
    parts = []
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        border = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        if draw.random() < 0.5:
            parts.append(Write(start, write.data[start - write.offset : border - write.offset]))
        start = border
    return parts


def _every(fate: _Fate) -> Callable[[Write], _Fate]:
    return lambda _write: fate


def _only(chosen: Write, fate: _Fate, others: _Fate) -> Callable[[Write], _Fate]:
    return lambda write: fate if write is chosen else others


def _is_not(one: NameChange) -> Callable[[NameChange], bool]:
    return lambda change: change is not one
