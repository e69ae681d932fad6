"""Writes sparse segments: sealed from the beginning, synced, and without a name in the log until somebody gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from walrq.errors import DiskFull, StorageError
from walrq.storage.disk import FULL_ERRNOS, Disk
from walrq.storage.record import Record, encode, seed_of, stored_bytes
from walrq.storage.segment import PAGE_BYTES, RECORDS_START, Identity, header_bytes, staged_name
from walrq.storage.wal import Wal

_BUFFER_BYTES: Final = 1 << 20


class SparseWriter:
    """One or several sparse segments, in the order of their records."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        wal: Wal,
        disk_uuid: bytes,
        segment_bytes: int,
        *,
        name_of: Callable[[int], str] = staged_name,
    ) -> None:
        """`segment_bytes`: a record that does not fit begins another one. `name_of`: their names, by first index."""
        self._name_of = name_of
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
        self._handle = self._disk.open(f"{self._directory}/{self._name_of(first_index)}", create=True)
        self._identity = made
        self._written = RECORDS_START
        self._crc = seed_of(made.incarnation)
        return made

    def _flush(self) -> None:
        if self._buffer:
            self._disk.pwrite(self._handle, bytes(self._buffer), self._written)
            self._written += len(self._buffer)
            self._buffer.clear()

    @property
    def bytes(self) -> int:
        """Bytes of the segment under way."""
        return self._written + len(self._buffer)

    def sync(self) -> None:
        """Sync what was written so far, so that the end need not sync all of it. OSError."""
        if self._handle >= 0:
            self._flush()
            self._disk.fdatasync(self._handle)

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


@contextmanager
def translated(what: str = "the snapshot that is being received") -> Iterator[None]:
    """OSError as what storage raises."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            raise DiskFull(f"the disk is full: no room for {what}") from error
        raise StorageError(f"{what} could not be written: {error.strerror or error}") from error
