"""From a `wal` directory to a writable log: read the headers, scan what the snapshot does not cover, say what
is lost.

Segments that the snapshot covers are not read here: a restart reads the tail of the log, not the backlog.
Their records are verified when they are read.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from walrq.errors import DiskFull
from walrq.storage.config import StorageConfig
from walrq.storage.disk import Disk
from walrq.storage.findings import Finding, Verdict
from walrq.storage.manifest import Install
from walrq.storage.pool import SegmentPool
from walrq.storage.record import ALIGNMENT, HEADER, HEADER_BYTES, Window, search, seed_of
from walrq.storage.recovery import (
    INDEXES_AHEAD_MAX,
    Scan,
    end_behind,
    judge_end,
    judge_slots,
    keep_aside_if_room,
    scan_file,
    segment_from,
)
from walrq.storage.segment import (
    PAGE_BYTES,
    RECORDS_START,
    Header,
    Identity,
    Segment,
    is_rewritten,
    number_in,
    read_header,
    seal,
    segment_name,
    staged_number_in,
    superseded,
)
from walrq.storage.wal import Wal

# Takes the index that the log reached at most before the loss, None if that is not known.
BeforeChange = Callable[[int | None], None]


def _nothing(_through: int | None) -> None:
    pass


@attrs.define
class _Opening:
    """What has been learnt so far."""

    disk: Disk
    data_dir: str
    disk_uuid: bytes
    findings: list[Finding] = attrs.field(factory=list)
    incarnation: int = 0
    set_aside: bool = False
    # Records behind the last intact one were begun, and are cut.
    cut: bool = False
    # What a slot does not speak of may have been acknowledged all the same.
    weak: bool = False
    before_change: BeforeChange = _nothing

    @property
    def directory(self) -> str:
        """The log's directory."""
        return f"{self.data_dir}/wal"


def open_wal(
    disk: Disk,
    config: StorageConfig,
    *,
    disk_uuid: bytes,
    snapshot_index: int,
    clean: bool,
    incarnation: int = 0,
    before_change: BeforeChange = _nothing,
) -> tuple[Wal, list[Finding], int | None]:
    """Recover the log and make it writable.

    Args:
        snapshot_index: everything at or below it is in the snapshot (0: none).
        clean: the clean-stop mark was there.
        incarnation: new ones are higher than this.
        before_change: called before the first trace of lost entries is removed.

    Returns: the log; what was found; the first index behind the snapshot from which on the log may not be what was
        acknowledged (the one behind its end: what there is, is sound, but more may have been), None: it is.

    Raises: DiskFull if there is not even room for the first segments; StorageError; OSError.
    """
    weak = config.fsync != "always" and not clean
    opening = _Opening(
        disk, config.data_dir, disk_uuid, incarnation=incarnation, weak=weak, before_change=before_change
    )
    names = disk.list_directory(opening.directory)
    free, next_number = _free_files(opening, names, config.segment_bytes)
    headers = _without_superseded(opening, _headers(opening, names), names)
    segments, last_scan, last_header = _segments(opening, headers, snapshot_index, clean=clean)
    _find_gaps(opening, segments, snapshot_index)
    ends: list[Finding] = []
    if not opening.set_aside:
        newest = (segments[-1].last_index, segments[-1].sealed) if segments else None
        ends = judge_end(newest, snapshot_index)
        opening.findings += ends
    promise = last_header.promise if last_header is not None else None
    # After an orderly stop both slots say the same.
    end_is_known = promise is None or promise.whole or (clean and promise.readable)
    end_is_known = end_is_known and not ends and not opening.set_aside and not (weak and opening.cut)
    untrusted = _first_untrusted(opening, segments, snapshot_index, end_is_known=end_is_known)
    if untrusted is not None:
        before_change(_reached(opening, segments, untrusted) if end_is_known else None)
    pool = SegmentPool(
        disk,
        opening.directory,
        segment_bytes=config.segment_bytes,
        reserve=config.reserve_segments,
        segments_max=config.pool_segments_max,
        free=free,
        next_number=next_number,
    )
    wal = Wal(
        disk,
        opening.directory,
        config,
        disk_uuid=disk_uuid,
        segments=segments,
        pool=pool,
        incarnation=opening.incarnation,
    )
    last_index = segments[-1].last_index if segments else 0
    wal.resume(
        next_index=max(last_index, snapshot_index) + 1,
        broken_end=last_scan is not None and last_scan.broken_end,
        intact_and_settled=clean and last_header is not None and segments[-1].is_settled,
    )
    if not wal.replenish() and not segments:
        raise DiskFull("no room for the log's first segments and their reserve")
    return wal, opening.findings, untrusted


def _first_untrusted(
    opening: _Opening, segments: list[Segment], snapshot_index: int, *, end_is_known: bool
) -> int | None:
    """See `open_wal`."""
    # inv: NoSilentLoss
    last_index = max(segments[-1].last_index if segments else 0, snapshot_index)
    found = [max(finding.first_index, snapshot_index + 1) for finding in opening.findings if finding.lost]
    lost = [finding.last_index for finding in opening.findings if finding.lost]
    suspected = [first for first, last in zip(found, lost, strict=True) if last > snapshot_index]
    if not end_is_known:
        suspected.append(last_index + 1)
    return min(suspected) if suspected else None


def _reached(opening: _Opening, segments: list[Segment], untrusted: int) -> int | None:
    """How far the log went at most before the loss; None: what is missing has no slot that would tell."""
    lost = [finding for finding in opening.findings if finding.last_index >= untrusted]
    if not segments or any(finding.verdict not in (Verdict.SUSPECT, Verdict.DAMAGED) for finding in lost):
        return None
    return max(segments[-1].last_index, *(finding.last_index for finding in lost))


def complete_install(disk: Disk, data_dir: str, install: Install | None, *, keep_unknown: bool = False) -> None:
    """Bring the log's directory into the state that the newest snapshot asks for.

    Any number of times: what a crash interrupts is finished at the next start, and what is finished stays as it is.
    Without an install only what was being received is cleared away.

    Args:
        keep_unknown: a snapshot cannot be read, so nobody knows whether what was being received belongs to it.

    Raises: OSError.
    """
    # inv: NoMixedRead
    directory = f"{data_dir}/wal"
    names = disk.list_directory(directory)
    void = [] if install is None else [name for name in names if _leaves(disk, directory, name, install)]
    for name in void:
        disk.unlink(f"{directory}/{name}")
    staged = [name for name in names if staged_number_in(name) is not None]
    for name in staged:
        first_index = staged_number_in(name) or 0
        path, target = f"{directory}/{name}", f"{directory}/{segment_name(first_index)}"
        header = read_header(disk, path)
        key = (first_index, header.identity.incarnation) if header is not None else None
        if install is not None and key in install.segments:
            disk.rename(path, target)
        elif keep_unknown or (install is not None and key is None and first_index in dict(install.segments)):
            _move_aside(disk, data_dir, name)
        else:
            disk.unlink(path)
    if void or staged:
        # One for all: whichever of these a crash undoes is done again at the next start.
        disk.fsync_directory(directory)


def is_void(identity: Identity, install: Install) -> bool:
    """Whether a segment is none of the log's any more since that install."""
    if identity.incarnation > install.incarnation:
        return False
    return identity.first_index > install.base and (identity.first_index, identity.incarnation) not in install.segments


def _leaves(disk: Disk, directory: str, name: str, install: Install) -> bool:
    """Whether a segment goes, because it was there before the install and begins behind what is kept of the log.

    What is kept is made to end, sealed, where the received part begins.
    """
    first_index = number_in(name, free=False)
    path = f"{directory}/{name}"
    header = read_header(disk, path) if first_index is not None else None
    if header is None or header.identity.first_index != first_index:
        return False
    identity, promise = header.identity, header.promise
    if is_void(identity, install):
        return True
    is_older = identity.incarnation <= install.incarnation and first_index <= install.base
    if is_older and not (promise.sealed and promise.settled and promise.newer_last <= install.base):
        segment = segment_from(path, header, scan_file(disk, path, f"wal/{name}", header))
        handle = disk.open(path, read_only=True)
        try:
            end, _, _ = end_behind(lambda size, offset: disk.pread(handle, size, offset), segment, install.base)
        finally:
            disk.close(handle)
        seal(disk, path, segment, end, min(segment.last_index, install.base))
    return False


def _move_aside(disk: Disk, data_dir: str, name: str) -> str:
    """Move a file of the log into quarantine, under a name of its own; returns it, relative to the data directory."""
    target = f"quarantine/{name}"
    attempt = 0
    while disk.exists(f"{data_dir}/{target}"):
        attempt += 1
        target = f"quarantine/{name}.{attempt}"
    disk.rename(f"{data_dir}/wal/{name}", f"{data_dir}/{target}")
    disk.fsync_directory(f"{data_dir}/quarantine")
    disk.fsync_directory(f"{data_dir}/wal")
    return target


@attrs.frozen
class Survey:
    """What is there before anything is changed.

    `segments`: at least one can be read. `records`: something was written into one, or there is a file that cannot
    be read, which nobody can rule it out of.
    """

    segments: bool
    records: bool


def survey(disk: Disk, data_dir: str) -> Survey:
    """Look at the segments without changing anything. OSError."""
    directory = f"{data_dir}/wal"
    segments = records = False
    for name in disk.list_directory(directory):
        first_index = number_in(name, free=False)
        if first_index is None:
            continue
        header = read_header(disk, f"{directory}/{name}")
        if header is None:
            records = True
            continue
        segments = True
        # Under a weak policy the slots may not speak of the records yet.
        begun = first_index > 1 or header.promise.newer_last >= first_index
        records = records or begun or _has_first_record(disk, f"{directory}/{name}", header)
    return Survey(segments, records)


def _has_first_record(disk: Disk, path: str, header: Header) -> bool:
    handle = disk.open(path, read_only=True)
    try:
        data = disk.pread(handle, HEADER_BYTES, RECORDS_START)
    finally:
        disk.close(handle)
    if len(data) < HEADER_BYTES:
        return False
    _, _, prev, _, _, _, _, index = HEADER.unpack(data)
    return bool(prev == seed_of(header.identity.incarnation) and index == header.identity.first_index)


def _free_files(opening: _Opening, names: list[str], segment_bytes: int) -> tuple[list[str], int]:
    """Pool files that can be used; others are removed (a pool file holds nothing)."""
    free, highest = [], 0
    for name in names:
        number = number_in(name, free=True)
        if number is None:
            continue
        highest = max(highest, number)
        path = f"{opening.directory}/{name}"
        header = read_header(opening.disk, path)
        # Without its header it is not known which incarnations its old records belong to, unless it never had
        # any.
        known = header is not None or _is_blank(opening.disk, path)
        if known and opening.disk.size(path) == segment_bytes:
            free.append(path)
            if header is not None:
                opening.incarnation = max(opening.incarnation, header.identity.incarnation)
        else:
            opening.disk.unlink(path)
    return free, highest


def _is_blank(disk: Disk, path: str) -> bool:
    handle = disk.open(path, read_only=True)
    try:
        return not any(disk.pread(handle, RECORDS_START, 0))
    finally:
        disk.close(handle)


def _headers(opening: _Opening, names: list[str]) -> list[tuple[str, Header]]:
    """The segments that can be used, by first index; the others are put into quarantine as they are."""
    found = []
    for name in names:
        first_index = number_in(name, free=False)
        if first_index is None:
            continue
        header = read_header(opening.disk, f"{opening.directory}/{name}")
        if header is None or header.identity.first_index != first_index:
            opening.before_change(None)
            opening.set_aside = True
            text = f"the segment's header and slots are damaged; its entries, from {first_index} on, are lost"
            _quarantine(opening, name, text)
        elif header.identity_readable and header.identity.disk_uuid != opening.disk_uuid:
            _quarantine(opening, name, "the segment belongs to another disk")
        else:
            opening.incarnation = max(opening.incarnation, header.identity.incarnation)
            found.append((name, header))
    return found


def _without_superseded(
    opening: _Opening, headers: list[tuple[str, Header]], names: list[str]
) -> list[tuple[str, Header]]:
    """Clear away what a rewrite left at a crash: what it had not finished, or what it had taken in."""
    void = superseded(headers)
    for name in [*void, *filter(is_rewritten, names)]:
        opening.disk.unlink(f"{opening.directory}/{name}")
    if void:
        # The names first: an old segment must not come back once the one that took it in is given back.
        opening.disk.fsync_directory(opening.directory)
    return [(name, header) for name, header in headers if name not in void]


def _quarantine(
    opening: _Opening,
    name: str,
    text: str,
    *,
    verdict: Verdict = Verdict.METADATA,
    first_index: int = 1,
    last_index: int = 0,
) -> None:
    target = _move_aside(opening.disk, opening.data_dir, name)
    opening.findings.append(
        Finding(
            verdict,
            f"wal/{name}",
            text,
            first_index=first_index,
            last_index=last_index,
            kept_as=target,
        )
    )


def _segments(
    opening: _Opening, headers: list[tuple[str, Header]], snapshot_index: int, *, clean: bool
) -> tuple[list[Segment], Scan | None, Header | None]:
    """The segments, and the scan and header of the last one."""
    segments: list[Segment] = []
    scanned: Scan | None = None
    header: Header | None = None
    for position, (name, header) in enumerate(headers):
        _repair_header(opening, f"{opening.directory}/{name}", header)
        following = headers[position + 1 :]
        scanned = None
        if not following or not header.promise.sealed or header.promise.newer_last > snapshot_index:
            scanned = _scan(opening, name, header)
        segments.append(segment_from(f"{opening.directory}/{name}", header, scanned))
        if scanned is not None and _ends_unsynced(header, scanned, following, snapshot_index):
            _cut_unsynced(opening, scanned.last_index, following)
            break
    if scanned is not None and header is not None and not scanned.broken_end:
        name = f"wal/{headers[len(segments) - 1][0]}"
        unknown = [] if clean else judge_slots(name, header, scanned)
        opening.findings += unknown
        if not unknown:
            _note_torn_tail(opening, name, segments[-1])
    return segments, scanned, header


def _scan(opening: _Opening, name: str, header: Header) -> Scan:
    scanned = scan_file(opening.disk, f"{opening.directory}/{name}", f"wal/{name}", header)
    opening.findings += [_kept(opening, finding) for finding in scanned.findings]
    return scanned


def _ends_unsynced(header: Header, scanned: Scan, following: list[tuple[str, Header]], snapshot_index: int) -> bool:
    """Records between this segment's end and the next segment were never synced, and are gone.

    Only under the policy `never` does a segment get a successor without being sealed first.
    """
    if not following or header.promise.sealed or scanned.broken_end:
        return False
    first_behind = following[0][1].identity.first_index
    return scanned.last_index + 1 < first_behind and first_behind - 1 > snapshot_index


def _cut_unsynced(opening: _Opening, last_index: int, following: list[tuple[str, Header]]) -> None:
    """Nobody was promised what is behind the hole; to apply it without the hole would be another history."""
    first = last_index + 1
    opening.before_change(None)
    for name, header in following:
        last = max(header.promise.newer_last, header.identity.first_index)
        text = "records before this segment were never synced and are lost; the log ends before them"
        _quarantine(opening, name, text, verdict=Verdict.SUSPECT, first_index=first, last_index=last)
        first = last + 1


def _kept(opening: _Opening, finding: Finding) -> Finding:
    if finding.verdict in (Verdict.DAMAGED, Verdict.SUSPECT) and finding.end > finding.start:
        return keep_aside_if_room(opening.disk, opening.data_dir, finding)
    return finding


def _repair_header(opening: _Opening, path: str, header: Header) -> None:
    """Give back what a slot or the directory still knows: the identity page, and the file's size."""
    short = opening.disk.size(path) < header.identity.file_bytes
    if header.identity_readable and not short:
        return
    handle = opening.disk.open(path)
    try:
        if short:
            opening.disk.preallocate(handle, header.identity.file_bytes)
            opening.cut = True
        if not header.identity_readable:
            identity = attrs.evolve(header.identity, disk_uuid=opening.disk_uuid)
            page: bytes = Identity.encode(identity)
            assert len(page) == PAGE_BYTES, len(page)
            opening.disk.pwrite(handle, page, 0)
        opening.disk.fdatasync(handle)
    finally:
        opening.disk.close(handle)


def _note_torn_tail(opening: _Opening, name: str, segment: Segment) -> None:
    """Say so when a record was begun behind the end.

    Nothing acknowledged is in it, unless the policy acknowledges before it syncs.
    """
    handle = opening.disk.open(segment.path, read_only=True)
    try:
        data = opening.disk.pread(handle, HEADER_BYTES, segment.end)
        begun = _is_begun(data, segment)
        if not begun and opening.weak:
            # Whole records of this incarnation behind something that is not one.
            window = Window(lambda size, offset: opening.disk.pread(handle, size, offset), segment.file_bytes)
            indexes = range(segment.last_index + 1, segment.last_index + 1 + INDEXES_AHEAD_MAX)
            begun = search(window, segment.end + ALIGNMENT, segment.file_bytes, segment.seed, indexes) is not None
    finally:
        opening.disk.close(handle)
    if begun:
        # inv: NoSilentLoss
        opening.cut = True
        text = "the write in progress at the stop was cut; nobody was told of it"
        if opening.weak:
            text = "what was written after the last sync is not whole and was cut; it may have been acknowledged"
        opening.findings.append(Finding(Verdict.TORN, name, text, start=segment.end, end=segment.end))


def _is_begun(data: bytes, segment: Segment) -> bool:
    """Whether these bytes, at the segment's end, are the header of the next record, whatever else is wrong with it.

    What is left of an earlier life of the file chains to something else, and has lower indexes.
    """
    if len(data) < HEADER_BYTES:
        return False
    _, _, prev, _, _, _, _, index = HEADER.unpack(data)
    return bool(prev == segment.tail_crc or index == segment.last_index + 1)


def _find_gaps(opening: _Opening, segments: list[Segment], snapshot_index: int) -> None:
    """Indexes above the snapshot that no segment holds.

    Below it a gap is a reclaimed segment, unless something in it is alive: that the caller knows.
    """
    expected = snapshot_index + 1
    for segment in segments:
        if segment.first_index > expected:
            opening.findings.append(
                Finding(
                    verdict=Verdict.MISSING,
                    file="wal",
                    first_index=expected,
                    last_index=segment.first_index - 1,
                    text="no segment holds these records",
                )
            )
        expected = max(expected, segment.last_index + 1)
