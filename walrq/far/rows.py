"""Rows: stretches of messages that wait, and their bytes.

    0   time      u64   when it must be back at the latest, ms: due, or the end of its life if that is earlier
    8   first id  16 bytes: of its first message; the others follow
    24  index     u64   24 .. 40: where the bodies are
    32  ordinal   u16
    34  base      u16   position of the first message in the body
    36  count     u16   messages
    38  total     u16   messages of the whole body
    40  size      u32   bytes of the whole body
    44  priority  u8
    45  attempts  u32   most attempts, 0: the queue's setting
    49  expires   u64   end of its life, 0: never
    57  more      u16   position + 1 among the page's further fields, 0: none

Big-endian, so that rows compare as bytes by (time, id). Further fields are a CBOR map of small integers; most rows have
none. A page is its rows, in that order, and the array of further fields behind them.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import cbor2

from walrq.errors import CorruptRecord
from walrq.ids import SEQUENCE_MAX, id_parts

ROW: Final = struct.Struct(">Q16sQHHHHIBIQH")
ROW_BYTES: Final = ROW.size
KEY_BYTES: Final = 24
_MORE: Final = struct.Struct(">H")
_MORE_AT: Final = ROW_BYTES - _MORE.size
# Rows of one page that may have further fields.
MORE_MAX: Final = (1 << 16) - 2

# Further fields.
UID: Final = 0  # queue and sequence, where the id does not tell
SEQUENCE: Final = 1
ORDER: Final = 2  # its place, where that is not its sequence
GROUP: Final = 3
DELIVERY: Final = 4
ATTEMPTS: Final = 5
DUE: Final = 6  # where its life ends before
ORIGIN: Final = 7
HISTORY: Final = 8

More = Mapping[int, Any]


@attrs.frozen
class Row:
    """See the module."""

    time_ms: int
    first_id: int
    index: int
    ordinal: int
    base: int
    count: int
    total: int
    size: int
    priority: int
    max_attempts: int
    expire_ms: int
    more: More = attrs.field(factory=dict)

    @property
    def uid(self) -> int:
        """The queue it waits in."""
        uid = self.more.get(UID)
        return uid if uid is not None else id_parts(self.first_id)[1]

    @property
    def sequence(self) -> int:
        """Its first sequence there."""
        sequence = self.more.get(SEQUENCE)
        return sequence if sequence is not None else self.first_id & SEQUENCE_MAX

    @property
    def due_ms(self) -> int:
        """When it is due."""
        due_ms: int = self.more.get(DUE, self.time_ms)
        return due_ms

    @property
    def weight(self) -> int:
        """Bytes of its messages, by equal shares of the body."""
        return self.size * (self.base + self.count) // self.total - self.size * self.base // self.total

    @property
    def key(self) -> bytes:
        """Its place among all rows."""
        return key_of(self.time_ms, self.first_id)

    def part(self, first: int, last: int) -> Row:
        """A stretch of it, as a row of its own."""
        more = self.more
        if SEQUENCE in more or ORDER in more:
            more = dict(more)
            for field in (SEQUENCE, ORDER):
                if field in more:
                    more[field] += first
        return attrs.evolve(
            self, first_id=self.first_id + first, base=self.base + first, count=last - first + 1, more=more
        )

    def at(self, due_ms: int) -> Row:
        """The same, due at another time."""
        time_ms = min(due_ms, self.expire_ms) if self.expire_ms else due_ms
        more = {field: value for field, value in self.more.items() if field != DUE}
        if due_ms != time_ms:
            more[DUE] = due_ms
        return attrs.evolve(self, time_ms=time_ms, more=more)


def key_of(time_ms: int, first_id: int = 0) -> bytes:
    """The key of a row; without an id one below all of that time."""
    return time_ms.to_bytes(8, "big") + first_id.to_bytes(16, "big")


def time_of(key: bytes) -> int:
    """The time in a key, ms."""
    return int.from_bytes(key[:8], "big")


def pack(row: Row) -> bytes:
    """The bytes of a row, its further fields left out."""
    return ROW.pack(
        row.time_ms,
        row.first_id.to_bytes(16, "big"),
        row.index,
        row.ordinal,
        row.base,
        row.count,
        row.total,
        row.size,
        row.priority,
        row.max_attempts,
        row.expire_ms,
        0,
    )


def unpack(packed: bytes, mores: Sequence[More] = ()) -> Row:
    """The row of these bytes; `mores`: the further fields that it may point at."""
    time_ms, first_id, index, ordinal, base, count, total, size, priority, max_attempts, expire_ms, more = ROW.unpack(
        packed
    )
    return Row(
        time_ms,
        int.from_bytes(first_id, "big"),
        index,
        ordinal,
        base,
        count,
        total,
        size,
        priority,
        max_attempts,
        expire_ms,
        mores[more - 1] if more else {},
    )


def encode_page(rows: Sequence[tuple[bytes, More]]) -> bytes:
    """The bytes of a page; the rows in order, as `pack` gave them, with their further fields."""
    parts: list[bytes] = []
    mores: list[More] = []
    for packed, more in rows:
        if more:
            mores.append(dict(sorted(more.items())))
            parts.append(packed[:_MORE_AT] + _MORE.pack(len(mores)))
        else:
            parts.append(packed)
    if mores:
        parts.append(cbor2.dumps(mores))
    return b"".join(parts)


class PageView:
    """The rows of a page, read one by one where they lie."""

    __slots__ = ("_mores", "_page", "rows")

    def __init__(self, page: bytes, rows: int) -> None:
        """Raises CorruptRecord: it is too short for so many rows."""
        if len(page) < rows * ROW_BYTES:
            raise CorruptRecord(f"a page of waiting messages has {len(page)} bytes, too few for {rows} rows")
        self._page = page
        self._mores: list[More] | None = None
        self.rows = rows

    def key(self, position: int) -> bytes:
        """The key of a row."""
        start = position * ROW_BYTES
        return self._page[start : start + KEY_BYTES]

    def row(self, position: int) -> Row:
        """One row."""
        start = position * ROW_BYTES
        packed = self._page[start : start + ROW_BYTES]
        return unpack(packed, self._further() if packed[_MORE_AT:] != b"\0\0" else ())

    def below(self, key: bytes) -> int:
        """How many rows have a lower key."""
        return bisect_left(range(self.rows), key, key=self.key)

    def cut(self, first: int, end: int) -> bytes:
        """Rows first .. end - 1 as a page of their own."""
        rows: list[tuple[bytes, More]] = []
        for position in range(first, end):
            start = position * ROW_BYTES
            packed = self._page[start : start + ROW_BYTES]
            (more,) = _MORE.unpack_from(packed, _MORE_AT)
            rows.append((packed[:_MORE_AT] + b"\0\0", self._further()[more - 1]) if more else (packed, {}))
        return encode_page(rows)

    def _further(self) -> list[More]:
        mores = self._mores
        if mores is None:
            try:
                mores = self._mores = cbor2.loads(self._page[self.rows * ROW_BYTES :])
            except (cbor2.CBORDecodeError, ValueError) as error:
                raise CorruptRecord(f"a page of waiting messages cannot be read: {error}") from error
        return mores


def rows_of(page: bytes, rows: int) -> list[Row]:
    """All rows of a page. CorruptRecord."""
    view = PageView(page, rows)
    return [view.row(position) for position in range(rows)]
