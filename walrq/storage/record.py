"""The bytes of one log record, and the walk from one record to the next.

    0   crc     u32   CRC-32C of all that follows (header, body, padding), started from the segment's seed
    4   length  u32   bytes of the body
    8   prev    u32   crc of the record before it in this segment; the segment's seed for the first one
    12  kind    u8    the caller's
    13  flags   u8    0, or FENCE
    14  zero    u16   0
    16  term    u64
    24  index   u64
    32  body    length bytes, then zero bytes up to a multiple of 8

All numbers are little-endian. The seed is made from the segment's incarnation number, so that the same bytes
left
over from an earlier life of the file never verify: CRC-32C with a fixed length is one-to-one in its start
value. `prev` chains a record to the very bytes before it, while the record can still be verified by itself:
that is what lets recovery find the intact records behind a damaged one.

A *fence* is a record without an index of its own (it repeats the last one): it is written when a tail was
cut, so that leftovers behind the cut can never chain to what is written there later.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Final

import attrs
from crc32c import crc32c

from walrq.limits import MIB

HEADER: Final = struct.Struct("<IIIBBHQQ")
HEADER_BYTES: Final = HEADER.size
FENCE: Final = 1
ALIGNMENT: Final = 8
_AFTER_CRC: Final = struct.Struct("<IIBBHQQ")
_CRC: Final = struct.Struct("<I")
_PADDING: Final = tuple(bytes(count) for count in range(ALIGNMENT))
_WINDOW_BYTES: Final = MIB


@attrs.frozen
class Record:
    """One entry of the log. `kind` (0..255) and `body` are the caller's; storage never looks into them."""

    index: int
    term: int
    kind: int
    body: bytes


def seed_of(incarnation: int) -> int:
    """Start value of a segment's checksums."""
    return int(crc32c(incarnation.to_bytes(8, "little")))


def stored_bytes(body_bytes: int) -> int:
    """Bytes a record with such a body takes on disk."""
    return HEADER_BYTES + body_bytes + (-body_bytes % ALIGNMENT)


def encode(seed: int, prev: int, kind: int, flags: int, term: int, index: int, body: bytes) -> tuple[int, bytes, bytes]:
    """(crc, header, padding) of a record; its bytes are header + body + padding."""
    length = len(body)
    rest = _AFTER_CRC.pack(length, prev, kind, flags, 0, term, index)
    padding = _PADDING[-length % ALIGNMENT]
    crc = crc32c(body, crc32c(rest, seed))
    if padding:
        crc = crc32c(padding, crc)
    return crc, _CRC.pack(crc) + rest, padding


def decode(data: bytes | memoryview, seed: int, index: int) -> Record | None:
    """The record that starts `data`, if it is intact and has this index."""
    if len(data) < HEADER_BYTES:
        return None
    crc, length, _prev, kind, _flags, _zero, term, found = HEADER.unpack_from(data)
    whole = HEADER_BYTES + length + (-length % ALIGNMENT)
    if found != index or whole > len(data) or crc32c(memoryview(data)[4:whole], seed) != crc:
        return None
    return Record(index, term, kind, bytes(data[HEADER_BYTES : HEADER_BYTES + length]))


@attrs.frozen
class Found:
    """A record read back and verified by itself. `offset` and `end` are positions in the segment file."""

    offset: int
    end: int
    crc: int
    prev: int
    kind: int
    flags: int
    term: int
    index: int
    body_bytes: int

    @property
    def is_fence(self) -> bool:
        """A fence holds no entry."""
        return self.flags == FENCE


class Window:
    """A sliding buffer over a file: turns many small reads into few large ones."""

    def __init__(self, read: Callable[[int, int], bytes], file_bytes: int) -> None:
        self._read = read
        self.file_bytes = file_bytes
        self._start = 0
        self._data = b""

    def at(self, offset: int, size: int) -> memoryview | None:
        """`size` bytes at `offset`, or None if the file ends before."""
        if offset + size > self.file_bytes:
            return None
        low = offset - self._start
        if low < 0 or low + size > len(self._data):
            self._data = self._read(max(size, _WINDOW_BYTES), offset)
            self._start = offset
            low = 0
            if len(self._data) < size:
                return None
        return memoryview(self._data)[low : low + size]

    def from_offset(self, offset: int, size: int) -> tuple[int, memoryview]:
        """(offset, all that is buffered from there on): at least `size` bytes, or none at the file's end."""
        if self.at(offset, size) is None:
            return offset, memoryview(b"")
        return offset, memoryview(self._data)[offset - self._start :]


@attrs.define
class Chain:
    """How far a chain was followed: where the next record would begin, and what it must say."""

    end: int
    tail_crc: int
    last_index: int
    offsets: array.array[int]
    # (first index, term) of every stretch of one term.
    terms: list[tuple[int, int]]
    # Of a sparse segment: the index of every offset, ascending with gaps. None: without gaps.
    indexes: array.array[int] | None = None
    # Of a sparse segment: (first, last) index that damaged bytes may have held.
    lost: list[tuple[int, int]] = attrs.field(factory=list)


def follow_entries(window: Window, seed: int, chain: Chain) -> None:
    """Follow plain entries as far as they are intact and chained; the same rule as `verify`, for many
    records.

    Stops before a fence, before damage and at the end: whoever calls decides which of these it is.
    """
    end, prev, index, offsets, indexes = chain.end, chain.tail_crc, chain.last_index, chain.offsets, chain.indexes
    term = chain.terms[-1][1] if chain.terms else -1
    unpack, append = HEADER.unpack_from, offsets.append
    start, view = window.from_offset(end, HEADER_BYTES)
    size = len(view)
    while True:
        low = end - start
        if low + HEADER_BYTES > size:
            start, view = window.from_offset(end, HEADER_BYTES)
            low, size = 0, len(view)
            if size < HEADER_BYTES:
                break
        crc, length, before, _kind, flags, zero, record_term, record_index = unpack(view, low)
        if before != prev or flags or zero:
            break
        if record_index != index + 1 and (indexes is None or record_index <= index):
            break
        high = low + HEADER_BYTES + length + (-length % ALIGNMENT)
        if high > size:
            start, view = window.from_offset(end, high - low)
            low, high, size = 0, high - low, len(view)
            if high > size:
                break
        if crc32c(view[low + 4 : high], seed) != crc:
            break
        append(end)
        if indexes is not None:
            indexes.append(record_index)
        prev, index = crc, record_index
        end = start + high
        if record_term != term:
            term = record_term
            chain.terms.append((index, term))
    chain.end, chain.tail_crc, chain.last_index = end, prev, index


def verify(window: Window, offset: int, seed: int) -> Found | None:
    """The record at `offset` if its checksum says that it is one of this incarnation, else None."""
    header = window.at(offset, HEADER_BYTES)
    if header is None:
        return None
    crc, length, prev, kind, flags, zero, term, index = HEADER.unpack(header)
    # A flag this version does not know is not skipped over: its meaning could be anything.
    if zero or flags > FENCE:
        return None
    # inv: NoPhantom  (the checksum starts from this incarnation's seed: old or torn bytes are no record)
    size = stored_bytes(length)
    data = window.at(offset, size)
    if data is None or crc32c(data[_CRC.size :], seed) != crc:
        return None
    return Found(
        offset=offset,
        end=offset + size,
        crc=crc,
        prev=prev,
        kind=kind,
        flags=flags,
        term=term,
        index=index,
        body_bytes=length,
    )


def search(window: Window, start: int, end: int, seed: int, indexes: range) -> Found | None:
    """The first intact record in [start, end) with an index in `indexes`: the way on behind damage.

    Records begin at multiples of 8, so the index field is one aligned word; only words in range are verified.
    """
    position = start
    while position + HEADER_BYTES <= end:
        size = min(_WINDOW_BYTES, end - position)
        data = window.at(position, size - size % ALIGNMENT)
        if data is None:
            return None
        zeros = bytes(data).count(0) == len(data)
        for word, value in enumerate(() if zeros else _words(data)):
            if value in indexes:
                offset = position + word * ALIGNMENT - 24
                found = verify(window, offset, seed) if offset >= start else None
                if found is not None and found.end <= end:
                    return found
        # The next window overlaps by one header, so that none hides on the border.
        position += max(size - HEADER_BYTES, ALIGNMENT)
        position -= position % ALIGNMENT
    return None


def _words(data: memoryview) -> Sequence[int]:
    """The bytes as little-endian 64-bit words."""
    words = array.array("Q")
    words.frombytes(data)
    if sys.byteorder == "big":
        words.byteswap()
    return words
