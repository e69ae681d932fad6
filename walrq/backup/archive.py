"""The backup file: a tar archive (POSIX, pax) written and read as a stream, so that it fits through a pipe.

    backup.json      facts and the list of parts, each with its size
    <part>           each part in the order of that list
    checksums.json   SHA-256 of everything before it; without it the file is torn

Any tar lists and unpacks it. Nothing but these names, in this order, is accepted: an archive cannot write elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final

from walrq.backup.export import FORMAT, MANIFEST_PART, PAGES_PART, Part
from walrq.errors import CorruptRecord, DataDirInvalid
from walrq.limits import BACKUP_PARTS_MAX, MIB
from walrq.storage.disk import RealDisk

FACTS_NAME: Final = "backup.json"
CHECKSUMS_NAME: Final = "checksums.json"
# Facts and checksums of BACKUP_PARTS_MAX parts are some 10 MB; what claims more is no backup.
_JSON_BYTES_MAX: Final = 64 * MIB
_CHUNK_BYTES: Final = MIB
_UNSYNCED_BYTES_MAX: Final = 8 * MIB
_SEGMENT_PART: Final = re.compile(r"wal/seg-[0-9]{20}\.wal")

Progress = Callable[[int], None]
"""Called with the bytes of parts that were handled since the last call."""


class _Stream(io.RawIOBase):
    """Chunks as a file to read from, hashed as they pass."""

    def __init__(self, chunks: Iterable[bytes], progress: Progress) -> None:
        super().__init__()
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")
        self._progress = progress
        self.hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self.hash.update(chunk)
            self._progress(len(chunk))
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _EarlySynced(io.FileIO):
    """A file that goes to the disk as it grows: one flush of all of it would keep a node's commits waiting."""

    def __init__(self, handle: int, disk: RealDisk) -> None:
        super().__init__(handle, "wb")
        self._disk = disk
        self._unsynced = 0

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self._unsynced += count
        if self._unsynced >= _UNSYNCED_BYTES_MAX:
            self._disk.fdatasync(self.fileno())
            self._unsynced = 0
        return count


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """A file to write that appears under its name whole and durable, or not at all; readable by its owner only.

    It grows as `path.part`, which is removed when the block ends with an error. OSError.
    """
    disk = RealDisk()
    part = f"{path}.part"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        with io.BufferedWriter(_EarlySynced(handle, disk), _CHUNK_BYTES) as file:
            yield file
            file.flush()
            disk.fdatasync(file.fileno())
        disk.rename(part, path)
        disk.fsync_directory(os.path.dirname(path) or ".")
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def no_progress(_count: int) -> None:
    """For whoever does not want to know."""


def write(
    file: BinaryIO | io.RawIOBase,
    facts: dict[str, Any],
    parts: Sequence[Part],
    chunks: Callable[[int], Iterable[bytes]],
    progress: Progress = no_progress,
) -> None:
    """Write a whole backup.

    Args:
        file: written from its position on, never rewound.
        chunks: the bytes of the part with this number, all of them.

    Raises: OSError of the file, whatever `chunks` raises, CorruptRecord when a part has another size than announced.
    """
    taken_s = int(facts.get("taken_ms", 0)) // 1000
    digests: dict[str, str] = {}
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:

        def add(name: str, size: int, given: Iterable[bytes], progress: Progress) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = size, taken_s, 0o600
            stream = _Stream(given, progress)
            try:
                archive.addfile(member, io.BufferedReader(stream, _CHUNK_BYTES))
            except OSError as error:
                if str(error) != "unexpected end of data":
                    raise
                raise CorruptRecord(f"{name} ended before its {size} bytes") from error
            digests[name] = stream.hash.hexdigest()

        head = {**facts, "parts": [[part.name, part.size] for part in parts]}
        data = json.dumps(head, indent=1).encode()
        add(FACTS_NAME, len(data), [data], no_progress)
        for number, part in enumerate(parts):
            add(part.name, part.size, chunks(number), progress)
        data = json.dumps({"sha256": digests}, indent=1).encode()
        add(CHECKSUMS_NAME, len(data), [data], no_progress)


class Reader:
    """A backup, read once from front to back: `facts` and `parts`, then `each()` to its very end.

    Raises from everything: CorruptRecord that names what is torn or damaged; DataDirInvalid for what is no backup, or
    one of a newer format; OSError of the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._digests: dict[str, str] = {}
        try:
            self._archive = tarfile.open(fileobj=file, mode="r|", bufsize=_CHUNK_BYTES)
            first = self._archive.next()
        except tarfile.TarError:
            first = None
        if first is None or first.name != FACTS_NAME or not first.isreg():
            raise DataDirInvalid("this is no backup of walrq: it does not begin with backup.json")
        self.facts = self._json(first)
        if self.facts.get("format") != FORMAT:
            raise DataDirInvalid(
                f"the backup has format {self.facts.get('format')!r}, this version of walrq reads format {FORMAT}"
            )
        self.parts = _checked_parts(self.facts)

    def each(self, progress: Progress = no_progress) -> Iterator[tuple[Part, Iterator[bytes]]]:
        """Every part with its bytes, to be consumed before the next one; then the checksums are compared."""
        for part in self.parts:
            member = self._next(part.name)
            if member.size != part.size:
                raise CorruptRecord(f"the backup is damaged: {part.name} has {member.size} of {part.size} bytes")
            yield part, self._chunks(member, progress)
            if part.name not in self._digests:
                raise AssertionError(f"{part.name} was not read to its end")
        computed = dict(self._digests)
        said = self._json(self._next(CHECKSUMS_NAME)).get("sha256")
        for name, digest in computed.items():
            if not isinstance(said, dict) or said.get(name) != digest:
                raise CorruptRecord(f"the backup is damaged: the checksum of {name} is wrong")

    def _next(self, name: str) -> tarfile.TarInfo:
        try:
            member = self._archive.next()
        except (tarfile.TarError, ValueError) as error:
            raise CorruptRecord(f"the backup is damaged before {name}: {error}") from error
        if member is None:
            raise CorruptRecord(f"the backup is torn: it ends before {name}")
        if member.name != name or not member.isreg():
            raise CorruptRecord(f"the backup is damaged: it has {member.name!r} where {name} belongs")
        return member

    def _chunks(self, member: tarfile.TarInfo, progress: Progress) -> Iterator[bytes]:
        stream = self._archive.extractfile(member)
        assert stream is not None, member.name
        digest = hashlib.sha256()
        left = member.size
        while left:
            try:
                data = stream.read(min(left, _CHUNK_BYTES))
            except tarfile.TarError as error:
                raise CorruptRecord(f"the backup is torn inside {member.name}: {error}") from error
            if not data:
                raise CorruptRecord(f"the backup is torn: {left} of {member.size} bytes of {member.name} are missing")
            digest.update(data)
            left -= len(data)
            progress(len(data))
            yield data
        self._digests[member.name] = digest.hexdigest()

    def _json(self, member: tarfile.TarInfo) -> dict[str, Any]:
        if member.size > _JSON_BYTES_MAX:
            raise CorruptRecord(f"the backup is damaged: {member.name} has {member.size} bytes")
        data = b"".join(self._chunks(member, no_progress))
        try:
            found = json.loads(data)
        except ValueError as error:
            raise CorruptRecord(f"the backup is damaged: {member.name} is no JSON") from error
        if not isinstance(found, dict):
            raise CorruptRecord(f"the backup is damaged: {member.name} is no JSON object")
        return found


def _checked_parts(facts: dict[str, Any]) -> tuple[Part, ...]:
    """The parts that a backup may have, in the order it must have them."""
    listed = facts.get("parts")
    wrong = CorruptRecord("the backup is damaged: the parts that backup.json lists are none of a backup")
    if not isinstance(listed, list) or len(listed) > BACKUP_PARTS_MAX:
        raise wrong
    parts = []
    for each in listed:
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) and type(each[1]) is int):
            raise wrong
        parts.append(Part(each[0], each[1]))
    names = [part.name for part in parts]
    segments = names[2:]
    in_order = all(before < after for before, after in itertools.pairwise(segments))
    if names[:2] != [MANIFEST_PART, PAGES_PART] or not in_order or not all(map(_SEGMENT_PART.fullmatch, segments)):
        raise wrong
    if any(part.size < 0 for part in parts):
        raise wrong
    return tuple(parts)
