"""How many waiting rows lie in each block of log indexes, so that the log keeps what they point at.

Dense, for rows come by the million: chunks of counters, a chunk only where there is something. Not in the table of
pages but in image pages of their own, of which only the changed ones are written.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final

# Log indexes per block, as in the counts of what is near.
BLOCK_SHIFT: Final = 6
# Blocks per chunk: 256 bytes of counters.
_CHUNK_SHIFT: Final = 6
_CHUNK: Final = 1 << _CHUNK_SHIFT
# Chunks per image page.
_PAGE_SHIFT: Final = 6
BLOCKS_PREFIX: Final = b"v"
_ENTRY: Final = struct.Struct(">QI")


def blocks_key(page: int) -> bytes:
    """The key of an image page of counts."""
    return BLOCKS_PREFIX + page.to_bytes(8, "big")


class Blocks:
    """Counts by block. `dirty`: image pages that changed since it was cleared."""

    __slots__ = ("_chunks", "dirty")

    def __init__(self) -> None:
        self._chunks: dict[int, array[int]] = {}
        self.dirty: set[int] = set()

    def add(self, index: int, change: int) -> None:
        """Count `change` more rows at a log index."""
        block = index >> BLOCK_SHIFT
        number = block >> _CHUNK_SHIFT
        self.dirty.add(number >> _PAGE_SHIFT)
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = array("I", bytes(_CHUNK * array("I").itemsize))
        # inv: Conservation  (never below zero: an unsigned counter refuses)
        chunk[block & (_CHUNK - 1)] += change
        if change < 0 and not any(chunk):
            del self._chunks[number]

    def any_in(self, first: int, last: int) -> bool:
        """Whether a row may lie in log indexes first .. last, per block. Any thread."""
        low, high = first >> BLOCK_SHIFT, last >> BLOCK_SHIFT
        chunks = self._chunks
        spanned = range(low >> _CHUNK_SHIFT, (high >> _CHUNK_SHIFT) + 1)
        numbers = [number for number in list(chunks) if number in spanned] if len(spanned) > len(chunks) else spanned
        for number in numbers:
            chunk = chunks.get(number)
            if chunk is None:
                continue
            base = number << _CHUNK_SHIFT
            if any(chunk[max(0, low - base) : high - base + 1]):
                return True
        return False

    def __iter__(self) -> Iterator[int]:
        """Blocks with a row, ascending."""
        for number in sorted(self._chunks):
            base = number << _CHUNK_SHIFT
            yield from (base + offset for offset, count in enumerate(self._chunks[number]) if count)

    def items(self) -> Iterator[tuple[int, int]]:
        """(block, rows), ascending."""
        for number in sorted(self._chunks):
            base = number << _CHUNK_SHIFT
            yield from ((base + offset, count) for offset, count in enumerate(self._chunks[number]) if count)

    # --- the image ------------------------------------------------------------------------------------------
    @property
    def image_pages(self) -> list[int]:
        """Numbers of the image pages with something in them, ascending."""
        return sorted({number >> _PAGE_SHIFT for number in self._chunks})

    def image_page(self, page: int) -> bytes | None:
        """The bytes of one; None when there is nothing in it."""
        first = page << _PAGE_SHIFT
        rows = []
        for number in range(first, first + (1 << _PAGE_SHIFT)):
            chunk = self._chunks.get(number)
            if chunk is not None:
                base = number << _CHUNK_SHIFT
                rows += [_ENTRY.pack(base + offset, count) for offset, count in enumerate(chunk) if count]
        return b"".join(rows) or None

    def load(self, body: bytes) -> None:
        """Take over an image page."""
        for block, count in _ENTRY.iter_unpack(body):
            self.add(block << BLOCK_SHIFT, count)
