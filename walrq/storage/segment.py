"""One segment file: its header, its two durable-end slots, and what is known of its records in memory.

    0       identity   magic, format version, crc, disk uuid, incarnation, first index, file bytes
    4096    slot 0     crc, flags, incarnation, first index, sequence, end, last index
    8192    slot 1     the same
    12288   records

A *sparse* segment was written at one go when a snapshot was installed: its indexes ascend with gaps, it covers the
gaps too, up to the last index its slots name, and it is sealed from the beginning.

Each part has a page of its own: a torn or rotted page harms one of them. A slot is written twice into its page, at
once, into two sectors: rot of one leaves the other. A slot repeats the incarnation and
the first index, so a segment survives the loss of its identity page. The slots are written in turn, each with
the fdatasync of the records it speaks of; the slot with the higher sequence is the newer one.

What the slots promise (`Promise`): a slot numbered n is written only after the sync of slot n-1 returned, so
all below the *older* end is durable. All below the *newer* end may be: its sync may have been cut short.
"""

from __future__ import annotations

import array
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

import attrs
from crc32c import crc32c

from walrq.storage.disk import Disk
from walrq.storage.record import HEADER_BYTES, seed_of

# Of the identity page: a segment without gaps, and a sparse one.
VERSION_DENSE: Final = 1
VERSION_SPARSE: Final = 2
MAGIC: Final = b"WALRQSEG"
PAGE_BYTES: Final = 4096
SLOT_OFFSETS: Final = (PAGE_BYTES, 2 * PAGE_BYTES)
RECORDS_START: Final = 3 * PAGE_BYTES
# Where in its page the second copy of a slot lies: in another sector.
SLOT_COPY_OFFSET: Final = 512
# Offsets are kept in 32 bits in memory.
SEGMENT_BYTES_LIMIT: Final = 1 << 31

IDENTITY: Final = struct.Struct("<8sII16sQQQ")
SLOT: Final = struct.Struct("<IIQQQQQ")
# Nothing is appended behind the end of a sealed segment any more.
SEALED: Final = 1
SPARSE: Final = 2

_NAME_FIRST = "seg-"
_NAME_FREE = "free-"
_NAME_STAGED = "new-"
_NAME_REWRITTEN = "flip-"
_NAME_LAST = ".wal"


def segment_name(first_index: int) -> str:
    """File name of the segment that starts with `first_index`."""
    return f"{_NAME_FIRST}{first_index:020d}{_NAME_LAST}"


def free_name(number: int) -> str:
    """File name of a preallocated file that waits in the pool."""
    return f"{_NAME_FREE}{number:020d}{_NAME_LAST}"


def staged_name(first_index: int) -> str:
    """File name of a segment that is no part of the log yet."""
    return f"{_NAME_STAGED}{first_index:020d}{_NAME_LAST}"


def rewritten_name(first_index: int) -> str:
    """File name of a segment that is being written anew, beside the one that it will replace."""
    return f"{_NAME_REWRITTEN}{first_index:020d}{_NAME_LAST}"


def is_rewritten(name: str) -> bool:
    """Whether a name is that of a segment that was being written anew."""
    return _number_in(name, _NAME_REWRITTEN) is not None


def number_in(name: str, *, free: bool) -> int | None:
    """The number in a segment's (or pool file's) name; None if the name is of another kind."""
    return _number_in(name, _NAME_FREE if free else _NAME_FIRST)


def staged_number_in(name: str) -> int | None:
    """The first index in a staged segment's name; None if the name is of another kind."""
    return _number_in(name, _NAME_STAGED)


def _number_in(name: str, first: str) -> int | None:
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
    sparse: bool = False

    def encode(self) -> bytes:
        """The page."""
        rest = IDENTITY.pack(
            MAGIC,
            VERSION_SPARSE if self.sparse else VERSION_DENSE,
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
        """The identity, or None if the page is damaged or of a version that is not known."""
        if len(page) < IDENTITY.size:
            return None
        magic, version, crc, disk_uuid, incarnation, first_index, file_bytes = IDENTITY.unpack_from(page)
        bare = page[:12] + bytes(4) + page[16 : IDENTITY.size]
        if magic != MAGIC or version not in (VERSION_DENSE, VERSION_SPARSE) or crc32c(bare) != crc:
            return None
        return cls(disk_uuid, incarnation, first_index, file_bytes, version == VERSION_SPARSE)


@attrs.frozen
class Slot:
    """One durable-end slot. `end` is the offset behind the last record, `last_index` that record's index."""

    incarnation: int
    first_index: int
    sequence: int
    end: int
    last_index: int
    sealed: bool
    sparse: bool = False

    def encode(self) -> bytes:
        """The bytes, SLOT.size of them."""
        rest = SLOT.pack(
            0,
            (SEALED if self.sealed else 0) | (SPARSE if self.sparse else 0),
            self.incarnation,
            self.first_index,
            self.sequence,
            self.end,
            self.last_index,
        )[4:]
        return int(crc32c(rest)).to_bytes(4, "little") + rest

    def pair(self) -> bytes:
        """Both copies, as they are written to the beginning of the slot's page."""
        encoded = self.encode()
        return encoded.ljust(SLOT_COPY_OFFSET, b"\0") + encoded

    @classmethod
    def of_page(cls, page: bytes) -> Slot | None:
        """The newer of two copies, which differ if a write was torn; None if neither can be read."""
        copies = [cls.decode(page[offset : offset + SLOT.size]) for offset in (0, SLOT_COPY_OFFSET)]
        return max((copy for copy in copies if copy is not None), key=lambda copy: copy.sequence, default=None)

    @classmethod
    def decode(cls, data: bytes) -> Slot | None:
        """The slot, or None if it is damaged."""
        if len(data) < SLOT.size:
            return None
        crc, flags, incarnation, first_index, sequence, end, last_index = SLOT.unpack_from(data)
        if crc32c(data[4 : SLOT.size]) != crc or flags > SEALED | SPARSE or end < RECORDS_START:
            return None
        return cls(incarnation, first_index, sequence, end, last_index, bool(flags & SEALED), bool(flags & SPARSE))


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
    # Both slots could be read: nothing is known to be missing from the promise.
    whole: bool = True

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
        return Promise(RECORDS_START, first_index - 1, RECORDS_START, first_index - 1, 0, False, False, whole=False)
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
        whole=len(good) == len(slots),
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
    slots = [Slot.of_page(data[offset : offset + PAGE_BYTES]) for offset in SLOT_OFFSETS]
    readable = identity is not None
    if identity is None:
        witness = next((slot for slot in slots if slot is not None), None)
        if witness is None:
            return None
        identity = Identity(b"", witness.incarnation, witness.first_index, disk.size(path), witness.sparse)
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
            sparse=identity.sparse,
        )
        pages += slot.pair().ljust(PAGE_BYTES, b"\0")
    return bytes(pages)


def seal(disk: Disk, path: str, segment: Segment, end: int, last_index: int) -> None:
    """End a segment at `end`, with `last_index`, for good: nothing is appended to it any more. OSError.

    May be repeated after a crash: first what lies behind the end is made unreadable, then it is no longer promised.
    """
    handle = disk.open(path)
    try:
        room = min(HEADER_BYTES, segment.file_bytes - end)
        if room > 0:
            disk.pwrite(handle, bytes(room), end)
            disk.fdatasync(handle)
        for _ in SLOT_OFFSETS:
            slot = Slot(
                incarnation=segment.incarnation,
                first_index=segment.first_index,
                sequence=segment.slot_sequence + 1,
                end=end,
                last_index=last_index,
                sealed=True,
                sparse=segment.sparse,
            )
            disk.pwrite(handle, slot.pair(), SLOT_OFFSETS[slot.sequence % len(SLOT_OFFSETS)])
            disk.fdatasync(handle)
            segment.slot_sequence = slot.sequence
    finally:
        disk.close(handle)
    segment.end = segment.older_end = segment.newer_end = end
    segment.last_index = last_index
    segment.sealed = True


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
    # Written by an install: sealed, and with gaps between its indexes.
    sparse: bool = False
    # offsets[i] is where first_index + i lies; 0: that record is damaged. None: not scanned yet. In a sparse segment
    # it is where indexes[i] lies, and `lost` are the spans of indexes that lie in damaged bytes.
    offsets: array.array[int] | None = None
    indexes: array.array[int] = attrs.field(factory=lambda: array.array("Q"))
    lost: list[tuple[int, int]] = attrs.field(factory=list)
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

    def position_from(self, index: int) -> int:
        """Position in `offsets` of the first record that is known at or behind `index`. Only once scanned."""
        assert self.offsets is not None
        if self.sparse:
            return bisect_left(self.indexes, index)
        return min(max(0, index - self.first_index), len(self.offsets))

    def index_at(self, position: int) -> int:
        """The index of a position in `offsets`."""
        return self.indexes[position] if self.sparse else self.first_index + position

    def offset_of(self, index: int) -> int | None:
        """Where a record within `first_index..last_index` lies; 0: in damaged bytes; None: a gap. Only once scanned."""
        assert self.offsets is not None
        if not self.sparse:
            return self.offsets[index - self.first_index]
        position = bisect_left(self.indexes, index)
        if position < len(self.indexes) and self.indexes[position] == index:
            return self.offsets[position]
        return 0 if any(first <= index <= last for first, last in self.lost) else None

    def term_of(self, index: int) -> int:
        """Term of an index within this segment (a damaged one takes its predecessor's)."""
        position = bisect_right(self.terms, index, key=lambda stretch: stretch[0]) - 1
        return self.terms[position][1] if position >= 0 else 0


@attrs.frozen
class Extent:
    """The records of one segment up to some index: bytes RECORDS_START to `end` of the file `path`."""

    path: str
    incarnation: int
    first_index: int
    last_index: int
    end: int
    sparse: bool = False


@attrs.define(eq=False)
class Hold:
    """Keeps `reclaim` from giving back what somebody still reads, as long as it is in `Wal.holds`.

    Attributes:
        segments: first indexes of the segments held; None: all of them.
    """

    segments: frozenset[int] | None = None

    def covers(self, segment: Segment) -> bool:
        """Whether the segment must stay."""
        return self.segments is None or segment.first_index in self.segments


@attrs.define
class WalCounters:
    """What the log has done since it was opened."""

    syncs: int = 0
    bytes_written: int = 0
    rotations: int = 0
    recycled: int = 0
    reclaimed: int = 0
    # Segments that were written anew, the bytes read and written for that, and what the files lost.
    rewritten: int = 0
    bytes_reread: int = 0
    bytes_rewritten: int = 0
    bytes_freed: int = 0


@attrs.define(eq=False)
class Gap:
    """Where records are to be put back.

    Attributes:
        segment: the one that holds damaged bytes, to be written anew; None: a hole.
        first_index, last_index: what the new one covers.
        wanted: indexes of the records, ascending.
        made: (first index, incarnation) of the staged segments.
    """

    first_index: int
    last_index: int
    segment: Segment | None = None
    wanted: list[int] = attrs.field(factory=list)
    made: list[tuple[int, int]] = attrs.field(factory=list)

    def covers(self, index: int) -> bool:
        """Whether the new segment speaks of that index."""
        return self.first_index <= index <= self.last_index


def gaps_of(segments: Sequence[Segment], active: Segment | None, lost: Sequence[int], through: int) -> list[Gap]:
    """Where records can be put back: sealed segments, and holes between segments, that end at `through` at most.

    Args:
        active: the one that is being written.
        lost: indexes of records that are not readable here, ascending.
    """
    found: dict[int, Gap] = {}
    for index in lost:
        position = bisect_right(segments, index, key=lambda segment: segment.first_index) - 1
        segment = segments[position] if position >= 0 else None
        if segment is not None and index <= segment.last_index:
            if segment.sealed and segment is not active and segment.last_index <= through:
                gap = Gap(segment.first_index, segment.last_index, segment)
                found.setdefault(gap.first_index, gap).wanted.append(index)
        elif index <= through and position + 1 < len(segments):
            # The hole begins behind the segment before it, where no other gap does.
            start = segment.last_index + 1 if segment is not None else 1
            gap = found.setdefault(start, Gap(index, index))
            gap.wanted.append(index)
            gap.last_index = index
    return sorted(found.values(), key=lambda gap: gap.first_index)


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


@attrs.frozen
class Log:
    """The segments as readers see them: ascending, `firsts[i]` is `segments[i].first_index`."""

    firsts: tuple[int, ...]
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Log:
        """Sort out a list."""
        return cls(tuple(segment.first_index for segment in segments), tuple(segments))


def superseded(headers: Sequence[tuple[str, Header]]) -> list[str]:
    """Names of segments that another one, written anew, has taken in; a crash came before they were removed.

    Args:
        headers: of the log's segments, by name, ascending.
    """
    # inv: NoMixedRead
    found: list[str] = []
    taker: Header | None = None
    for name, header in headers:
        identity, promise = header.identity, header.promise
        if taker is not None and identity.first_index <= taker.promise.newer_last:
            if identity.incarnation < taker.identity.incarnation and promise.newer_last <= taker.promise.newer_last:
                found.append(name)
                continue
        if identity.sparse and promise.readable and promise.sealed:
            taker = header
    return found


def runs_of(
    segments: Sequence[tuple[Segment, Callable[[Segment], array.array[int]]]], from_index: int, last_index: int
) -> tuple[tuple[int, int], ...]:
    """(first index, term) of each stretch of one term, of the readable records from `from_index` to `last_index`.

    They begin behind the last gap or damaged record; empty if nothing is readable without a gap up to the end.

    Args:
        segments: ascending, each with what scans it where it was not.
    """
    found: list[tuple[int, int]] = []
    expected = last_index + 1
    for segment, offsets_of in reversed(segments):
        if segment.is_empty:
            continue
        if segment.sparse or segment.last_index + 1 != expected or segment.last_index < from_index:
            break
        offsets = offsets_of(segment)
        first = max(from_index, segment.first_index)
        positions = range(len(offsets) - 1, first - segment.first_index - 1, -1)
        first = next((segment.first_index + at + 1 for at in positions if not offsets[at]), first)
        if first < expected:
            behind = [stretch for stretch in segment.terms if stretch[0] > first]
            found = [(first, segment.term_of(first)), *behind, *found]
        expected = first
        if first > segment.first_index:
            break
    return tuple(run for at, run in enumerate(found) if not at or found[at - 1][1] != run[1])


def lost_in(segment: Segment) -> list[tuple[int, int]]:
    """(first, last) index of each stretch that lies in damaged bytes; nothing if the segment was not scanned."""
    spans = list(segment.lost)
    if segment.sparse or segment.offsets is None:
        return spans
    position = 0
    while True:
        try:
            position = segment.offsets.index(0, position)
        except ValueError:
            return spans
        start = position
        while position < len(segment.offsets) and not segment.offsets[position]:
            position += 1
        spans.append((segment.first_index + start, segment.first_index + position - 1))
