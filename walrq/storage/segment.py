"""One segment file: its header, its two durable-end slots, and what is known of its records in memory.

    0       identity   magic, format version, crc, disk uuid, incarnation, first index, file bytes
    4096    slot 0     crc, flags, incarnation, first index, sequence, end, last index
    8192    slot 1     the same
    12288   records

Each part has a page of its own: a torn or rotted page harms one of them. A slot repeats the incarnation and
the first index, so a segment survives the loss of its identity page. The slots are written in turn, each with
the fdatasync of the records it speaks of; the slot with the higher sequence is the newer one.

What the slots promise (`Promise`): a slot numbered n is written only after the sync of slot n-1 returned, so
all below the *older* end is durable. All below the *newer* end may be: its sync may have been cut short.
"""

from __future__ import annotations

import array
import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import attrs
from crc32c import crc32c

from walrq.storage.disk import Disk
from walrq.storage.record import seed_of

FORMAT_VERSION: Final = 1
MAGIC: Final = b"WALRQSEG"
PAGE_BYTES: Final = 4096
SLOT_OFFSETS: Final = (PAGE_BYTES, 2 * PAGE_BYTES)
RECORDS_START: Final = 3 * PAGE_BYTES
# Offsets are kept in 32 bits in memory.
SEGMENT_BYTES_LIMIT: Final = 1 << 31

IDENTITY: Final = struct.Struct("<8sII16sQQQ")
SLOT: Final = struct.Struct("<IIQQQQQ")
# Nothing is appended behind the end of a sealed segment any more.
SEALED: Final = 1

_NAME_FIRST = "seg-"
_NAME_FREE = "free-"
_NAME_LAST = ".wal"


def segment_name(first_index: int) -> str:
    """File name of the segment that starts with `first_index`."""
    return f"{_NAME_FIRST}{first_index:020d}{_NAME_LAST}"


def free_name(number: int) -> str:
    """File name of a preallocated file that waits in the pool."""
    return f"{_NAME_FREE}{number:020d}{_NAME_LAST}"


def number_in(name: str, *, free: bool) -> int | None:
    """The number in a segment's (or pool file's) name; None if the name is of another kind."""
    first = _NAME_FREE if free else _NAME_FIRST
    digits = name[len(first) : -len(_NAME_LAST)]
    if name.startswith(first) and name.endswith(_NAME_LAST) and digits.isdecimal():
        return int(digits)
    return None


@attrs.frozen
class Identity:
    """The header page of a segment."""

    disk_uuid: bytes
    incarnation: int
    first_index: int
    file_bytes: int

    def encode(self) -> bytes:
        """The page."""
        rest = IDENTITY.pack(
            MAGIC,
            FORMAT_VERSION,
            0,
            self.disk_uuid,
            self.incarnation,
            self.first_index,
            self.file_bytes,
        )
        page = bytearray(PAGE_BYTES)
        page[: len(rest)] = rest
        page[12:16] = int(crc32c(rest)).to_bytes(4, "little")
        return bytes(page)

    @classmethod
    def decode(cls, page: bytes) -> Identity | None:
        """The identity, or None if the page is damaged or not one of this version."""
        if len(page) < IDENTITY.size:
            return None
        magic, version, crc, disk_uuid, incarnation, first_index, file_bytes = IDENTITY.unpack_from(page)
        bare = page[:12] + bytes(4) + page[16 : IDENTITY.size]
        if magic != MAGIC or version != FORMAT_VERSION or crc32c(bare) != crc:
            return None
        return cls(disk_uuid, incarnation, first_index, file_bytes)


@attrs.frozen
class Slot:
    """One durable-end slot. `end` is the offset behind the last record, `last_index` that record's index."""

    incarnation: int
    first_index: int
    sequence: int
    end: int
    last_index: int
    sealed: bool

    def encode(self) -> bytes:
        """The bytes, SLOT.size of them."""
        rest = SLOT.pack(
            0,
            SEALED if self.sealed else 0,
            self.incarnation,
            self.first_index,
            self.sequence,
            self.end,
            self.last_index,
        )[4:]
        return int(crc32c(rest)).to_bytes(4, "little") + rest

    @classmethod
    def decode(cls, data: bytes) -> Slot | None:
        """The slot, or None if it is damaged."""
        if len(data) < SLOT.size:
            return None
        crc, flags, incarnation, first_index, sequence, end, last_index = SLOT.unpack_from(data)
        if crc32c(data[4 : SLOT.size]) != crc or flags > SEALED or end < RECORDS_START:
            return None
        return cls(incarnation, first_index, sequence, end, last_index, bool(flags))


@attrs.frozen
class Promise:
    """What the readable slots say about the records.

    Below `older_end` (through `older_last`) everything was durable; below `newer_end` it may have been.
    `readable` is False when neither slot could be read: then nothing is known.
    """

    older_end: int
    older_last: int
    newer_end: int
    newer_last: int
    sequence: int
    sealed: bool
    readable: bool

    @property
    def settled(self) -> bool:
        """Both slots name the same end: nothing is between them."""
        return self.older_end == self.newer_end


def promise_of(slots: Sequence[Slot | None], first_index: int) -> Promise:
    """Combine the slots of one segment.

    With a single readable slot all below its end counts as durable: the other one is either the torn slot of
    a later append, which proves this one's sync, or rotted, and then a false alarm is better than a silent
    cut.
    """
    good = sorted((slot for slot in slots if slot is not None), key=lambda slot: slot.sequence)
    if not good:
        return Promise(RECORDS_START, first_index - 1, RECORDS_START, first_index - 1, 0, False, False)
    newer = good[-1]
    # After a cut the newer slot has the smaller end; then nothing above it is promised any more.
    older = min(good, key=lambda slot: slot.end)
    return Promise(
        older_end=older.end,
        older_last=older.last_index,
        newer_end=newer.end,
        newer_last=newer.last_index,
        sequence=newer.sequence,
        sealed=newer.sealed,
        readable=True,
    )


@attrs.frozen
class Header:
    """What the first three pages of a segment file say. `identity_readable` False: rebuilt from a slot."""

    identity: Identity
    promise: Promise
    identity_readable: bool


def read_header(disk: Disk, path: str) -> Header | None:
    """Read the three pages; None if neither identity nor slots can be read. OSError as the disk says."""
    handle = disk.open(path, read_only=True)
    try:
        data = disk.pread(handle, RECORDS_START, 0)
    finally:
        disk.close(handle)
    identity = Identity.decode(data[:PAGE_BYTES])
    slots = [Slot.decode(data[offset : offset + SLOT.size]) for offset in SLOT_OFFSETS]
    readable = identity is not None
    if identity is None:
        witness = next((slot for slot in slots if slot is not None), None)
        if witness is None:
            return None
        identity = Identity(b"", witness.incarnation, witness.first_index, disk.size(path))
    own = [slot if slot is not None and slot.incarnation == identity.incarnation else None for slot in slots]
    return Header(identity, promise_of(own, identity.first_index), readable)


def header_bytes(
    identity: Identity, *, end: int = RECORDS_START, last_index: int | None = None, sealed: bool = False
) -> bytes:
    """The first three pages of a segment in which everything is settled: a fresh, empty one unless `end` says more."""
    pages = bytearray(identity.encode())
    for sequence in range(len(SLOT_OFFSETS)):
        slot = Slot(
            incarnation=identity.incarnation,
            first_index=identity.first_index,
            sequence=sequence,
            end=end,
            last_index=identity.first_index - 1 if last_index is None else last_index,
            sealed=sealed,
        )
        pages += slot.encode().ljust(PAGE_BYTES, b"\0")
    return bytes(pages)


@attrs.define(eq=False)
class Segment:
    """A segment in memory.

    Written by the appending thread, read by others without a lock: `offsets`, `terms` and `end` are extended
    before `last_index`, so whoever sees an index finds its offset.
    """

    path: str
    incarnation: int
    first_index: int
    file_bytes: int
    # Invariant: RECORDS_START <= end <= file_bytes
    end: int = RECORDS_START
    last_index: int = 0
    # crc of the last record (or fence), the predecessor of the next one.
    tail_crc: int = 0
    slot_sequence: int = 1
    # The ends the two slots name; both equal to `end` when settled.
    newer_end: int = RECORDS_START
    older_end: int = RECORDS_START
    sealed: bool = False
    # offsets[i] is where first_index + i lies; 0: that record is damaged. None: not scanned yet.
    offsets: array.array[int] | None = None
    # (first index, term) of every stretch of one term, ascending.
    terms: list[tuple[int, int]] = attrs.field(factory=list)
    # Given back: a reader that finds nonsense looks here before it cries damage.
    retired: bool = False

    @property
    def seed(self) -> int:
        """Start value of the checksums."""
        return seed_of(self.incarnation)

    @property
    def is_settled(self) -> bool:
        """Both slots name the end: a stop now leaves nothing suspect."""
        return self.older_end == self.newer_end == self.end

    @property
    def is_empty(self) -> bool:
        """No record in it."""
        return self.last_index < self.first_index

    def term_of(self, index: int) -> int:
        """Term of an index within this segment (a damaged one takes its predecessor's)."""
        position = bisect_right(self.terms, index, key=lambda stretch: stretch[0]) - 1
        return self.terms[position][1] if position >= 0 else 0


def fresh_segment(path: str, identity: Identity) -> Segment:
    """The in-memory side of a segment whose header was just written."""
    return Segment(
        path=path,
        incarnation=identity.incarnation,
        first_index=identity.first_index,
        file_bytes=identity.file_bytes,
        last_index=identity.first_index - 1,
        tail_crc=seed_of(identity.incarnation),
        offsets=array.array("I"),
    )
