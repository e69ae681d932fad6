"""A snapshot and the records it needs, on their way from one node's storage to another's.

The sender's side is `Outgoing`: what a pin holds, as one sequence of bytes, readable in pieces from any offset. The
receiver's is `Installer`: it takes these bytes (or single records and pages) and puts everything beside the log and the
snapshots that are there. Nothing of it is visible before `finish`; then all of it is, at the moment the snapshot's
manifest is durable (`manifest.Install`), and a crash leaves the state before or the state after.

    0   crc     u32   CRC-32C of what follows, key and body included
    4   length  u32   bytes of the body
    8   type    u8    1 record, 2 page, 3 end
    9   kind    u8    a record's
    10  key     u16   bytes of a page's key
    12  first   u64   a record's index; of the end: how many records came before it
    20  second  u64   a record's term; of the end: how many pages came before it
    28  key, then body

Records ascend, pages follow, the end closes. Indexes that are left out are dead; that costs nothing, however many.
"""

from __future__ import annotations

import array
import errno
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs
from crc32c import crc32c

from walrq.errors import CorruptRecord, DiskFull, StorageError
from walrq.limits import ENTRY_BYTES_MAX
from walrq.storage import identity
from walrq.storage.disk import FULL_ERRNOS, Disk
from walrq.storage.manifest import Install, Manifest, PageAt, hash_of
from walrq.storage.opening import complete_install
from walrq.storage.record import Record, encode, seed_of, stored_bytes
from walrq.storage.segment import (
    PAGE_BYTES,
    RECORDS_START,
    SEGMENT_BYTES_LIMIT,
    Extent,
    Gap,
    Identity,
    gaps_of,
    header_bytes,
    staged_name,
)
from walrq.storage.snapshot import SnapshotStore
from walrq.storage.wal import Wal

_RECORD: Final = 1
_PAGE: Final = 2
_END: Final = 3
_HEADER: Final = struct.Struct("<IIBBHQQ")
_AFTER_CRC: Final = struct.Struct("<IBBHQQ")
_CRC_BYTES: Final = 4
# A page is bounded like an entry; twice that, so that the bound here is never the one that is met.
_BODY_BYTES_MAX: Final = 2 * ENTRY_BYTES_MAX
_CHECKPOINT_BYTES: Final = 256 * 1024
_BUFFER_BYTES: Final = 1 << 20


def _item(kind_of_item: int, kind: int, first: int, second: int, key: bytes, body: bytes) -> bytes:
    rest = _AFTER_CRC.pack(len(body), kind_of_item, kind, len(key), first, second)
    crc = crc32c(body, crc32c(key, crc32c(rest)))
    return b"".join((int(crc).to_bytes(_CRC_BYTES, "little"), rest, key, body))


# --- the sender -------------------------------------------------------------------------------------------------


@attrs.frozen
class _Place:
    """Where a walk over the items stands: behind `runs` runs and in the next one at `index`; then `pages` pages."""

    run: int
    index: int
    page: int
    records: int


class Outgoing:
    """What a fixed pin holds, for a receiver that has everything up to `after`. Made by `Storage.stream`.

    Reads block, from one thread at a time. The bytes stay the same as long as the pin is held, so a stream goes on
    from any offset. Memory: some bytes for each stretch of live records.

    Attributes:
        lost: live records that are damaged here and were left out; ascending, as far as was read.
    """

    def __init__(
        self,
        wal: Wal,
        manifest: Manifest,
        extents: tuple[Extent, ...],
        read_page: Callable[[PageAt, int, int], bytes],
        after: int,
        is_live: Callable[[int, int], bool],
    ) -> None:
        self._wal = wal
        self._extents = extents
        self._read_page = read_page
        self._pages = sorted(manifest.pages.items(), key=lambda item: (item[1].file, item[1].offset))
        # Of each stretch of live records: its extent, first and last index.
        self._runs = tuple(array.array("Q") for _ in range(3))
        for number, extent in enumerate(extents):
            first = max(after + 1, extent.first_index)
            if first <= extent.last_index:
                self._note_live(number, first, extent.last_index, is_live)
        self.lost: list[int] = []
        self._checkpoints: list[tuple[int, _Place]] = [(0, _Place(0, 0, 0, 0))]
        self._offset = 0
        self._walk_offset = 0
        self._items = self._walk(self._checkpoints[0][1])
        self._buffer = bytearray()

    def _note_live(self, number: int, first: int, last: int, is_live: Callable[[int, int], bool]) -> None:
        """Halve the span until each part is live or dead as a whole: as many questions as there are live records."""
        spans = [(first, last)]
        numbers, firsts, lasts = self._runs
        while spans:
            low, high = spans.pop()
            if not is_live(low, high):
                continue
            if low < high:
                middle = (low + high) // 2
                spans += [(middle + 1, high), (low, middle)]
            elif lasts and numbers[-1] == number and lasts[-1] == low - 1:
                lasts[-1] = low
            else:
                numbers.append(number)
                firsts.append(low)
                lasts.append(low)

    def read(self, offset: int, bytes_max: int) -> tuple[bytes, bool]:
        """(bytes from `offset` on, at most `bytes_max`; whether the stream ends behind them).

        Raises:
            StorageError: the disk failed, the offset lies behind the end, or the log was replaced meanwhile.
            CorruptRecord: a page is damaged.
        """
        try:
            if offset != self._offset:
                self._seek(offset)
            # One byte more than is asked for tells whether this is the end.
            more = self._fill(bytes_max + 1)
        except OSError as error:
            raise StorageError(f"the snapshot cannot be read: {error.strerror or error}") from error
        data = bytes(self._buffer[:bytes_max])
        del self._buffer[:bytes_max]
        self._offset += len(data)
        return data, not more and not self._buffer

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            item = next(self._items, None)
            if item is None:
                return False
            self._buffer += item
        return True

    def _seek(self, offset: int) -> None:
        """Walk again from the last checkpoint before the offset."""
        start, place = self._checkpoints[bisect_right(self._checkpoints, offset, key=lambda found: found[0]) - 1]
        self._items = self._walk(place)
        self._buffer.clear()
        self._walk_offset = self._offset = start
        while self._offset < offset:
            if not self._buffer and not self._fill(1):
                raise StorageError(f"offset {offset} lies behind the end of the stream")
            skipped = min(offset - self._offset, len(self._buffer))
            del self._buffer[:skipped]
            self._offset += skipped

    def _walk(self, place: _Place) -> Iterator[bytes]:
        numbers, firsts, lasts = self._runs
        records = place.records
        for run in range(place.run, len(numbers)):
            first = max(firsts[run], place.index)
            for index, record in self._wal.read_stretch(self._extents[numbers[run]], first, lasts[run]):
                if record is None:
                    if not self.lost or index > self.lost[-1]:
                        self.lost.append(index)
                    continue
                self._check(_Place(run, index, 0, records))
                records += 1
                yield self._walked(_item(_RECORD, record.kind, record.index, record.term, b"", record.body))
        for number in range(place.page, len(self._pages)):
            key, at = self._pages[number]
            self._check(_Place(len(numbers), 0, number, records))
            page = self._read_page(at, at.length, 0)
            if hash_of(page) != at.hash:
                raise CorruptRecord(f"page {key.hex()} of the snapshot is damaged")
            yield self._walked(_item(_PAGE, 0, 0, 0, key, page))
        yield self._walked(_item(_END, 0, records, len(self._pages), b"", b""))

    def _walked(self, item: bytes) -> bytes:
        self._walk_offset += len(item)
        return item

    def _check(self, place: _Place) -> None:
        """Remember now and then where an item begins."""
        if self._walk_offset >= self._checkpoints[-1][0] + _CHECKPOINT_BYTES:
            self._checkpoints.append((self._walk_offset, place))


# --- the receiver -----------------------------------------------------------------------------------------------


class _Segments:
    """Sparse segments being written: sealed from the beginning, and without a name in the log."""

    def __init__(self, disk: Disk, directory: str, wal: Wal, disk_uuid: bytes, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._wal = wal
        self._disk_uuid = disk_uuid
        self._segment_bytes = segment_bytes
        self._handle = -1
        self._identity: Identity | None = None
        self._buffer = bytearray()
        self._written = 0
        self._crc = 0
        self.made: list[tuple[int, int]] = []

    def add(self, record: Record, first_index: int) -> None:
        """Write a record; `first_index`: where the part of the log begins that comes with it. OSError."""
        size = stored_bytes(len(record.body))
        if self._identity is not None and self._written + len(self._buffer) + size > self._segment_bytes:
            self.end(record.index - 1)
            first_index = record.index
        made = self._identity or self.begin(first_index)
        seed = seed_of(made.incarnation)
        self._crc, header, padding = encode(seed, self._crc, record.kind, 0, record.term, record.index, record.body)
        self._buffer += header
        self._buffer += record.body
        self._buffer += padding
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def begin(self, first_index: int) -> Identity:
        """Start a segment. OSError."""
        made = Identity(self._disk_uuid, self._wal.next_incarnation(), first_index, 0, sparse=True)
        self._handle = self._disk.open(f"{self._directory}/{staged_name(first_index)}", create=True)
        self._identity = made
        self._written = RECORDS_START
        self._crc = seed_of(made.incarnation)
        return made

    def _flush(self) -> None:
        if self._buffer:
            self._disk.pwrite(self._handle, bytes(self._buffer), self._written)
            self._written += len(self._buffer)
            self._buffer.clear()

    def end(self, last_index: int) -> None:
        """Close the segment, which covers all indexes up to `last_index`; durable but for its name. OSError."""
        assert self._identity is not None
        self._flush()
        file_bytes = self._written + (-self._written % PAGE_BYTES)
        made = attrs.evolve(self._identity, file_bytes=file_bytes)
        self._disk.preallocate(self._handle, file_bytes)
        self._disk.pwrite(self._handle, header_bytes(made, end=self._written, last_index=last_index, sealed=True), 0)
        self._disk.fdatasync(self._handle)
        self._disk.close(self._handle)
        self._handle, self._identity = -1, None
        self.made.append((made.first_index, made.incarnation))

    @property
    def is_open(self) -> bool:
        """A segment is being written."""
        return self._identity is not None

    def close(self) -> None:
        """Let go of the file. OSError."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1


class Installer:
    """Receives a snapshot and the live records that go with it. Made by `Storage.begin_install`.

    Either `feed` the bytes of an `Outgoing`, or call `record` (ascending, gaps allowed) and then `page`; then `finish`
    or `abort`. All block; one thread at a time. Raises from every method: DiskFull, StorageError; `abort` after either.
    Until `finish` the log and the snapshots are as they were, and may be written meanwhile.
    """

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        wal: Wal,
        snapshots: SnapshotStore,
        disk_uuid: bytes,
        segment_bytes: int,
        *,
        base: int,
        index: int,
        term: int,
        meta: bytes,
        ended: Callable[[], None],
    ) -> None:
        self.base = base
        self.index = index
        self.term = term
        self._disk = disk
        self._data_dir = data_dir
        self._directory = f"{data_dir}/wal"
        self._wal = wal
        self._snapshots = snapshots
        self._ended = ended
        self._segments = _Segments(disk, self._directory, wal, disk_uuid, segment_bytes)
        self._writer = snapshots.receive(index, term, meta)
        self._last = base
        self._records = 0
        self._pages = 0
        self._pending = bytearray()
        self._fed = False
        self._whole = False
        self._open = True

    def record(self, record: Record) -> None:
        """Take a live record; what lies between it and the one before is dead.

        Raises: StorageError also for an index that is not between the last one and the snapshot's.
        """
        assert self._open, "the install is over"
        if not self._last < record.index <= self.index:
            raise StorageError(f"record {record.index} does not belong between {self._last} and {self.index}")
        with _translated():
            self._segments.add(record, self.base + 1)
        self._last = record.index
        self._records += 1

    def page(self, key: bytes, page: bytes) -> None:
        """Take a page of the image."""
        assert self._open, "the install is over"
        self._writer.put(key, page)
        self._pages += 1

    def feed(self, data: bytes) -> None:
        """Take the next bytes of a stream, as they were cut by whoever sent them.

        Raises: CorruptRecord: they are not what an `Outgoing` says.
        """
        self._fed = True
        self._pending += data
        start = 0
        view = bytes(self._pending)
        while len(view) - start >= _HEADER.size:
            crc, length, item, kind, key_bytes, first, second = _HEADER.unpack_from(view, start)
            if length > _BODY_BYTES_MAX or self._whole:
                raise CorruptRecord(f"the snapshot's stream is damaged behind record {self._last}")
            body_start = start + _HEADER.size + key_bytes
            end = body_start + length
            if end > len(view):
                break
            if crc32c(memoryview(view)[start + _CRC_BYTES : end]) != crc:
                raise CorruptRecord(f"the snapshot's stream is damaged behind record {self._last}")
            self._take(item, kind, first, second, view[start + _HEADER.size : body_start], view[body_start:end])
            start = end
        del self._pending[:start]

    def _take(self, item: int, kind: int, first: int, second: int, key: bytes, body: bytes) -> None:
        if item == _RECORD:
            self.record(Record(first, second, kind, body))
        elif item == _PAGE:
            self.page(key, body)
        elif item == _END and (first, second) == (self._records, self._pages):
            self._whole = True
        else:
            raise CorruptRecord(f"the snapshot's stream has an item {item} that does not belong there")

    def finish(self, *, holds: bool = False) -> None:
        """Make the snapshot the newest one, and the log what goes with it; durable when this returns.

        Without `holds` the log is then: its own entries up to `base`, the received records, nothing up to `index`, and
        goes on at `index + 1`. No append may run meanwhile.

        Args:
            holds: the log has the snapshot's last entry: all of it stays, what lies behind the snapshot included, and
                the received records are left out.

        Raises:
            CorruptRecord: the stream fed was not whole.
            StorageError: `base` or `index` do not fit what is here now, or another snapshot is being written: nothing
                was changed. After a failed write: final.
        """
        assert self._open, "the install is over"
        if self._pending or (self._fed and not self._whole):
            raise CorruptRecord("the snapshot's stream ended early")
        if holds and (self.index > self._wal.last_index or self._wal.term_at(self.index) != self.term):
            raise StorageError(f"the log does not hold entry {self.index} of term {self.term}")
        if not holds and self.base > self._wal.last_index:
            raise StorageError(f"the log ends at {self._wal.last_index}: it does not hold {self.base}")
        install: Install | None = None
        with _translated():
            if holds:
                self._discard()
            else:
                install = self._settle()
            identity.raise_version(self._disk, self._data_dir)
        self._wal.make_durable()
        self._publish(install)

    def _settle(self) -> Install:
        """Everything durable under names that mean nothing yet."""
        segments = self._segments
        if not segments.is_open and not segments.made:
            segments.begin(self.base + 1)
        if segments.is_open:
            segments.end(self.index)
            following = self._wal.stage_next(self.index + 1)
            segments.made.append((following.first_index, following.incarnation))
            self._disk.fsync_directory(self._directory)
        return Install(self.base, segments.made[-1][1], tuple(segments.made))

    def _publish(self, install: Install | None) -> None:
        """The moment of truth: from the manifest's name on there is no way back."""
        try:
            self._writer.finish(install)
        except StorageError as error:
            if self._writer.is_published or isinstance(error.__cause__, OSError):
                # Whether the manifest is there is for the next start to find out: nothing is touched any more.
                self._wal.fail(OSError(errno.EIO, error.text))
                self._end()
            raise
        self._end()
        if install is not None:
            self._wal.enter(install, self.index, lambda: complete_install(self._disk, self._data_dir, install))

    def abort(self) -> None:
        """Leave nothing; fine to call again, and after `finish`. StorageError."""
        if not self._open:
            return
        self._end()
        try:
            # The snapshot first, for good: it must not come back without its records.
            self._writer.abort()
            self._discard()
        except OSError as error:
            raise StorageError(f"what was received could not be removed: {error.strerror or error}") from error

    def _end(self) -> None:
        self._open = False
        self._ended()

    def _discard(self) -> None:
        self._segments.close()
        complete_install(self._disk, self._data_dir, None)


# --- what this node lost ----------------------------------------------------------------------------------------


class Restorer:
    """Puts records back that other nodes still have. Made by `Storage.begin_restore`.

    Each damaged segment is written anew beside itself, from what is readable in it and what came, and takes its name; a
    hole becomes a segment. Such segments are sparse: what is not in them is dead. `record` each of `indexes` that could
    be had, ascending; then `finish` or `abort`. All block; one thread at a time.

    Attributes:
        indexes: the records that can be put back now, ascending. Others lie in the segment that is being written, or
            behind the snapshot.
    """

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        wal: Wal,
        disk_uuid: bytes,
        segment_bytes: int,
        lost: Sequence[int],
        through: int,
        ended: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._directory = f"{data_dir}/wal"
        self._wal = wal
        self._disk_uuid = disk_uuid
        self._segment_bytes = segment_bytes
        self._ended = ended
        self._gaps = gaps_of(wal.segments, wal.active, lost, through)
        self.indexes = tuple(index for gap in self._gaps for index in gap.wanted)
        self._mended: list[Gap] = []
        self._segments: _Segments | None = None
        # What of the gap under way is written: up to there.
        self._written = 0
        self._open = True

    def record(self, record: Record) -> None:
        """Take a record.

        Raises:
            StorageError: it is none of those wanted, or the disk failed. Reclaimed: its segment was given back.
            DiskFull.
        """
        assert self._open, "the restoring is over"
        while self._gaps and self._gaps[0].last_index < record.index:
            self._end_gap()
        if not self._gaps or record.index not in self._gaps[0].wanted:
            raise StorageError(f"record {record.index} is not among those that were asked for")
        gap = self._gaps[0]
        with _translated():
            if self._segments is None:
                # A damaged segment becomes one again: its parts could not take its place at one moment.
                size = SEGMENT_BYTES_LIMIT if gap.segment is not None else self._segment_bytes
                self._segments = _Segments(self._disk, self._directory, self._wal, self._disk_uuid, size)
                self._written = gap.first_index - 1
            self._copy(gap, record.index - 1)
            self._segments.add(record, gap.first_index)
            self._written = record.index

    def _copy(self, gap: Gap, last_index: int) -> None:
        """What is readable here of the gap's segment, up to there."""
        if gap.segment is None or last_index <= self._written:
            return
        assert self._segments is not None
        old = gap.segment
        extent = Extent(old.path, old.incarnation, old.first_index, old.last_index, old.end, old.sparse)
        for _, record in self._wal.read_stretch(extent, self._written + 1, last_index):
            if record is not None:
                self._segments.add(record, gap.first_index)
        self._written = last_index

    def _end_gap(self) -> None:
        gap, segments = self._gaps.pop(0), self._segments
        self._segments = None
        if segments is None:
            return
        with _translated():
            self._segments = segments
            self._copy(gap, gap.last_index)
            self._segments = None
            segments.end(gap.last_index)
        gap.made = segments.made
        self._mended.append(gap)

    def finish(self) -> int:
        """Put what came in its places, durably; how many segments were made. As `record`."""
        assert self._open, "the restoring is over"
        while self._gaps:
            self._end_gap()
        if self._mended:
            with _translated():
                identity.raise_version(self._disk, self._data_dir)
                self._disk.fsync_directory(self._directory)
            self._wal.put_back(self._mended)
        self._end()
        return sum(len(gap.made) for gap in self._mended)

    def abort(self) -> None:
        """Leave nothing; fine to call again, and after `finish`. StorageError."""
        if not self._open:
            return
        self._end()
        with _translated():
            if self._segments is not None:
                self._segments.close()
            complete_install(self._disk, self._data_dir, None)

    def _end(self) -> None:
        self._open = False
        self._ended()


@contextmanager
def _translated() -> Iterator[None]:
    """OSError as what storage raises."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            raise DiskFull("the disk is full: no room for the snapshot that is being received") from error
        raise StorageError(f"the snapshot could not be received: {error.strerror or error}") from error
