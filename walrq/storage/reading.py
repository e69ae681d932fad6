"""The half of the log that only reads: by index, in stretches, from an index on. Any thread, beside an append.

The list of segments is a tuple that is replaced, never changed, so readers need no lock. A reader that finds another
file under a segment's name looks the record up again: segments are written anew, merged and given back meanwhile.
"""

from __future__ import annotations

import array
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from walrq.errors import CorruptRecord, Reclaimed, StorageError
from walrq.storage.cache import ReadHandles
from walrq.storage.disk import Disk
from walrq.storage.findings import Finding, Verdict
from walrq.storage.record import HEADER, HEADER_BYTES, Record, Window, decode, stored_bytes
from walrq.storage.recovery import adopt, end_behind, scan
from walrq.storage.segment import Extent, Log, Segment, lost_in, read_header, runs_of

_READ_AHEAD_BYTES: Final = 64 * 1024
_READ_STRETCH_BYTES: Final = 256 * 1024
# Damaged records named one by one when they are read: enough to see the extent, bounded for a disk that dies.
_DAMAGED_NAMED_MAX: Final = 10_000

_logger = logging.getLogger(__name__)


class LogReader:
    """What `Wal` is made of; see the module."""

    def __init__(self, disk: Disk, segments: Sequence[Segment], *, handles_max: int) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._load_lock = threading.Lock()
        self._handles = ReadHandles(disk, handles_max)
        self._log = Log.of(segments)
        self.late_findings: list[Finding] = []
        self._damaged: set[int] = set()
        self.last_index = segments[-1].last_index if segments else 0

    @property
    def first_index(self) -> int:
        """The lowest index in the log; `last_index + 1` when it is empty."""
        log = self._log
        return log.firsts[0] if log.firsts else self.last_index + 1

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, ascending."""
        return self._log.segments

    def read(self, index: int) -> Record:
        """The record with this index, its checksum verified. Safe beside an append in another thread.

        Raises:
            Reclaimed: its segment was given back, or the index was never here.
            CorruptRecord: its bytes are damaged.
        """
        while True:
            segment = self._segment_of(index)
            try:
                return self._read_from(segment, index)
            except (CorruptRecord, OSError) as error:
                if self._was_replaced(segment):
                    continue
                if segment.retired:
                    raise Reclaimed(f"record {index} was reclaimed", index=index) from error
                if isinstance(error, OSError):
                    raise StorageError(f"record {index} cannot be read: {error.strerror}", index=index) from error
                self._name_damaged(segment, index, error)
                raise

    def _was_replaced(self, segment: Segment) -> bool:
        """Whether another segment, or none, has its place by now: what was read in vain is to be looked up again."""
        if not segment.retired:
            return False
        # Whoever retires a segment takes it out of the list before it lets go of the lock.
        with self._lock:
            return all(segment is not other for other in self._log.segments)

    def _name_damaged(self, segment: Segment, index: int, error: CorruptRecord) -> None:
        """Say once of a record that it was asked for and is not readable any more."""
        with self._load_lock:
            if index in self._damaged or len(self._damaged) >= _DAMAGED_NAMED_MAX:
                return
            self._damaged.add(index)
            if any(index in finding.lost for finding in self.late_findings):
                return
            self._report(
                Finding(
                    Verdict.DAMAGED,
                    f"wal/{segment.path.rpartition('/')[2]}",
                    f"{error.text}; its messages are delivered as lost",
                    first_index=index,
                    last_index=index,
                )
            )

    def _report(self, finding: Finding) -> None:
        self.late_findings.append(finding)
        _logger.warning("storage_finding %s", finding)

    def _read_from(self, segment: Segment, index: int) -> Record:
        offsets = self._offsets(segment)
        offset = segment.offset_of(index)
        if offset is None:
            raise Reclaimed(f"record {index} is not in the log", index=index)
        if not offset:
            raise CorruptRecord(f"record {index} is damaged", index=index)
        position = segment.position_from(index)
        following = offsets[position + 1] if position + 1 < len(offsets) else segment.end
        size = following - offset if following > offset else _READ_AHEAD_BYTES
        data = self._handles.pread(segment.path, size, offset)
        record = decode(data, segment.seed, index)
        if record is None and len(data) >= HEADER_BYTES:
            # The successor is damaged, so its offset did not say where this one ends.
            whole = stored_bytes(HEADER.unpack_from(data)[1])
            if size < whole <= segment.file_bytes - offset:
                record = decode(self._handles.pread(segment.path, whole, offset), segment.seed, index)
        if record is None:
            raise CorruptRecord(f"record {index} is damaged", index=index)
        return record

    def term_at(self, index: int) -> int:
        """Term of the record with this index. Reclaimed as for `read`."""
        segment = self._scanned(index)
        if segment.offset_of(index) is None:
            raise Reclaimed(f"record {index} is not in the log", index=index)
        return segment.term_of(index)

    def runs(self, from_index: int) -> tuple[tuple[int, int], ...]:
        """See `segment.runs_of`."""
        return runs_of([(segment, self._offsets) for segment in self._log.segments], from_index, self.last_index)

    @property
    def lost(self) -> tuple[tuple[int, int], ...]:
        """(first, last) of what lies in damaged bytes, ascending, as far as segments were scanned or records read."""
        spans = {*(span for segment in self._log.segments for span in lost_in(segment))}
        singles = [index for index in self._damaged if not any(first <= index <= last for first, last in spans)]
        return tuple(sorted([*spans, *((index, index) for index in singles)]))

    def suffix(self, from_index: int, text: str) -> list[Finding]:
        """A finding for each segment that holds something at or behind `from_index`, with the bytes that hold it."""
        findings = []
        for segment in self._log.segments:
            if segment.last_index < from_index or segment.is_empty:
                continue
            self._offsets(segment)
            first = max(from_index, segment.first_index)
            start, _, _ = end_behind(self._reader(segment), segment, first - 1)
            name = f"wal/{segment.path.rpartition('/')[2]}"
            findings.append(Finding(Verdict.SUSPECT, name, text, start, segment.end, first, segment.last_index))
        return findings

    # --- many records ---------------------------------------------------------------------------------------

    def read_stretch(self, extent: Extent, first_index: int, last_index: int) -> Iterator[tuple[int, Record | None]]:
        """The records of an extent's segment in a span of indexes, read in large pieces; None: damaged. Any thread.

        Raises:
            Reclaimed: the segment is not what it was any more. StorageError.
        """
        segment = self._segment_of(extent.first_index)
        if segment.incarnation != extent.incarnation:
            raise Reclaimed(f"segment {extent.path} is not in the log any more", index=first_index)
        return self._stretch(segment, first_index, last_index)

    def _stretch(self, segment: Segment, first_index: int, last_index: int) -> Iterator[tuple[int, Record | None]]:
        offsets = self._offsets(segment)
        position, end = segment.position_from(first_index), segment.position_from(last_index + 1)
        while position < end:
            start = offsets[position]
            stop = position
            while stop < end and offsets[stop] and offsets[stop] - start < _READ_STRETCH_BYTES:
                stop += 1
            behind = offsets[stop] if stop < len(offsets) else segment.end
            if stop == position or not behind:
                # Where a record ends is only known from the one behind it.
                yield self._read_or_none(segment, segment.index_at(position))
                position += 1
                continue
            data = memoryview(self._handles.pread(segment.path, behind - start, start))
            for at in range(position, stop):
                record = decode(data[offsets[at] - start :], segment.seed, segment.index_at(at))
                found = (segment.index_at(at), record)
                yield found if record is not None else self._read_or_none(segment, segment.index_at(at))
            position = stop

    def read_span(self, first_index: int, last_index: int) -> Iterator[tuple[int, Record | None]]:
        """The records in a span of indexes, whatever segments they lie in by now, as `read_stretch`. Any thread.

        What is given back or dropped meanwhile is left out.
        """
        index = first_index
        while index <= last_index:
            log = self._log
            position = max(0, bisect_right(log.firsts, index) - 1)
            position += position < len(log.segments) and log.segments[position].last_index < index
            if position >= len(log.segments) or log.segments[position].first_index > last_index:
                return
            segment = log.segments[position]
            try:
                for found in self._stretch(segment, index, min(last_index, segment.last_index)):
                    yield found
                    index = found[0] + 1
            except (CorruptRecord, Reclaimed, OSError):
                if self._was_replaced(segment):
                    continue
                raise
            index = max(index, segment.last_index + 1)

    def _read_or_none(self, segment: Segment, index: int) -> tuple[int, Record | None]:
        try:
            return index, self._read_from(segment, index)
        except CorruptRecord as error:
            if segment.retired:
                raise Reclaimed(f"record {index} was reclaimed", index=index) from error
            self._name_damaged(segment, index, error)
            return index, None

    # --- what it stands on ----------------------------------------------------------------------------------

    def _reader(self, segment: Segment) -> Callable[[int, int], bytes]:
        return lambda size, offset: self._handles.pread(segment.path, size, offset)

    def _segment_of(self, index: int) -> Segment:
        log = self._log
        position = bisect_right(log.firsts, index) - 1
        if position < 0 or index > log.segments[position].last_index:
            raise Reclaimed(f"record {index} is not in the log", index=index)
        return log.segments[position]

    def _scanned(self, index: int) -> Segment:
        """The segment that covers an index, its records known. As `_segment_of`; CorruptRecord, OSError."""
        while True:
            segment = self._segment_of(index)
            try:
                self._offsets(segment)
            except (CorruptRecord, OSError):
                if self._was_replaced(segment):
                    continue
                raise
            return segment

    def _offsets(self, segment: Segment) -> array.array[int]:
        """Offsets of a segment's records; a sealed one below the snapshot is scanned when first asked for."""
        if segment.offsets is None:
            with self._load_lock:
                if segment.offsets is None:
                    self._load(segment)
        assert segment.offsets is not None
        return segment.offsets

    def _load(self, segment: Segment) -> None:
        header = read_header(self._disk, segment.path)
        if header is None or header.identity.incarnation != segment.incarnation:
            raise CorruptRecord(f"segment {segment.path} has lost its header")
        name = f"wal/{segment.path.rpartition('/')[2]}"
        scanned = scan(self._reader(segment), name, header)
        if segment.retired:
            # Half of what was scanned may have been another file of the same name.
            raise CorruptRecord(f"segment {segment.path} was replaced while it was read")
        for finding in scanned.findings:
            self._report(finding)
        adopt(segment, scanned)

    def entries(self, from_index: int) -> Iterator[Record]:
        """The readable records from `from_index` on, ascending; lost ones, reclaimed ones and gaps are stepped over."""
        for segment in self._log.segments:
            if segment.last_index >= from_index:
                yield from self._entries_of(segment, from_index)

    def _entries_of(self, segment: Segment, from_index: int) -> Iterator[Record]:
        offsets, seed = self._offsets(segment), segment.seed
        window = Window(self._reader(segment), segment.file_bytes)
        for position in range(segment.position_from(from_index), len(offsets)):
            offset = offsets[position]
            if not offset:
                continue
            header = window.at(offset, HEADER_BYTES)
            size = stored_bytes(HEADER.unpack(header)[1]) if header is not None else 0
            data = window.at(offset, size)
            index = segment.index_at(position)
            record = decode(data, seed, index) if data is not None else None
            if record is None:
                raise CorruptRecord(f"record {index} changed under the reader", index=index)
            yield record
