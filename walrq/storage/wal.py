"""The log: append, rotate, cut, give back; `reading.py` has the half that only reads.

One thread appends at a time (`append_batch` holds the lock over its sync); any thread may read meanwhile. The
list of segments is a tuple that is replaced, never changed, so readers need no lock.

    append_batch   records and the newer slot, one fdatasync; then published to readers
    rotate         seal the old segment; header of the new one durable, then its name, then the first record
    cut            both slots to the cut, then a fence behind it, so that no leftover ever chains again
    reclaim        a dead segment is renamed into the pool; its bytes stay until the file gets a new
    incarnation

A failed write or sync is final: what the disk holds is unknown from then on, so every later call raises. Only
records and segments refused for want of room are not, if the refusal can be undone: then the log is as before.
"""

from __future__ import annotations

import array
import errno
import threading
from collections.abc import Callable, Sequence
from typing import Final

from walrq.errors import CorruptRecord, DiskFull, Reclaimed, StorageError
from walrq.storage.config import StorageConfig
from walrq.storage.disk import BUFFERS_PER_WRITE_MAX, FULL_ERRNOS, Disk
from walrq.storage.manifest import Install
from walrq.storage.pool import SegmentPool
from walrq.storage.reading import LogReader
from walrq.storage.record import (
    FENCE,
    HEADER_BYTES,
    Record,
    encode,
    stored_bytes,
)
from walrq.storage.recovery import end_behind, put_in_place, segment_from
from walrq.storage.segment import (
    PAGE_BYTES,
    RECORDS_START,
    SLOT_OFFSETS,
    Extent,
    Gap,
    Hold,
    Identity,
    Log,
    Segment,
    Slot,
    WalCounters,
    fresh_segment,
    header_bytes,
    read_header,
    seal,
    segment_name,
    staged_name,
)

# A fence's body: a number unlike that of any earlier fence in this segment.
_FENCE_BODY_BYTES: Final = 8
_FENCE_BYTES: Final = stored_bytes(_FENCE_BODY_BYTES)


class Wal(LogReader):
    """The log of one node. Built by `opening.open_wal`; see the module for who may call what."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StorageConfig,
        *,
        disk_uuid: bytes,
        segments: Sequence[Segment],
        pool: SegmentPool,
        incarnation: int,
    ) -> None:
        super().__init__(disk, segments, handles_max=config.handles_max)
        self._directory = directory
        self._config = config
        self._always = config.fsync == "always"
        self._never = config.fsync == "never"
        self._disk_uuid = disk_uuid
        self._pool = pool
        # Invariant: above the incarnation of every segment and pool file.
        self._incarnation = incarnation
        self._active: Segment | None = None
        self._handle = -1
        self._failed: OSError | None = None
        self._refused = False
        self._dirty = False
        self.counters = WalCounters()
        # Replaced under `holding`, never changed: set by those who pin, read by the one that reclaims.
        self.holds: tuple[Hold, ...] = ()
        self.holding = threading.Lock()
        # Told of segments that were given back or written anew: what, first and last index. See `Storage.watchers`.
        self.watchers: list[Callable[[str, int, int], None]] = []
        # How often the log was replaced: what was read of files named before may be of others.
        self.installs = 0
        # Invariant: durable_index <= last_index
        self.durable_index = 0

    # --- opening --------------------------------------------------------------------------------------------

    def resume(self, *, next_index: int, broken_end: bool, intact_and_settled: bool) -> None:
        """Make the recovered log writable and durable. Called once, by recovery.

        Args:
            next_index: index of the next record.
            broken_end: nothing can be chained to the last segment's end.
            intact_and_settled: the log was closed cleanly; the last segment needs no fence.
        """
        with self._lock:
            self._seal_predecessors()
            last = self._log.segments[-1] if self._log.segments else None
            fits = last is not None and not broken_end and not last.sealed
            if last is None or not fits or last.last_index + 1 != next_index:
                self.last_index = next_index - 1
                self._open_segment(0, may_use_reserve=True)
            else:
                self._use(last, self._disk.open(last.path))
                if not intact_and_settled:
                    self._cut(last, last.end, last.tail_crc)
            self.durable_index = self.last_index

    def _seal_predecessors(self) -> None:
        """A weak policy may have left segments unsynced; from here on their records count as durable."""
        for segment in self._log.segments[:-1]:
            if segment.sealed:
                continue
            handle = self._disk.open(segment.path)
            try:
                for _ in SLOT_OFFSETS:
                    self._write_slot(handle, segment, segment.end, sealed=True)
                    self._sync(handle)
            finally:
                self._disk.close(handle)
            segment.sealed = True

    def _use(self, segment: Segment, handle: int) -> None:
        if self._handle >= 0 and self._handle != handle:
            self._disk.close(self._handle)
        self._active, self._handle = segment, handle

    # --- appending ------------------------------------------------------------------------------------------

    def append_batch(self, records: Sequence[Record], *, may_use_reserve: bool = False) -> None:
        """Write records as one unit; durable per policy when this returns.

        Args:
            records: continuing at `last_index + 1` without gaps.
            may_use_reserve: also use the segments kept for a full disk.

        Raises:
            DiskFull: nothing was written; try again when there is room.
            StorageError: a write or sync failed, now or before; what is on disk is unknown, the process must
                end.
        """
        with self._lock:
            self._check_alive()
            if not records:
                return
            assert records[0].index == self.last_index + 1, (records[0].index, self.last_index)
            size = 0
            for record in records:
                size += stored_bytes(len(record.body))
            active = self._writable()
            if active.end + size > active.file_bytes:
                active = self._open_segment(size, may_use_reserve=may_use_reserve)
            self._append(active, records, size)

    def _append(self, active: Segment, records: Sequence[Record], size: int) -> None:
        seed, crc, start = active.seed, active.tail_crc, active.end
        buffers: list[bytes] = []
        offsets: list[int] = []
        offset = start
        for record in records:
            body = record.body
            crc, header, padding = encode(seed, crc, record.kind, 0, record.term, record.index, body)
            buffers += (header, body, padding) if padding else (header, body)
            offsets.append(offset)
            offset += HEADER_BYTES + len(body) + len(padding)
        assert offset == start + size, (offset, start, size)
        self._write_records(active, buffers, start)
        if self._always:
            self._write_slot_or_latch(active, offset, records[-1].index)
            self._sync(self._handle)
        self._publish(active, records, offsets, offset, crc)

    def _write_records(self, active: Segment, buffers: list[bytes], start: int) -> None:
        if len(buffers) > BUFFERS_PER_WRITE_MAX:
            buffers = [b"".join(buffers)]
        try:
            self._disk.pwritev(self._handle, buffers, start)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise self._latch(error) from error
            self._erase(active, start)
            raise self._refuse() from error

    def _erase(self, active: Segment, start: int) -> None:
        """After a write cut short: its first record may be whole. Make sure that it is never found."""
        room = min(HEADER_BYTES, active.file_bytes - start)
        try:
            self._disk.pwrite(self._handle, bytes(room), start)
        except OSError as error:
            raise self._latch(error) from error
        self._sync(self._handle)

    def _publish(self, active: Segment, records: Sequence[Record], offsets: list[int], end: int, crc: int) -> None:
        """Let readers see the records. Order matters: offsets and end before the indexes."""
        assert active.offsets is not None
        term = active.terms[-1][1] if active.terms else -1
        for record in records:
            if record.term != term:
                term = record.term
                active.terms.append((record.index, term))
        active.offsets.extend(offsets)
        self.counters.bytes_written += end - active.end
        active.end = end
        active.tail_crc = crc
        last = records[-1].index
        active.last_index = last
        self.last_index = last
        if self._always or self._never:
            self.durable_index = last
        self._dirty = not self._always

    def _write_slot_or_latch(self, segment: Segment, end: int, last_index: int) -> None:
        try:
            self._write_slot(self._handle, segment, end, last_index=last_index)
        except OSError as error:
            raise self._latch(error) from error

    def _write_slot(
        self, handle: int, segment: Segment, end: int, *, last_index: int | None = None, sealed: bool = False
    ) -> None:
        """Write the slot whose turn it is."""
        slot = Slot(
            incarnation=segment.incarnation,
            first_index=segment.first_index,
            sequence=segment.slot_sequence + 1,
            end=end,
            last_index=segment.last_index if last_index is None else last_index,
            sealed=sealed,
        )
        self._disk.pwrite(handle, slot.pair(), SLOT_OFFSETS[slot.sequence % len(SLOT_OFFSETS)])
        segment.slot_sequence = slot.sequence
        segment.older_end, segment.newer_end = segment.newer_end, end

    def _sync(self, handle: int) -> None:
        """The only way this module syncs a file. An error is final."""
        try:
            self._disk.fdatasync(handle)
        except OSError as error:
            raise self._latch(error) from error
        self.counters.syncs += 1

    def sync(self) -> None:
        """Make everything appended so far durable (under `interval` the driver calls this)."""
        with self._lock:
            self._check_alive()
            if self._dirty:
                active = self._writable()
                self._write_slot_or_latch(active, active.end, active.last_index)
                self._sync(self._handle)
                self._dirty = False
            self.durable_index = self.last_index

    def settle(self) -> bool:
        """Let both slots name the current end, so that a later stop leaves nothing suspect.

        For an idle log, within SLOT_SETTLE_MS of the last append. Returns whether anything was written; under
        `never` nothing is.
        """
        with self._lock:
            self._check_alive()
            active = self._writable()
            if self._never or self._dirty or active.is_settled:
                return False
            self._write_slot_or_latch(active, active.end, active.last_index)
            self._sync(self._handle)
            return True

    # --- rotation and cutting -------------------------------------------------------------------------------

    def _open_segment(self, size: int, *, may_use_reserve: bool) -> Segment:
        """Seal the active segment and go on in a new one with room for `size` bytes of records.

        It starts at `last_index + 1`. Raises DiskFull before anything was changed.
        """
        file_bytes = max(self._config.segment_bytes, RECORDS_START + size + (-size % PAGE_BYTES))
        try:
            free = self._pool.take(file_bytes, may_use_reserve=may_use_reserve)
        except DiskFull:
            raise self._refuse() from None
        except OSError as error:
            raise self._latch(error) from error
        try:
            handle = self._disk.open(free)
            try:
                self._seal_active()
                segment = self._name_segment(free, handle, file_bytes)
            except BaseException:
                self._disk.close(handle)
                raise
        except OSError as error:
            raise self._latch(error) from error
        self._enter(segment, handle)
        return segment

    def _seal_active(self) -> None:
        """Sync the active segment's last word: nothing in it can be torn any more."""
        active = self._active
        if active is None or active.is_empty or self._never:
            return
        if self._dirty:
            self._write_slot(self._handle, active, active.end)
            self._sync(self._handle)
            self._dirty = False
        self._write_slot(self._handle, active, active.end, sealed=True)
        self._sync(self._handle)
        active.sealed = True
        self.durable_index = self.last_index

    def _name_segment(self, free: str, handle: int, file_bytes: int) -> Segment:
        """Header durable first, then the name, then the directory: a named segment always has its header."""
        self._incarnation += 1
        identity = Identity(self._disk_uuid, self._incarnation, self.last_index + 1, file_bytes)
        path = f"{self._directory}/{segment_name(identity.first_index)}"
        self._disk.pwrite(handle, header_bytes(identity), 0)
        self._sync(handle)
        self._handles.forget(path)
        self._disk.rename(free, path)
        self._disk.fsync_directory(self._directory)
        return fresh_segment(path, identity)

    def _enter(self, segment: Segment, handle: int) -> None:
        """Publish the new segment; an empty one of the same first index was replaced by the rename."""
        kept = [old for old in self._log.segments if old.first_index != segment.first_index]
        for old in self._log.segments:
            if old.first_index == segment.first_index:
                old.retired = True
        self._use(segment, handle)
        self._log = Log.of([*kept, segment])
        self.counters.rotations += 1
        self.counters.recycled = self._pool.recycled

    def truncate_suffix(self, from_index: int) -> None:
        """Forget `from_index` and everything behind it (a conflict with the leader's log, or a tail not to be trusted).

        Never at or below the snapshot: the caller knows that such entries are committed. Two syncs and one of the
        directory for each segment that goes.
        """
        with self._lock:
            self._check_alive()
            if from_index > self.last_index:
                return
            try:
                # From the end backwards, each name durable before the next: a crash leaves no hole.
                while self._log.segments and self._is_behind(self._log.segments[-1], from_index):
                    self._retire(self._log.segments[-1])
                    self._disk.fsync_directory(self._directory)
                self._pool.settle_returns()
                self._end_before(from_index)
            except OSError as error:
                raise self._latch(error) from error
            except DiskFull as error:
                # Half of it is done: what is on the disk is one history, but there is nowhere to go on.
                raise self._latch(OSError(errno.ENOSPC, error.text)) from error
            self.durable_index = min(self.durable_index, self.last_index)

    @staticmethod
    def _is_behind(segment: Segment, from_index: int) -> bool:
        """A segment that begins at the cut is emptied, not given back, unless nothing may be appended to it."""
        return segment.first_index > from_index or (segment.sparse and segment.first_index == from_index)

    def _end_before(self, from_index: int) -> None:
        """Let the last segment end before `from_index`, or what is left of the log go on in a new one there."""
        keep = self._log.segments[-1] if self._log.segments else None
        if keep is not None and keep.last_index >= from_index:
            self._offsets(keep)
            end, crc, last = end_behind(self._reader(keep), keep, from_index - 1)
            if not keep.sparse and last == from_index - 1:
                self._use(keep, self._handle if keep is self._active else self._disk.open(keep.path))
                self._shorten(keep, from_index)
                keep.sealed = False
                keep.last_index = self.last_index = last
                self._cut(keep, end, crc)
                return
            # Nothing is chained to a record that is lost, nor appended to a sparse segment.
            self._leave()
            self._shorten(keep, from_index)
            seal(self._disk, keep.path, keep, end, from_index - 1)
        elif keep is not None and keep is not self._active and not keep.sealed:
            self._use(keep, self._disk.open(keep.path))
        self.last_index = from_index - 1
        self._open_segment(0, may_use_reserve=True)

    def _shorten(self, segment: Segment, from_index: int) -> None:
        assert segment.offsets is not None
        position = segment.position_from(from_index)
        del segment.offsets[position:]
        del segment.indexes[position:]
        segment.terms = [stretch for stretch in segment.terms if stretch[0] < from_index]

    def _leave(self) -> None:
        """Nothing is appended to the active segment any more."""
        if self._handle >= 0:
            self._disk.close(self._handle)
        self._active, self._handle = None, -1

    def _cut(self, segment: Segment, offset: int, tail_crc: int) -> None:
        """End the log at `offset`, for good.

        First the newer slot stops promising what is behind it (of two ends the smaller is the older, whatever the
        other slot says); only then is it overwritten, by a fence, while the next slot replaces that other one: what is
        left behind the fence chains to something else. Raises OSError (through the latch) only.
        """
        segment.end, segment.tail_crc = offset, tail_crc
        self._write_slot_or_latch(segment, offset, segment.last_index)
        self._sync(self._handle)
        self._dirty = False
        if offset + _FENCE_BYTES > segment.file_bytes:
            # Too little room for a fence may be enough for a record without a body.
            self._erase(segment, offset)
            self._open_segment(0, may_use_reserve=True)
            return
        # The slot just written made the sequence unlike that at any earlier fence of this segment.
        body = segment.slot_sequence.to_bytes(_FENCE_BODY_BYTES, "little")
        term = segment.term_of(segment.last_index) if not segment.is_empty else 0
        crc, header, padding = encode(segment.seed, tail_crc, 0, FENCE, term, segment.last_index, body)
        try:
            self._disk.pwrite(self._handle, header + body + padding, offset)
        except OSError as error:
            raise self._latch(error) from error
        self._write_slot_or_latch(segment, offset + _FENCE_BYTES, segment.last_index)
        self._sync(self._handle)
        segment.end, segment.tail_crc = offset + _FENCE_BYTES, crc

    # --- giving back ----------------------------------------------------------------------------------------

    def reclaim(self, through_index: int, is_live: Callable[[int, int], bool]) -> int:
        """Recycle segments wholly at or below `through_index` in which nothing is live; returns how many.

        `is_live(first, last)` is asked without the lock. The active segment always stays, and so does what is held.
        """
        # inv: EveryLiveReadable
        through = min(through_index, self.durable_index)
        dead = [
            segment
            for segment in self._log.segments[:-1]
            if segment.last_index <= through and not is_live(segment.first_index, segment.last_index)
        ]
        return len(self._give_back(dead))

    def _give_back(self, dead: Sequence[Segment]) -> list[Segment]:
        with self._lock:
            self._check_alive()
            try:
                holds = self.holds
                given = [
                    segment
                    for segment in dead
                    if segment is not self._active and not any(hold.covers(segment) for hold in holds)
                    if self._retire(segment)
                ]
                if given:
                    # One sync for all: any subset of dead segments may come back at a crash, they stay dead.
                    self._disk.fsync_directory(self._directory)
                    self._pool.settle_returns()
            except OSError as error:
                raise self._latch(error) from error
            self.counters.reclaimed += len(given)
            self.counters.bytes_freed += sum(segment.file_bytes for segment in given)
        for segment in given:
            self.tell("reclaimed", segment.first_index, segment.last_index)
        return given

    def give_back(self, dead: Sequence[Segment], installs: int) -> int:
        """Recycle segments in which nothing is alive, as a look at each record has shown; bytes of their files.

        Those that are held stay. Args as for `swap`. Raises: Reclaimed: the log was replaced; StorageError: final.
        """
        # inv: EveryLiveReadable
        if self.installs != installs:
            raise Reclaimed("the log was replaced by a snapshot of another node")
        return sum(segment.file_bytes for segment in self._give_back(dead))

    def tell(self, what: str, first_index: int, last_index: int) -> None:
        """Tell those who keep something about segments."""
        for watcher in self.watchers:
            watcher(what, first_index, last_index)

    def _retire(self, segment: Segment) -> int:
        """Take a segment out of the log and give its file to the pool (of use after the directory sync)."""
        if segment.retired:
            return 0
        segment.retired = True
        self._log = Log.of([other for other in self._log.segments if other is not segment])
        if segment is self._active:
            self._leave()
        self._handles.forget(segment.path)
        self._pool.give_back(segment.path, segment.file_bytes)
        return 1

    def swap(self, old: Sequence[Segment], staged: str, installs: int) -> int:
        """Let a segment that was written anew take the places of neighbouring ones; durable when this returns.

        It covers all indexes from the first one's first to the last one's last, is whole and synced, and has a later
        incarnation than theirs. Its name is the moment: before it a crash leaves the old ones, from it on they mean
        nothing, and the next start removes what is left of them (`segment.superseded`).

        Args:
            old: ascending; none of them is being written.
            staged: the new one's path.
            installs: `installs` when `old` was looked up.

        Returns: bytes of files that are free now, those of the new one deducted.

        Raises:
            Reclaimed: one of them was given back, replaced, or is held by now; nothing was changed.
            StorageError: final.
        """
        # inv: EveryLiveReadable
        with self._lock:
            self._check_alive()
            holds = self.holds
            gone = self.installs != installs or any(segment.retired for segment in old)
            if gone or any(hold.covers(segment) for hold in holds for segment in old):
                raise Reclaimed("a segment that was written anew was given back, or is held")
            assert self._active not in old
            target = old[0].path
            try:
                # Before the name is another file's: a reader that finds nonsense under it looks again.
                for segment in old:
                    segment.retired = True
                self._disk.rename(staged, target)
                self._disk.fsync_directory(self._directory)
                self._handles.forget(target)
                header = read_header(self._disk, target)
                if header is None:
                    raise OSError(errno.EIO, "a segment that was just written cannot be read", target)
                fresh = segment_from(target, header, None)
                kept = [segment for segment in self._log.segments if segment not in old]
                self._log = Log.of(sorted([*kept, fresh], key=lambda segment: segment.first_index))
                for segment in old[1:]:
                    self._handles.forget(segment.path)
                    self._pool.give_back(segment.path, segment.file_bytes)
                if len(old) > 1:
                    self._disk.fsync_directory(self._directory)
                    self._pool.settle_returns()
            except OSError as error:
                raise self._latch(error) from error
            freed = sum(segment.file_bytes for segment in old) - fresh.file_bytes
            self.counters.rewritten += len(old)
            self.counters.bytes_freed += freed
        self.tell("rewritten", fresh.first_index, fresh.last_index)
        return freed

    def trim_pool(self) -> None:
        """Let go of free files beyond the reserve: their room is needed for a segment that is written anew."""
        with self._lock:
            self._check_alive()
            try:
                if self._pool.trim():
                    self._disk.fsync_directory(self._directory)
            except OSError as error:
                raise self._latch(error) from error

    def replenish(self) -> bool:
        """Try to fill the reserve again; returns whether it is whole. Blocking; for an idle moment."""
        with self._lock:
            self._check_alive()
            try:
                # After a refusal the next segment must be there too, or the next push is refused again.
                whole = self._pool.replenish(spare=1 if self._refused else 0)
            except OSError as error:
                raise self._latch(error) from error
            if whole:
                self._refused = False
            return whole

    @property
    def reserve_is_whole(self) -> bool:
        """All reserved segments are there and no append was refused since they were filled."""
        return not self._refused and self._pool.reserve_is_whole

    def extents(self, through_index: int) -> tuple[Extent, ...]:
        """Where the records up to `through_index` lie, segment by segment. Blocking: waits for an append.

        Raises:
            CorruptRecord: the record behind `through_index` is damaged, so it cannot be told where that one ends.
        """
        with self._lock:
            return tuple(
                self._extent(segment, min(through_index, segment.last_index))
                for segment in self._log.segments
                if segment.first_index <= through_index and not segment.is_empty
            )

    def _extent(self, segment: Segment, last_index: int) -> Extent:
        end = segment.end
        if last_index < segment.last_index:
            offsets = self._offsets(segment)
            position = segment.position_from(last_index + 1)
            end = offsets[position] if position < len(offsets) else end
            if not end:
                raise CorruptRecord(f"record {last_index + 1} is damaged", index=last_index + 1)
        return Extent(segment.path, segment.incarnation, segment.first_index, last_index, end, segment.sparse)

    # --- snapshots of other nodes -----------------------------------------------------------------------------

    def put_back(self, gaps: Sequence[Gap]) -> None:
        """Let staged segments take the places of damaged and lost ones; durable when this returns.

        Each is complete by itself: a crash in between leaves some places as they were.

        Raises:
            Reclaimed: a segment was given back meanwhile; nothing was changed. StorageError: final.
        """
        # inv: EveryLiveReadable
        with self._lock:
            self._check_alive()
            if any(gap.segment is not None and gap.segment.retired for gap in gaps):
                raise Reclaimed("a segment that was to be mended was given back")
            try:
                self._log = Log.of(put_in_place(self._disk, self._directory, self._handles, self._log.segments, gaps))
            except OSError as error:
                raise self._latch(error) from error
            # Whoever reads the files that were there reads others now.
            self.installs += 1
            self._damaged = {index for index in self._damaged if not any(gap.covers(index) for gap in gaps)}

    def bytes_behind(self, index: int) -> int:
        """Bytes of the log behind an index: of segments that are full their files, else up to the last record.

        Of a segment that was not read, all. Any thread.
        """
        total = 0
        for segment in self._log.segments:
            if segment.last_index <= index:
                continue
            end = segment.end if segment is self._active else segment.file_bytes
            start = 0
            if segment.first_index <= index and segment.offsets is not None:
                position = segment.position_from(index + 1)
                start = segment.offsets[position] if position < len(segment.offsets) else segment.end
            total += max(0, end - start)
        return total

    @property
    def changes(self) -> tuple[int, int, int]:
        """Differs as soon as a record that was readable may be gone."""
        return self.installs, self.counters.reclaimed, self.counters.rewritten

    @property
    def active(self) -> Segment | None:
        """The one that is being written."""
        return self._active

    def next_incarnation(self) -> int:
        """A number for a segment that is being received."""
        with self._lock:
            self._incarnation += 1
            return self._incarnation

    def stage_next(self, first_index: int) -> Identity:
        """Make the empty segment in which the log will go on behind a received snapshot. DiskFull; StorageError."""
        with self._lock:
            self._check_alive()
            file_bytes = self._config.segment_bytes
            identity = Identity(self._disk_uuid, self.next_incarnation(), first_index, file_bytes)
            try:
                free = self._pool.take(file_bytes, may_use_reserve=True)
                handle = self._disk.open(free)
                try:
                    self._disk.pwrite(handle, header_bytes(identity), 0)
                    self._sync(handle)
                finally:
                    self._disk.close(handle)
                self._disk.rename(free, f"{self._directory}/{staged_name(first_index)}")
            except OSError as error:
                raise self._latch(error) from error
            return identity

    def make_durable(self) -> None:
        """Sync all that was appended, under any policy: what stays of it must be there after an install."""
        with self._lock:
            self.sync()
            try:
                self._seal_predecessors()
            except OSError as error:
                raise self._latch(error) from error

    def enter(self, install: Install, last_index: int, complete: Callable[[], None]) -> None:
        """Become the log that an installed snapshot asks for, which is already durable.

        Args:
            last_index: the snapshot's.
            complete: makes the directory so (`opening.complete_install`).

        Raises: StorageError: final.
        """
        with self._lock:
            self._check_alive()
            old = self._log.segments
            self._leave()
            try:
                complete()
                self.installs += 1
                kept = [segment for segment in old if segment.last_index < install.base and segment.sealed]
                fresh = [segment for segment in old if segment not in kept]
                for segment in fresh:
                    segment.retired = True
                    self._handles.forget(segment.path)
                paths = [segment.path for segment in fresh if segment.first_index <= install.base]
                paths += [f"{self._directory}/{segment_name(first)}" for first, _ in install.segments]
                for path in paths:
                    self._handles.forget(path)
                    header = read_header(self._disk, path)
                    if header is not None:
                        kept.append(segment_from(path, header, None))
                active = kept[-1]
                if not active.is_empty or active.first_index != last_index + 1:
                    raise OSError(errno.EIO, "a segment that was just written cannot be read")
                active.offsets, active.tail_crc = array.array("I"), active.seed
                self._log = Log.of(kept)
                self._use(active, self._disk.open(active.path))
            except OSError as error:
                raise self._latch(error) from error
            self._dirty = False
            self.last_index = self.durable_index = last_index

    def fail(self, error: OSError) -> None:
        """What is on the disk is unknown since a write elsewhere failed: refuse every later call."""
        self._latch(error)

    # --- the end --------------------------------------------------------------------------------------------

    def close(self, *, sync: bool) -> None:
        """Close the files; with `sync` everything appended is durable and settled first, under any policy."""
        with self._lock:
            if sync:
                self._check_alive()
                active = self._writable()
                if self._dirty or not active.is_settled:
                    for _ in SLOT_OFFSETS:
                        self._write_slot_or_latch(active, active.end, active.last_index)
                        self._sync(self._handle)
                    self._dirty = False
                self._seal_predecessors()
                self.durable_index = self.last_index
            if self._handle >= 0:
                self._disk.close(self._handle)
                self._active, self._handle = None, -1
            self._handles.close()

    def _writable(self) -> Segment:
        if self._active is None:
            raise StorageError("the log is closed")
        return self._active

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise StorageError(f"storage failed earlier: {self._failed}") from self._failed

    def _latch(self, error: OSError) -> StorageError:
        """Remember the failure for good; what is on disk is unknown from here on."""
        if self._failed is None:
            self._failed = error
        return StorageError(f"the log could not be written: {error.strerror or error}", errno=error.errno)

    def _refuse(self) -> DiskFull:
        self._refused = True
        return DiskFull("the disk is full: nothing was written")
