"""The body of an entry without what is dead in it, and bodies read back from either form.

A thinned body is CBOR like a whole one, and cannot be taken for one: its first number is THINNED.

    [THINNED, [[ordinal, count, kept, payloads, ends, headers, header_ends], ...]]

    ordinal      of the push in the entry that it was
    count        messages it had; positions are those they were
    kept         first, last, first, last, ... position of those that are here; null: all
    the columns  of those that are here, end to end

All other commands are gone, and so are group keys and deduplication ids: the state has them. What is not in `kept` was
dead when the segment was written anew. It can be told from a message with an empty payload (`Columns.has`), and an
address that is not there at all from one whose record is damaged.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import cbor2

from walrq.api import Columns, value
from walrq.errors import CorruptRecord
from walrq.queues import commands

THINNED: Final = 64
# A body that would lose less than this part of its bytes stays as it is: reading it again costs more than it frees.
WORTH: Final = 0.25
# What a push takes in an entry beside its columns, about: its record's header, the names of things, numbers.
PUSH_OVERHEAD_BYTES: Final = 96

Ranges = Sequence[tuple[int, int]]
"""First and last position, both included, ascending and apart."""


@value
class ThinnedColumns(Columns):
    """Columns of which only `kept` is here: what lies between them was dead, and reads as empty."""

    kept: tuple[tuple[int, int], ...] = ()

    def has(self, first: int, count: int) -> bool:
        """See `Columns`."""
        return any(low <= first and first + count - 1 <= high for low, high in self.kept)


def thinned(body: bytes, live: Mapping[int, Ranges]) -> bytes | None:
    """An entry's body without what is dead in it; the very same object if that is not worth it; None: all is dead.

    Args:
        body: whole or thinned.
        live: positions that are alive, by ordinal.
    """
    if not live:
        return None
    found = bodies_of(body)
    rows = []
    for ordinal in sorted(live):
        columns = found.get(ordinal)
        if columns is None or not all(columns.has(low, high - low + 1) for low, high in live[ordinal]):
            raise CorruptRecord(f"an entry lacks messages of push {ordinal} that are alive")
        rows.append(_row(ordinal, columns, live[ordinal]))
    made = cbor2.dumps([THINNED, rows])
    return made if len(made) <= (1 - WORTH) * len(body) else body


def _row(ordinal: int, columns: Columns, ranges: Ranges) -> list[Any]:
    whole = not isinstance(columns, ThinnedColumns) and len(ranges) == 1 and ranges[0] == (0, columns.count - 1)
    if whole:
        return [ordinal, columns.count, None, columns.payloads, columns.ends, columns.headers, columns.header_ends]
    payloads, ends = _cut(columns.payloads, columns.ends, ranges)
    headers: bytes | None = None
    header_ends: bytes | None = None
    if columns.headers is not None and columns.header_ends is not None:
        headers, header_ends = _cut(columns.headers, columns.header_ends, ranges)
    kept = [position for pair in ranges for position in pair]
    return [ordinal, columns.count, kept, payloads, ends, headers, header_ends]


def _cut(data: bytes, ends: bytes, ranges: Ranges) -> tuple[bytes, bytes]:
    """Of a column the stretches named, end to end."""
    numbers = _numbers(ends)
    pieces: list[bytes] = []
    made = array.array("I")
    size = 0
    for first, last in ranges:
        start = numbers[first - 1] if first else 0
        pieces.append(data[start : numbers[last]])
        made.extend(end - start + size for end in numbers[first : last + 1])
        size += numbers[last] - start
    return b"".join(pieces), _bytes(made)


def _spread(ends: bytes, count: int, ranges: Ranges) -> bytes:
    """End offsets of `count` positions, of which those in `ranges` are given, end to end."""
    given = _numbers(ends)
    made = array.array("I")
    taken = 0
    for first, last in ranges:
        before = given[taken - 1] if taken else 0
        made.extend([before] * (first - len(made)))
        made.extend(given[taken : taken + last - first + 1])
        taken += last - first + 1
    made.extend([given[-1] if given else 0] * (count - len(made)))
    return _bytes(made)


def _numbers(ends: bytes) -> array.array[int]:
    numbers = array.array("I")
    numbers.frombytes(ends)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _bytes(numbers: array.array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def is_thinned(body: bytes) -> bool:
    """Whether a body is of the thinned form."""
    return body[1:3] == bytes((0x18, THINNED))


def bodies_of(body: bytes) -> dict[int, Columns]:
    """The columns of every push in an entry, by ordinal, from either form.

    Raises: CorruptRecord: it is of neither.
    """
    if not is_thinned(body):
        return commands.bodies_of(body)
    try:
        return {row[0]: _open(*row[1:]) for row in cbor2.loads(body)[1]}
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError) as error:
        raise CorruptRecord(f"a thinned entry cannot be read: {error}") from error


def _open(
    count: int,
    kept: list[int] | None,
    payloads: bytes,
    ends: bytes,
    headers: bytes | None,
    header_ends: bytes | None,
) -> Columns:
    if kept is None:
        return Columns(payloads, ends, headers, header_ends)
    ranges = tuple(zip(kept[::2], kept[1::2], strict=True))
    spread = _spread(ends, count, ranges)
    spread_headers = None if header_ends is None else _spread(header_ends, count, ranges)
    return ThinnedColumns(payloads, spread, headers, spread_headers, None, None, ranges)


@attrs.frozen
class Push:
    """What is left of one push: positions `kept` of `count`; None: all."""

    ordinal: int
    count: int
    kept: tuple[tuple[int, int], ...] | None


def pushes_in(body: bytes) -> list[Push]:
    """What a thinned body still has, for whoever looks into a log."""
    return [
        Push(row[0], row[1], None if row[2] is None else tuple(zip(row[2][::2], row[2][1::2], strict=True)))
        for row in cbor2.loads(body)[1]
    ]
