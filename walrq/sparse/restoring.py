"""Puts records back that this node lost and that others still have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walrq.errors import StorageError
from walrq.sparse.writing import SparseWriter, translated
from walrq.storage import identity
from walrq.storage.disk import Disk
from walrq.storage.opening import complete_install
from walrq.storage.record import Record
from walrq.storage.segment import SEGMENT_BYTES_LIMIT, Extent, Gap, gaps_of
from walrq.storage.wal import Wal


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
        self._segments: SparseWriter | None = None
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
        with translated():
            if self._segments is None:
                # A damaged segment becomes one again: its parts could not take its place at one moment.
                size = SEGMENT_BYTES_LIMIT if gap.segment is not None else self._segment_bytes
                self._segments = SparseWriter(self._disk, self._directory, self._wal, self._disk_uuid, size)
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
        with translated():
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
            with translated():
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
        with translated():
            if self._segments is not None:
                self._segments.close()
            complete_install(self._disk, self._data_dir, None)

    def _end(self) -> None:
        self._open = False
        self._ended()
