"""Torn, suspect or damaged: the rule by which a segment is read after a stop.

Records are followed from the first one, each chained to the one before. Where the chain ends at offset p:

    p >= newer end               torn     nobody was told of what is behind p; the log ends here
    older end <= p < newer end   suspect  the last sync may not have returned; cut here, the indexes named
    p < older end                damaged  it was durable: what is behind it is searched for and served

A record behind the newer end that verifies is kept: it was written whole, only its slot was lost.
"""

from __future__ import annotations

import array
import errno
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from walrq.storage.cache import ReadHandles
from walrq.storage.disk import FULL_ERRNOS, Disk, write_file_atomically
from walrq.storage.findings import Finding, Verdict
from walrq.storage.record import (
    ALIGNMENT,
    Chain,
    Found,
    Window,
    follow_entries,
    search,
    seed_of,
    verify,
)
from walrq.storage.segment import (
    RECORDS_START,
    Gap,
    Header,
    Promise,
    Segment,
    read_header,
    segment_name,
    staged_name,
)

# Where no slot tells the end, an index this far ahead still counts as one of the same segment.
INDEXES_AHEAD_MAX: Final = 1 << 32


@attrs.define
class Scan:
    """The outcome of reading one segment through.

    `chain.end` is where the next record would go; `broken_end` says that this place is not behind an intact
    record, so nothing can be chained to it. `chain.offsets` has 0 for a lost record.
    """

    first_index: int
    chain: Chain
    findings: list[Finding]
    broken_end: bool = False

    @property
    def last_index(self) -> int:
        """Index of the last record, lost ones included."""
        return self.chain.last_index


def judge(offset: int, promise: Promise) -> Verdict:
    """The rule: what it means that no record follows at `offset`."""
    # inv: NoRefuseWithoutRot  (what a mere crash leaves behind is never called damage)
    # inv: NoSilentLoss  (only what was never promised to anybody is cut without a word)
    if offset < promise.older_end:
        return Verdict.DAMAGED
    if offset < promise.newer_end:
        return Verdict.SUSPECT
    return Verdict.TORN


def judge_end(newest: tuple[int, bool] | None, snapshot_index: int) -> list[Finding]:
    """What the end of the log says of a segment that is not there.

    A log that has begun always has a segment behind its last sealed one, except while it goes on in a new one: the
    old one is sealed first. A snapshot is not made before the log is durable up to its index.

    Args:
        newest: (last index, whether sealed) of the newest segment; None: there is no segment.
        snapshot_index: 0: there is no snapshot.
    """
    # inv: NoSilentLoss
    if newest is None:
        if not snapshot_index:
            return []
        text = f"every segment is gone; what came after the snapshot at {snapshot_index}, if anything, is lost"
        return [Finding(Verdict.MISSING, "wal", text)]
    last_index, sealed = newest
    if not sealed:
        return []
    if last_index < snapshot_index:
        text = (
            f"the newest segment is gone: what is left ends at {last_index}, before the snapshot at"
            f" {snapshot_index}; what came after the snapshot, if anything, is lost"
        )
        return [Finding(Verdict.MISSING, "wal", text)]
    text = (
        f"no segment follows the sealed end at {last_index}: the stop fell between two segments, or the newest"
        f" segment is gone and everything from {last_index + 1} on is lost"
    )
    return [Finding(Verdict.SUSPECT, "wal", text)]


def judge_slots(name: str, header: Header, scanned: Scan) -> list[Finding]:
    """What it means after an unclean stop that one of the newest segment's slots cannot be read.

    Either it was being written, and nobody was told of the records that go with it, or it rotted, and then they may be
    gone as well: what lies behind the end is not called torn.
    """
    # inv: NoSilentLoss
    promise = header.promise
    if promise.whole or not promise.readable or promise.sealed:
        return []
    index = scanned.last_index + 1
    text = "a durable-end slot is not readable: if more than this was written, it may have been acknowledged"
    return [Finding(Verdict.SUSPECT, name, text, first_index=index, last_index=index)]


def follow(window: Window, seed: int, chain: Chain) -> Found | None:
    """The record at the chain's end if it is intact, chained, and the one expected (or a fence)."""
    found = verify(window, chain.end, seed)
    if found is None or found.prev != chain.tail_crc:
        return None
    if found.is_fence:
        return found if found.index == chain.last_index else None
    if found.index != chain.last_index + 1 and (chain.indexes is None or found.index <= chain.last_index):
        return None
    return found


def scan(
    read: Callable[[int, int], bytes],
    name: str,
    header: Header,
    *,
    visit: Callable[[Found], None] | None = None,
) -> Scan:
    """Read a segment through and apply the rule.

    Args:
        read: (size, offset) -> bytes of the file.
        name: file name for the findings.
        visit: called with every intact record, in order.
    """
    identity, promise = header.identity, header.promise
    seed = seed_of(identity.incarnation)
    window = Window(read, identity.file_bytes)
    chain = Chain(
        end=RECORDS_START,
        tail_crc=seed,
        last_index=identity.first_index - 1,
        offsets=array.array("I"),
        terms=[],
        indexes=array.array("Q") if identity.sparse else None,
    )
    result = Scan(identity.first_index, chain, _header_findings(name, header))
    while True:
        if visit is None:
            follow_entries(window, seed, chain)
        found = follow(window, seed, chain)
        if found is None:
            found = _behind_damage(window, name, promise, seed, result)
            if found is None:
                if identity.sparse and promise.readable:
                    # It covers the gap behind its last record too.
                    chain.last_index = max(chain.last_index, promise.newer_last)
                return result
        _accept(result, found)
        if visit is not None:
            visit(found)


def _accept(result: Scan, found: Found) -> None:
    chain = result.chain
    chain.end = found.end
    chain.tail_crc = found.crc
    result.broken_end = False
    if found.is_fence:
        return
    chain.offsets.append(found.offset)
    if chain.indexes is not None:
        chain.indexes.append(found.index)
    if not chain.terms or chain.terms[-1][1] != found.term:
        chain.terms.append((found.index, found.term))
    chain.last_index = found.index


def _behind_damage(window: Window, name: str, promise: Promise, seed: int, result: Scan) -> Found | None:
    """Handle the end of the chain: None when the scan is over, else the next intact record."""
    offset, expected = result.chain.end, result.last_index + 1
    if not promise.readable:
        return _search_blind(window, name, seed, result)
    verdict = judge(offset, promise)
    if verdict is Verdict.TORN:
        return None
    if verdict is Verdict.SUSPECT:
        result.findings.append(
            Finding(
                verdict=verdict,
                file=name,
                start=offset,
                end=promise.newer_end,
                first_index=expected,
                last_index=promise.newer_last,
                text="the last write before the stop is not readable and was cut",
            )
        )
        return None
    found = search(window, offset + ALIGNMENT, promise.newer_end, seed, range(expected, promise.newer_last + 1))
    if found is None:
        _lose(result, name, promise.older_end, promise.older_last)
        result.broken_end = True
        if promise.newer_end > promise.older_end:
            result.findings.append(
                Finding(
                    verdict=Verdict.SUSPECT,
                    file=name,
                    start=promise.older_end,
                    end=promise.newer_end,
                    first_index=promise.older_last + 1,
                    last_index=promise.newer_last,
                    text="the last write before the stop is not readable and was cut",
                )
            )
        return None
    _lose(result, name, found.offset, found.index - (0 if found.is_fence else 1))
    return found


def _search_blind(window: Window, name: str, seed: int, result: Scan) -> Found | None:
    """Neither slot is readable: anything intact further on proves damage before it."""
    expected = result.last_index + 1
    indexes = range(expected, expected + INDEXES_AHEAD_MAX)
    found = search(window, result.chain.end + ALIGNMENT, window.file_bytes, seed, indexes)
    if found is None:
        result.broken_end = True
        return None
    _lose(result, name, found.offset, found.index - (0 if found.is_fence else 1))
    return found


def _lose(result: Scan, name: str, end: int, last_index: int) -> None:
    """Note a damaged span from where the scan stands to `end`, and step over it."""
    chain = result.chain
    result.findings.append(
        Finding(
            verdict=Verdict.DAMAGED,
            file=name,
            start=chain.end,
            end=end,
            first_index=chain.last_index + 1,
            last_index=last_index,
            text="durable bytes are not readable any more",
        )
    )
    if chain.indexes is None:
        chain.offsets.extend([0] * (last_index - chain.last_index))
    elif last_index > chain.last_index:
        chain.lost.append((chain.last_index + 1, last_index))
    chain.last_index = max(chain.last_index, last_index)
    chain.end = end


def _header_findings(name: str, header: Header) -> list[Finding]:
    findings = []
    if not header.identity_readable:
        findings.append(Finding(Verdict.METADATA, name, "the identity page is damaged; a slot replaced it"))
    if not header.promise.readable:
        text = "both durable-end slots are damaged: whether records followed the last intact one is not known"
        findings.append(Finding(Verdict.METADATA, name, text))
    return findings


def scan_file(
    disk: Disk, path: str, name: str, header: Header, *, visit: Callable[[Found], None] | None = None
) -> Scan:
    """`scan` over a file of the disk. OSError as the disk says."""
    handle = disk.open(path, read_only=True)
    try:
        return scan(lambda size, offset: disk.pread(handle, size, offset), name, header, visit=visit)
    finally:
        disk.close(handle)


def segment_from(path: str, header: Header, scanned: Scan | None) -> Segment:
    """The in-memory segment; without a scan its end is what the (sealed) slots say."""
    identity, promise = header.identity, header.promise
    segment = Segment(
        path=path,
        incarnation=identity.incarnation,
        first_index=identity.first_index,
        file_bytes=identity.file_bytes,
        end=promise.newer_end,
        last_index=promise.newer_last,
        slot_sequence=promise.sequence,
        newer_end=promise.newer_end,
        older_end=promise.older_end,
        sealed=promise.sealed,
        sparse=identity.sparse,
    )
    if scanned is not None:
        adopt(segment, scanned)
    return segment


def put_in_place(
    disk: Disk, directory: str, handles: ReadHandles, segments: Sequence[Segment], gaps: Sequence[Gap]
) -> list[Segment]:
    """Give staged segments their names, and return the log's segments as they are then. OSError."""
    for gap in gaps:
        for first_index, _ in gap.made:
            disk.rename(f"{directory}/{staged_name(first_index)}", f"{directory}/{segment_name(first_index)}")
    disk.fsync_directory(directory)
    kept = list(segments)
    for gap in gaps:
        if gap.segment is not None:
            gap.segment.retired = True
            kept = [segment for segment in kept if segment is not gap.segment]
        for first_index, _ in gap.made:
            path = f"{directory}/{segment_name(first_index)}"
            handles.forget(path)
            header = read_header(disk, path)
            if header is None:
                raise OSError(errno.EIO, "a segment that was just written cannot be read", path)
            kept.append(segment_from(path, header, None))
    return sorted(kept, key=lambda segment: segment.first_index)


def adopt(segment: Segment, scanned: Scan) -> None:
    """Put a scan's result into a segment."""
    chain = scanned.chain
    segment.end = chain.end
    segment.tail_crc = chain.tail_crc
    segment.terms = chain.terms
    segment.last_index = chain.last_index
    segment.lost = chain.lost
    if chain.indexes is not None:
        segment.indexes = chain.indexes
    # Last: a reader that sees the offsets sees the rest.
    segment.offsets = chain.offsets


def end_behind(read: Callable[[int, int], bytes], segment: Segment, last_index: int) -> tuple[int, int, int]:
    """(end, crc, index) of the last intact record at or below `last_index`; without one, what the first one follows.

    Args:
        read: (size, offset) -> bytes of the segment's file.
        segment: already scanned.
    """
    assert segment.offsets is not None
    window = Window(read, segment.file_bytes)
    for position in range(segment.position_from(last_index + 1) - 1, -1, -1):
        found = verify(window, segment.offsets[position], segment.seed) if segment.offsets[position] else None
        if found is not None and found.index == segment.index_at(position):
            return found.end, found.crc, found.index
    return RECORDS_START, segment.seed, segment.first_index - 1


def keep_aside(disk: Disk, data_dir: str, finding: Finding) -> Finding:
    """Copy a finding's bytes into the quarantine directory, once; returns the finding that says where.

    Nothing is ever deleted there: whoever knows more than this program can still look at the bytes.
    """
    base = finding.file.rpartition("/")[2]
    name = f"{base}.{finding.start}-{finding.end}"
    directory = f"{data_dir}/quarantine"
    kept = attrs.evolve(finding, kept_as=f"quarantine/{name}")
    if disk.exists(f"{directory}/{name}"):
        return kept
    source = disk.open(f"{data_dir}/{finding.file}", read_only=True)
    try:
        data = disk.pread(source, finding.end - finding.start, finding.start)
    finally:
        disk.close(source)
    write_file_atomically(disk, directory, name, data)
    return kept


def keep_aside_if_room(disk: Disk, data_dir: str, finding: Finding) -> Finding:
    """`keep_aside`; a full disk does not keep a node from starting: serving what is intact comes before the copy."""
    try:
        return keep_aside(disk, data_dir, finding)
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
        return attrs.evolve(finding, text=f"{finding.text}; there was no room to keep a copy")
