"""The sender's side of a snapshot: what a pin holds, as one sequence of bytes, readable in pieces from any offset.

Records ascend, pages follow, the end closes. Indexes that are left out are dead; that costs nothing, however many.
"""

from __future__ import annotations

import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from walrq.errors import CorruptRecord, StorageError
from walrq.limits import RAFT_SNAPSHOT_WINDOW_BYTES
from walrq.sparse import items
from walrq.storage.manifest import Manifest, PageAt, hash_of
from walrq.storage.segment import Extent
from walrq.storage.wal import Wal

_CHECKPOINT_BYTES: Final = 256 * 1024
# What a receiver that missed something asks for again.
_SENT_BYTES: Final = 2 * RAFT_SNAPSHOT_WINDOW_BYTES


@attrs.frozen
class _Place:
    """Where a walk over the items stands: behind `runs` runs and in the next one at `index`; then `pages` pages."""

    run: int
    index: int
    page: int
    records: int


class Outgoing:
    """What a fixed pin holds, for a receiver that has everything up to `after`. Made by `Storage.stream`.

    Reads block, from one thread at a time. It holds the snapshot's pages, but no records: they are looked up when it is
    their turn, and what died meanwhile is left out. So a stream goes on from any offset of the last few megabytes, and
    from an earlier one only if the log was not written anew since. Memory: those bytes, and some for each stretch of
    live records.

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
        self._read_page = read_page
        self._pages = sorted(manifest.pages.items(), key=lambda item: (item[1].file, item[1].offset))
        # Of each stretch of live records: first and last index.
        self._runs = array.array("Q"), array.array("Q")
        for extent in extents:
            first = max(after + 1, extent.first_index)
            if first <= extent.last_index:
                self._note_live(first, extent.last_index, is_live)
        # The state of the log to which the checkpoints belong.
        self._changes = self._wal.changes
        # The last bytes that were read, up to `_offset`.
        self._sent = bytearray()
        # Nothing comes behind `_offset`.
        self._is_over = False
        self.lost: list[int] = []
        self._checkpoints: list[tuple[int, _Place]] = [(0, _Place(0, 0, 0, 0))]
        self._offset = 0
        self._walk_offset = 0
        self._items = self._walk(self._checkpoints[0][1])
        self._buffer = bytearray()

    def _note_live(self, first: int, last: int, is_live: Callable[[int, int], bool]) -> None:
        """Halve the span until each part is live or dead as a whole: as many questions as there are live records."""
        spans = [(first, last)]
        firsts, lasts = self._runs
        while spans:
            low, high = spans.pop()
            if not is_live(low, high):
                continue
            if low < high:
                middle = (low + high) // 2
                spans += [(middle + 1, high), (low, middle)]
            elif lasts and lasts[-1] == low - 1:
                lasts[-1] = low
            else:
                firsts.append(low)
                lasts.append(low)

    def read(self, offset: int, bytes_max: int) -> tuple[bytes, bool]:
        """(bytes from `offset` on, at most `bytes_max`; whether the stream ends behind them).

        Raises:
            StorageError: the disk failed, the offset lies behind the end, or the log was replaced meanwhile, or written
                anew since the offset was read for the first time: begin another stream.
            CorruptRecord: a page is damaged.
        """
        try:
            again = self._offset - offset
            if 0 < again <= len(self._sent):
                start = len(self._sent) - again
                return bytes(self._sent[start : start + bytes_max]), self._is_over and again <= bytes_max
            if again:
                self._seek(offset)
            # One byte more than is asked for tells whether this is the end.
            more = self._fill(bytes_max + 1)
        except OSError as error:
            raise StorageError(f"the snapshot cannot be read: {error.strerror or error}") from error
        data = bytes(self._buffer[:bytes_max])
        del self._buffer[:bytes_max]
        self._offset += len(data)
        self._sent += data
        del self._sent[: max(0, len(self._sent) - _SENT_BYTES)]
        self._is_over = not more and not self._buffer
        return data, self._is_over

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            item = next(self._items, None)
            if item is None:
                return False
            self._buffer += item
        return True

    def _seek(self, offset: int) -> None:
        """Walk again from the last checkpoint before the offset."""
        if self._changes != self._wal.changes:
            raise StorageError(f"the log was written anew since offset {offset} of the stream was read")
        self._sent.clear()
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
        firsts, lasts = self._runs
        records = place.records
        for run in range(place.run, len(firsts)):
            first = max(firsts[run], place.index)
            for index, record in self._wal.read_span(first, lasts[run]):
                if record is None:
                    if not self.lost or index > self.lost[-1]:
                        self.lost.append(index)
                    continue
                self._check(_Place(run, index, 0, records))
                records += 1
                yield self._walked(
                    items.encode_item(items.RECORD, record.kind, record.index, record.term, b"", record.body)
                )
        for number in range(place.page, len(self._pages)):
            key, at = self._pages[number]
            self._check(_Place(len(firsts), 0, number, records))
            page = self._read_page(at, at.length, 0)
            if hash_of(page) != at.hash:
                raise CorruptRecord(f"page {key.hex()} of the snapshot is damaged")
            yield self._walked(items.encode_item(items.PAGE, 0, 0, 0, key, page))
        yield self._walked(items.encode_item(items.END, 0, records, len(self._pages), b"", b""))

    def _walked(self, item: bytes) -> bytes:
        self._walk_offset += len(item)
        return item

    def _check(self, place: _Place) -> None:
        """Remember now and then where an item begins."""
        if self._walk_offset >= self._checkpoints[-1][0] + _CHECKPOINT_BYTES:
            self._checkpoints.append((self._walk_offset, place))
