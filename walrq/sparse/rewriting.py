"""Writes neighbouring segments anew, as one, without what is dead in them: the flip-flop.

    flip-<first>.wal   the new one: every record that is kept, at its index; a chain of its own, sealed, synced
    seg-<first>.wal    takes the new one's place by a rename, which is the moment; the others of the run go to the pool

Until the rename the log is as it was, and may be read and written. Who reads an old segment meanwhile goes on, or looks
the record up again. Made by `Storage.begin_rewrite`; blocking, in steps, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from walrq.errors import CorruptRecord, Reclaimed
from walrq.sparse.writing import SparseWriter, translated
from walrq.storage import identity
from walrq.storage.disk import Disk
from walrq.storage.record import Record, stored_bytes
from walrq.storage.segment import SEGMENT_BYTES_LIMIT, Extent, Segment, rewritten_name
from walrq.storage.wal import Wal

_WHAT = "a segment that is written anew"
# Synced in pieces, so that no single sync takes the disk from the log for long.
_SYNC_BYTES = 2 << 20


@attrs.frozen
class Rewritten:
    """What became of a run of segments. `made_bytes`: of the new one's file; 0: nothing in them was alive."""

    first_index: int
    last_index: int
    segments: int
    records: int
    read_bytes: int
    made_bytes: int
    freed_bytes: int


class Rewriter:
    """See the module: `step` until it says False, then `finish`; or `abort` at any time.

    Raises from every method: DiskFull, StorageError; Reclaimed: a segment is not what it was any more; CorruptRecord:
    one of its records is damaged. `abort` after any of them: the segments stay as they are.
    """

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        wal: Wal,
        disk_uuid: bytes,
        segments: Sequence[Segment],
        thin: Callable[[Record], bytes | None],
        ended: Callable[[], None],
    ) -> None:
        """`thin`: the body that a record is to have, None: it is dead."""
        assert segments
        self._disk = disk
        self._data_dir = data_dir
        self._directory = f"{data_dir}/wal"
        self._wal = wal
        self._old = tuple(segments)
        self._thin = thin
        self._ended = ended
        self._installs = wal.installs
        self._writer = SparseWriter(disk, self._directory, wal, disk_uuid, SEGMENT_BYTES_LIMIT, name_of=rewritten_name)
        self._records = self._walk()
        self._kept = 0
        self._read_bytes = 0
        self._synced_bytes = 0
        self._open = True

    @property
    def first_index(self) -> int:
        """Where the run begins."""
        return self._old[0].first_index

    @property
    def last_index(self) -> int:
        """Where it ends."""
        return self._old[-1].last_index

    @property
    def written_bytes(self) -> int:
        """What the new segment has so far."""
        return self._writer.bytes

    def _walk(self) -> Iterator[tuple[int, Record | None]]:
        for old in self._old:
            extent = Extent(old.path, old.incarnation, old.first_index, old.last_index, old.end, old.sparse)
            yield from self._wal.read_stretch(extent, old.first_index, old.last_index)

    def step(self, bytes_max: int, records_max: int) -> bool:
        """Read on, as far as about so many bytes or records; False: everything is read."""
        assert self._open, "the rewrite is over"
        size = 0
        with translated(_WHAT):
            for _ in range(records_max):
                index, record = self._next()
                if not index:
                    return False
                if record is None:
                    raise CorruptRecord(f"record {index} is damaged: its segment stays as it is", index=index)
                size += stored_bytes(len(record.body))
                self._take(record)
                if size >= bytes_max:
                    break
            self._read_bytes += size
            if self._writer.bytes - self._synced_bytes >= _SYNC_BYTES:
                self._writer.sync()
                self._synced_bytes = self._writer.bytes
        return True

    def _next(self) -> tuple[int, Record | None]:
        """The next record; index 0: there is none."""
        try:
            return next(self._records, (0, None))
        except (CorruptRecord, OSError) as error:
            if any(segment.retired for segment in self._old):
                raise Reclaimed("a segment that is written anew was given back") from error
            raise

    def _take(self, record: Record) -> None:
        body = self._thin(record)
        if body is None:
            return
        if body is not record.body:
            record = attrs.evolve(record, body=body)
        if not self._kept:
            # What a free file beyond the reserve takes is what the new one may take.
            self._wal.trim_pool()
        self._writer.add(record, self.first_index)
        self._kept += 1

    def finish(self) -> Rewritten:
        """Put the new segment in the place of the old ones, durably; without anything alive they are given back."""
        assert self._open, "the rewrite is over"
        made = 0
        if self._kept:
            with translated(_WHAT):
                # What is thinned is not known to earlier versions.
                identity.raise_version(self._disk, self._data_dir)
                self._writer.end(self.last_index)
                made = self._writer.bytes
                self._disk.fsync_directory(self._directory)
            staged = f"{self._directory}/{rewritten_name(self.first_index)}"
            freed = self._wal.swap(self._old, staged, self._installs)
        else:
            freed = self._wal.give_back(self._old, self._installs)
        self._open = False
        self._ended()
        counters = self._wal.counters
        counters.bytes_reread += self._read_bytes
        counters.bytes_rewritten += made
        return Rewritten(self.first_index, self.last_index, len(self._old), self._kept, self._read_bytes, made, freed)

    def abort(self) -> None:
        """Leave nothing; fine to call again, and after `finish`. StorageError."""
        if not self._open:
            return
        self._open = False
        self._ended()
        with translated(_WHAT):
            self._writer.close()
            path = f"{self._directory}/{rewritten_name(self.first_index)}"
            if self._disk.exists(path):
                self._disk.unlink(path)
