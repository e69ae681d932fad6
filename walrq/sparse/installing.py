"""The receiver's side of a snapshot.

It takes the bytes of an `Outgoing` (or single records and pages) and puts everything beside the log and the snapshots
that are there. Nothing of it is visible before `finish`; then all of it is, at the moment the snapshot's manifest is
durable (`manifest.Install`), and a crash leaves the state before or the state after.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from crc32c import crc32c

from walrq.errors import CorruptRecord, StorageError
from walrq.sparse import items
from walrq.sparse.writing import SparseWriter, translated
from walrq.storage import identity
from walrq.storage.disk import Disk
from walrq.storage.manifest import Install
from walrq.storage.opening import complete_install
from walrq.storage.record import Record
from walrq.storage.snapshot import SnapshotStore
from walrq.storage.wal import Wal


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
        self._segments = SparseWriter(disk, self._directory, wal, disk_uuid, segment_bytes)
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
        with translated():
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
        while len(view) - start >= items.HEADER.size:
            crc, length, item, kind, key_bytes, first, second = items.HEADER.unpack_from(view, start)
            if length > items.BODY_BYTES_MAX or self._whole:
                raise CorruptRecord(f"the snapshot's stream is damaged behind record {self._last}")
            body_start = start + items.HEADER.size + key_bytes
            end = body_start + length
            if end > len(view):
                break
            if crc32c(memoryview(view)[start + items.CRC_BYTES : end]) != crc:
                raise CorruptRecord(f"the snapshot's stream is damaged behind record {self._last}")
            self._take(item, kind, first, second, view[start + items.HEADER.size : body_start], view[body_start:end])
            start = end
        del self._pending[:start]

    def _take(self, item: int, kind: int, first: int, second: int, key: bytes, body: bytes) -> None:
        if item == items.RECORD:
            self.record(Record(first, second, kind, body))
        elif item == items.PAGE:
            self.page(key, body)
        elif item == items.END and (first, second) == (self._records, self._pages):
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
        with translated():
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
