"""Which addresses are alive in the newest durable snapshot: page by page, and only pages that changed.

A page of the image names batches by address, and which of their positions are left. What a page holds alive is kept as
sums over spans of the log, a few dozen numbers, so that the next pass reads only pages that are new. Which positions
exactly are alive is read again for the segments that are written anew (`marks`), a run at a time.

Nothing dead comes alive again: what is dead in a snapshot may be dropped at any time after it. What is not known for
certain counts as alive: rows of sealed pages that have left them meanwhile.
"""

from __future__ import annotations

import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeAlias

import attrs
import cbor2

from walrq.compaction.thinning import PUSH_OVERHEAD_BYTES
from walrq.errors import CorruptRecord
from walrq.far.rows import ROW, ROW_BYTES
from walrq.far.shelf import PAGE_PREFIX, TABLE_KEY, TAIL_KEY, Far
from walrq.storage.manifest import Manifest

# Rows of a page that are kept one by one; of pages with more, sums over this many equal spans.
_EXACT_ROWS_MAX: Final = 64
_SPANS: Final = 64
_UNTOUCHED_FIELDS: Final = 7

Row: TypeAlias = tuple[int, int, int, int, int]
"""Index, ordinal, first and last position in the body, bytes of those messages by equal shares."""


def batch_rows(page: bytes) -> Iterator[Row]:
    """Rows of pages of batches, hot and cold (`queues/batch.py`)."""
    for row in cbor2.loads(page):
        if len(row) == _UNTOUCHED_FIELDS:
            index, ordinal, count, size = row[:4]
            yield index, ordinal, 0, count - 1, size
            continue
        index, ordinal, base, count, total, size = row[:6]
        spans = [(run[0], run[1]) for run in row[14]]
        if row[12]:
            spans.append((row[11], count - 1))
        for first, last in spans:
            low, high = base + first, base + last
            yield index, ordinal, low, high, size * (high + 1) // total - size * low // total


def far_rows(page: bytes, is_there: Callable[[int], bool], rows: int) -> Iterator[Row]:
    """Rows of a sealed page of what is far, those that have left it or are gone excepted."""
    for position, row in enumerate(ROW.iter_unpack(page[: rows * ROW_BYTES])):
        if is_there(position):
            _, _, index, ordinal, base, count, total, size, *_ = row
            yield index, ordinal, base, base + count - 1, size * (base + count) // total - size * base // total


class Pages(Protocol):
    """A snapshot whose pages stay as long as it is looked at."""

    @property
    def manifest(self) -> Manifest:
        """The snapshot."""
        ...

    def read(self, key: bytes) -> bytes:
        """A page. CorruptRecord; StorageError."""
        ...


@attrs.frozen
class Alive:
    """What one page holds alive, as sums over spans of log indexes.

    Attributes:
        hash: the page's, and of what else this was made of.
        starts: first index of each span with something alive; all are `width` long, but the last one ends at `high`.
        sums: bytes up to and with each span.
    """

    hash: bytes
    starts: array.array[int]
    sums: array.array[int]
    width: int
    high: int

    @classmethod
    def of(cls, digest: bytes, rows: Iterable[Row]) -> Alive:
        """Add up a page."""
        found: dict[int, int] = {}
        for index, _, _, _, size in rows:
            found[index] = found.get(index, 0) + size + PUSH_OVERHEAD_BYTES
        indexes = sorted(found)
        if not indexes:
            return cls(digest, array.array("Q"), array.array("Q"), 1, 0)
        low, high = indexes[0], indexes[-1]
        width = 1 if len(indexes) <= _EXACT_ROWS_MAX else (high - low) // _SPANS + 1
        starts, sums = array.array("Q"), array.array("Q")
        total = 0
        for index in indexes:
            start = low + (index - low) // width * width
            total += found[index]
            if starts and starts[-1] == start:
                sums[-1] = total
            else:
                starts.append(start)
                sums.append(total)
        return cls(digest, starts, sums, width, high)

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.sums[-1] if self.sums else 0

    def up_to(self, index: int) -> int:
        """Bytes at or below an index; a span that it divides counts by equal shares."""
        position = bisect_right(self.starts, index) - 1
        if position < 0:
            return 0
        if index >= self.high:
            return self.sums[-1]
        before = self.sums[position - 1] if position else 0
        reached = min(self.width, index - self.starts[position] + 1)
        return before + (self.sums[position] - before) * reached // self.width

    def touches(self, first: int, last: int) -> bool:
        """Whether something in first..last may be alive by this page."""
        position = bisect_right(self.starts, last) - 1
        if position < 0 or first > self.high:
            return False
        return first < self.starts[position] + self.width


Marks: TypeAlias = dict[int, dict[int, list[tuple[int, int]]]]
"""Positions that are alive, by index and ordinal: ascending and apart."""


class Liveness:
    """See the module. One thread at a time.

    Attributes:
        index: of the snapshot that was read last; 0: none.
    """

    def __init__(self) -> None:
        self.index = 0
        self._pages: dict[bytes, Alive] = {}
        self.pages_read = 0

    def refresh(self, snapshot: Pages) -> Iterator[None]:
        """Read what is new in a snapshot, a page a step. CorruptRecord: a page is damaged; nothing is known then."""
        manifest = snapshot.manifest
        far = _far_of(snapshot)
        found: dict[bytes, Alive] = {}
        for key, place in manifest.pages.items():
            if not _has_rows(key):
                continue
            digest = place.hash + _further(key, far)
            known = self._pages.get(key)
            if known is None or known.hash != digest:
                known = Alive.of(digest, _rows_of(key, snapshot.read(key), far))
                self.pages_read += 1
                yield
            found[key] = known
        self._pages = found
        self.index = manifest.index

    def bytes_in(self, first: int, last: int) -> int:
        """Bytes alive in a span of indexes."""
        if last < first:
            return 0
        return sum(page.up_to(last) - page.up_to(first - 1) for page in self._pages.values())

    def bytes_by(self, spans: list[tuple[int, int]]) -> list[int]:
        """`bytes_in` of many spans, ascending and apart: only those that a page touches are looked at."""
        firsts = [first for first, _ in spans]
        found = [0] * len(spans)
        for page in self._pages.values():
            if not page.starts:
                continue
            low = max(0, bisect_right(firsts, page.starts[0]) - 1)
            for position in range(low, bisect_right(firsts, page.high)):
                first, last = spans[position]
                found[position] += page.up_to(last) - page.up_to(first - 1)
        return found

    def is_empty(self, first: int, last: int) -> bool:
        """Whether nothing is alive in a span of indexes, for certain."""
        return last < first or not any(page.touches(first, last) for page in self._pages.values())

    def marks(self, snapshot: Pages, first: int, last: int) -> Iterator[Marks | None]:
        """Which positions are alive in a span of indexes, in the snapshot that was read last.

        A page a step; the last thing it gives is what was found. CorruptRecord: a page is damaged.
        """
        far = _far_of(snapshot)
        marks: Marks = {}
        for key, alive in self._pages.items():
            if not alive.touches(first, last):
                continue
            for index, ordinal, low, high, _ in _rows_of(key, snapshot.read(key), far):
                if first <= index <= last:
                    marks.setdefault(index, {}).setdefault(ordinal, []).append((low, high))
            yield None
        for by_ordinal in marks.values():
            for ordinal, ranges in by_ordinal.items():
                by_ordinal[ordinal] = _joined(ranges)
        yield marks


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges ascending and apart."""
    ranges.sort()
    joined = ranges[:1]
    for low, high in ranges[1:]:
        if low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def _has_rows(key: bytes) -> bool:
    kind = key[:1]
    if kind == b"q":
        # Pages of a queue below 0 are settings, turns, deduplication ids.
        return not key[5] & 0x80
    return kind in (b"c", b"d", PAGE_PREFIX) or key == TAIL_KEY


def _far_of(snapshot: Pages) -> Far | None:
    """The table of pages of what is far."""
    if TABLE_KEY not in snapshot.manifest.pages:
        return None
    far = Far()
    far.load_table(snapshot.read(TABLE_KEY))
    return far


def _further(key: bytes, far: Far | None) -> bytes:
    """What a page's rows depend on beside its bytes."""
    if key[:1] != PAGE_PREFIX or far is None:
        return b""
    page = far.pages.get(int.from_bytes(key[1:], "big"))
    return b"" if page is None else cbor2.dumps([page.cursor, page.dead])


def _rows_of(key: bytes, body: bytes, far: Far | None) -> Iterator[Row]:
    try:
        if key == TAIL_KEY:
            tail = Far()
            tail.load_tail(body)
            for row in tail.tail():
                yield row.index, row.ordinal, row.base, row.base + row.count - 1, row.weight
        elif key[:1] == PAGE_PREFIX:
            page = far.pages.get(int.from_bytes(key[1:], "big")) if far is not None else None
            if page is not None:
                yield from far_rows(body, page.is_there, page.rows)
        else:
            yield from batch_rows(body)
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError) as error:
        raise CorruptRecord(f"a page of the image cannot be read by this version: {error!r}") from error
