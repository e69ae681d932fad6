"""One node's storage as the rest of walrq calls it: the log, the hard state, the snapshots, one directory.

Plain blocking calls. It knows no roles and no verbs, and decides nothing about the entries it keeps.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import attrs

from walrq.errors import CorruptRecord, DataDirInvalid, DataDirLocked, Reclaimed, StorageError, WalrqError
from walrq.sparse.installing import Installer
from walrq.sparse.outgoing import Outgoing
from walrq.sparse.restoring import Restorer
from walrq.sparse.rewriting import Rewriter
from walrq.storage import identity
from walrq.storage.config import StorageConfig
from walrq.storage.disk import Disk
from walrq.storage.findings import Finding, Verdict
from walrq.storage.hard_state import HardState, HardStateFile, Marks
from walrq.storage.manifest import Manifest, PageAt
from walrq.storage.opening import complete_install, open_wal, survey
from walrq.storage.record import Record
from walrq.storage.recovery import keep_aside_if_room
from walrq.storage.segment import Extent, Hold, Segment, WalCounters
from walrq.storage.snapshot import HeldPages, SnapshotReader, SnapshotStore, SnapshotWriter, manifest_number, pages_name
from walrq.storage.wal import Wal


@attrs.frozen
class Space:
    """Whether there is room.

    `pushes_allowed` is False while the reserve is broken into or an append was refused: then only what frees
    space or settles work may be proposed, with `may_use_reserve`.
    """

    pushes_allowed: bool
    log_reserve: bool
    snapshot_reserve: bool


@attrs.frozen
class SegmentStats:
    """One segment of the log. Its live share is the caller's knowledge, asked for by index range."""

    first_index: int
    last_index: int
    used_bytes: int
    file_bytes: int


@attrs.frozen
class StorageStats:
    """A snapshot of the counters and sizes, for metrics and for the disk bound."""

    segments: tuple[SegmentStats, ...]
    log_bytes: int
    snapshot_bytes: int
    snapshot_page_bytes: int
    first_index: int
    last_index: int
    durable_index: int
    snapshot_index: int
    syncs: int
    bytes_written: int
    rotations: int
    recycled: int
    reclaimed: int


@attrs.frozen
class Recovered:
    """What was found at the start.

    Attributes:
        hard_state: None at the first start.
        snapshot: the newest intact one; None: there is none, the log starts at 1.
        report: everything that was not as it should be.
        unclean_boot: the kernel booted anew without a clean stop before: under a weak fsync policy
            acknowledged records may be gone.
        untrusted_from: the first index behind the snapshot from which on the log may not be what was acknowledged;
            `last_index + 1`: more may have been. None: nothing is known to be lost.
    """

    hard_state: HardState | None
    snapshot: SnapshotReader | None
    report: tuple[Finding, ...]
    unclean_boot: bool
    untrusted_from: int | None
    _wal: Wal

    def entries(self, from_index: int) -> Iterator[Record]:
        """The readable records from `from_index` on, ascending; lost ones are stepped over."""
        return self._wal.entries(from_index)


class Pin:
    """A snapshot and the records it needs, kept as they are for a reader until `release`. Made by `Storage.pin`.

    `leave_out_dead`, then a snapshot, then `fix`; from then on `manifest` and `extents` say what is there. Reading
    opens and closes a file each time: an abandoned pin leaks no descriptor.
    """

    def __init__(self, disk: Disk, data_dir: str, wal: Wal, snapshots: SnapshotStore) -> None:
        self._disk = disk
        self._snapshots = snapshots
        self._snapshot_dir = f"{data_dir}/snapshots"
        self._wal = wal
        self._hold = Hold()
        self._dead: frozenset[int] = frozenset()
        self._manifest: Manifest | None = None
        self._installs = wal.installs
        self.extents: tuple[Extent, ...] = ()
        with wal.holding:
            wal.holds = (*wal.holds, self._hold)

    @property
    def manifest(self) -> Manifest:
        """The snapshot. Only after `fix`."""
        assert self._manifest is not None, "the pin is not fixed yet"
        return self._manifest

    def leave_out_dead(self, is_live: Callable[[int, int], bool]) -> None:
        """Hold no segment in which nothing is live by now: nothing in it comes alive again."""
        self._dead = frozenset(
            segment.first_index
            for segment in self._wal.segments[:-1]
            if not is_live(segment.first_index, segment.last_index)
        )

    def fix(self) -> None:
        """Take the newest snapshot, and the records it needs. No snapshot may be on its way. Blocking.

        Raises:
            StorageError: there is no snapshot; CorruptRecord: see `Wal.extents`.
        """
        pages = self._snapshots.hold()
        if pages is None:
            raise StorageError("there is no snapshot yet")
        self._manifest = newest = pages.manifest
        self.extents = tuple(
            extent for extent in self._wal.extents(newest.index) if extent.first_index not in self._dead
        )
        self._hold.segments = frozenset(extent.first_index for extent in self.extents)

    def let_records_go(self) -> None:
        """Hold the snapshot only: who reads the records does not need all of them."""
        self._hold.segments = frozenset()

    def read_records(self, extent: Extent, size: int, offset: int) -> bytes:
        """`size` bytes at `offset` of a segment's file. OSError. Blocking; any thread."""
        return self._read(extent.path, size, offset)

    def read_page(self, place: PageAt, size: int, offset: int) -> bytes:
        """`size` bytes at `offset` of a page. OSError. Blocking; any thread."""
        return self._read(f"{self._snapshot_dir}/{pages_name(place.file)}", size, place.offset + offset)

    def _read(self, path: str, size: int, offset: int) -> bytes:
        handle = self._disk.open(path, read_only=True)
        try:
            data = self._disk.pread(handle, size, offset)
        finally:
            self._disk.close(handle)
        if self._wal.installs != self._installs:
            # A file of the same name may be another one now.
            raise OSError(errno.ESTALE, "the log was replaced by a snapshot of another node")
        return data

    def release(self) -> None:
        """Let go of everything; the next snapshot and the next reclaim clear it away. Fine to call again."""
        with self._wal.holding:
            self._wal.holds = tuple(hold for hold in self._wal.holds if hold is not self._hold)
        manifest, self._manifest = self._manifest, None
        if manifest is not None:
            self._snapshots.let_go(manifest)


class Storage:
    """See the package's docstring for who may call what from which thread."""

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        *,
        lock: int,
        disk_uuid: bytes,
        hard_state: HardStateFile,
        snapshots: SnapshotStore,
        wal: Wal,
        recovered: Recovered,
    ) -> None:
        self._disk = disk
        self._config = config
        self._lock = lock
        self._hard_state = hard_state
        self._snapshots = snapshots
        self._wal = wal
        self.disk_uuid = disk_uuid
        self.recovered = recovered
        self._noted: list[Finding] = []
        self._installer: Installer | Restorer | None = None
        self._rewriter: Rewriter | None = None

    @classmethod
    def open(cls, disk: Disk, config: StorageConfig) -> Self:
        """Lock the directory, recover what is in it, make the log writable.

        Raises:
            DataDirLocked: another process has it.
            DataDirInvalid: not a directory, not ours, unwritable, another format version.
            CorruptRecord: what is left cannot be made into one history; nothing was deleted.
            DiskFull: a new directory does not fit.
            StorageError: the disk failed.
        """
        data_dir = config.data_dir
        lock = _enter_directory(disk, data_dir)
        try:
            return cls._recover(disk, config, lock)
        except OSError as error:
            disk.close(lock)
            raise StorageError(f"{error.filename or data_dir}: {error.strerror or error}") from error
        except WalrqError:
            disk.close(lock)
            raise

    @classmethod
    def _recover(cls, disk: Disk, config: StorageConfig, lock: int) -> Self:
        data_dir = config.data_dir
        disk_uuid = identity.load_or_create(disk, data_dir)
        hard_state = HardStateFile(disk, data_dir)
        found_before = survey(disk, data_dir)
        names = disk.list_directory(f"{data_dir}/snapshots")
        has_manifest = any(manifest_number(name) is not None for name in names)
        hard_state.load(lived=found_before.records or has_manifest)
        if hard_state.state is not None and hard_state.state.group and not config.member:
            # It was a member when it wrote that down, so others have what it may have lost.
            config = attrs.evolve(config, member=True)
        is_gone = hard_state.state is not None and not found_before.segments and not has_manifest
        if hard_state.state is not None and is_gone and not config.member:
            # inv: NoSilentLoss  (the first segment is named before the first term is written)
            raise CorruptRecord(
                f"{data_dir} has been used before (term {hard_state.state.term}), but its log and its snapshots are"
                " gone: nothing that was acknowledged is left in it; put wal/ and snapshots/ back from a copy, or"
                " begin anew with an empty directory"
            )
        marks = hard_state.marks
        boot_id = disk.boot_id()
        unclean_boot = marks is not None and not marks.clean and marks.boot_id != boot_id
        snapshots = SnapshotStore(disk, data_dir, reserve_bytes=config.reserve_snapshot_bytes)
        snapshots.load(() if config.member else config.spared_pages)
        snapshot = snapshots.reader
        index = snapshot.index if snapshot is not None else 0
        clean = marks is not None and marks.clean
        newest = snapshots.newest
        install = newest.install if newest is not None else None
        complete_install(disk, data_dir, install, keep_unknown=snapshots.is_damaged)

        def note_loss(through: int | None) -> None:
            """Before anything is changed: once the traces are gone nobody would know that a repair is due."""
            last = hard_state.marks or Marks(clean=False, boot_id=boot_id)
            # No entry is of a higher term than the one that was stored as the latest.
            claim = (hard_state.state.term, through) if hard_state.state is not None and through is not None else None
            if last.repair and last.claim is not None and claim is not None:
                claim = max(last.claim[0], claim[0]), max(last.claim[1], claim[1])
            elif last.repair:
                claim = None
            if not last.repair or claim != last.claim:
                hard_state.write(hard_state.state, attrs.evolve(last, repair=True, claim=claim))

        wal, found, untrusted = open_wal(
            disk,
            config,
            disk_uuid=disk_uuid,
            snapshot_index=index,
            clean=clean,
            incarnation=install.incarnation if install is not None else 0,
            before_change=note_loss,
        )
        if is_gone:
            text = "the directory has been used before, but its log and its snapshots are gone"
            found.append(Finding(Verdict.MISSING, "wal", text))
            untrusted = 1
            note_loss(None)
        if snapshots.is_damaged:
            unreached = _first_unreached(wal, index, snapshots.damaged_index, refuse=not config.member)
            if unreached is not None:
                untrusted = min(filter(None, (untrusted, unreached)))
                note_loss(None)
        lost = [_lost_page(disk, data_dir, key, place) for key, place in snapshots.lost_pages.items()]
        report = (*snapshots.put_damaged_aside(), *lost, *found)
        recovered = Recovered(
            hard_state=hard_state.state,
            snapshot=snapshot,
            report=report,
            unclean_boot=unclean_boot,
            untrusted_from=untrusted,
            wal=wal,
        )
        # From now on a stop without `close(clean=True)` is an unclean one. Both pages are made equal by this.
        if unclean_boot and config.fsync != "always":
            note_loss(None)
        last = hard_state.marks or Marks(clean=False, boot_id=boot_id)
        hard_state.write(hard_state.state, attrs.evolve(last, clean=False, boot_id=boot_id))
        snapshots.replenish()
        return cls(
            disk,
            config,
            lock=lock,
            disk_uuid=disk_uuid,
            hard_state=hard_state,
            snapshots=snapshots,
            wal=wal,
            recovered=recovered,
        )

    # --- the log --------------------------------------------------------------------------------------------

    def append_batch(self, records: Sequence[Record], *, may_use_reserve: bool = False) -> None:
        """Write records as one unit, continuing at `last_index + 1`; durable per policy when this returns.

        Raises:
            DiskFull: nothing was written.
            StorageError: a write or sync failed, now or earlier: the process must end.
        """
        self._wal.append_batch(records, may_use_reserve=may_use_reserve)

    def sync(self) -> None:
        """Make all that was appended durable; the driver calls it each interval under `interval:MS`."""
        self._wal.sync()

    def settle(self) -> bool:
        """Call once the log was idle for SLOT_SETTLE_MS; True if there was something to write."""
        return self._wal.settle()

    def truncate_suffix(self, from_index: int) -> None:
        """Forget `from_index` and all behind it; never at or below the snapshot."""
        newest = self._snapshots.newest
        assert newest is None or from_index > newest.index, (from_index, newest.index)
        self._wal.truncate_suffix(from_index)

    @property
    def is_member(self) -> bool:
        """Whether other nodes are said to have what this one may lose (`StorageConfig.member`)."""
        return self._config.member

    @property
    def needs_repair(self) -> bool:
        """Entries that were acknowledged may be lost, since this start or an earlier one, until `repaired`.

        A member of a cluster calls `drop_untrusted`, then neither votes nor counts until it holds again what was
        committed. A node that is alone says `repaired` at once: what it has is all there is.
        """
        marks = self._hard_state.marks
        return marks is not None and marks.repair

    @property
    def repair_claim(self) -> tuple[int, int] | None:
        """(term, index) that the log reached at most before the losses `needs_repair` tells of; None: not known.

        Of the same durability as the need: it outlives restarts, until `repaired`.
        """
        marks = self._hard_state.marks
        return marks.claim if marks is not None else None

    def drop_untrusted(self) -> None:
        """Let the log end before `recovered.untrusted_from`; what is dropped is copied to quarantine if there is room.

        Before the first append; the snapshot and what is before it stay. Raises: StorageError.
        """
        first = self.recovered.untrusted_from
        if first is None or first > self._wal.last_index:
            return
        text = "dropped behind a loss; the other nodes have what was acknowledged of it"
        try:
            for finding in self._wal.suffix(first, text):
                self.note(keep_aside_if_room(self._disk, self._config.data_dir, finding))
        except OSError as error:
            raise StorageError(f"the end of the log could not be kept aside: {error.strerror or error}") from error
        self.truncate_suffix(first)

    def hurt(self) -> None:
        """Something that was acknowledged is not here, as others know: `needs_repair` until `repaired`. Durable;
        StorageError is final.
        """
        marks = self._hard_state.marks
        assert marks is not None, "marks are written at open"
        self._hard_state.write(self._hard_state.state, attrs.evolve(marks, repair=True, claim=None))

    def repaired(self) -> None:
        """What was lost is here again, or nobody else has it: forget that it was. Durable; StorageError is final."""
        marks = self._hard_state.marks
        if marks is not None and marks.repair:
            self._hard_state.write(self._hard_state.state, attrs.evolve(marks, repair=False, claim=None))

    def read(self, index: int) -> Record:
        """One record, verified. Reclaimed, CorruptRecord, StorageError. Any thread."""
        return self._wal.read(index)

    def entries(self, from_index: int) -> Iterator[Record]:
        """The readable records from `from_index` on, ascending. One thread; not beside `reclaim`."""
        return self._wal.entries(from_index)

    def term_at(self, index: int) -> int:
        """Term of a record in the log, or of the snapshot's index; 0 for index 0. Reclaimed."""
        newest = self._snapshots.newest
        if newest is not None and index == newest.index:
            return newest.term
        return self._wal.term_at(index) if index else 0

    def runs(self, from_index: int) -> tuple[tuple[int, int], ...]:
        """(first index, term) of each stretch of one term, of the readable records from `from_index` to the end.

        They begin behind the last gap or damaged record, where `term_at` knows the entry before them, so that they fit
        the Raft core's `Tail`. Empty: nothing is readable without a gap up to the end.
        """
        runs = self._wal.runs(from_index)
        if not runs or self._knows(runs[0][0] - 1):
            return runs
        first, term = runs[0][0] + 1, runs[0][1]
        if first > self.last_index:
            return ()
        return runs[1:] if len(runs) > 1 and runs[1][0] == first else ((first, term), *runs[1:])

    def _knows(self, index: int) -> bool:
        try:
            return self.term_at(index) >= 0
        except Reclaimed:
            return False

    @property
    def losses(self) -> int:
        """How often something was found damaged while it was read; grows. Cheap."""
        return len(self._wal.late_findings)

    def lost_spans(self) -> tuple[tuple[int, int], ...]:
        """(first, last) of entries of the log whose bytes are damaged, as far as it is known; holes not counted.

        A hole (`index_ranges`) is a segment given back or lost; only what is alive tells which.
        """
        return self._wal.lost

    @property
    def first_index(self) -> int:
        """The lowest index in the log; `last_index + 1` if it is empty."""
        return self._wal.first_index

    @property
    def last_index(self) -> int:
        """The highest index in the log or the snapshot; 0: neither has any."""
        return self._wal.last_index

    @property
    def last_term(self) -> int:
        """Term of `last_index`."""
        return self.term_at(self.last_index)

    @property
    def durable_index(self) -> int:
        """The highest index that the fsync policy calls durable."""
        return self._wal.durable_index

    def index_ranges(self) -> tuple[tuple[int, int], ...]:
        """(first, last) of every segment with records: a live index outside was lost."""
        return tuple((s.first_index, s.last_index) for s in self._wal.segments if not s.is_empty)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The report of the start, what the caller noted, and what was found since when old segments were read."""
        return (*self.recovered.report, *self._noted, *self._wal.late_findings)

    def note(self, finding: Finding) -> None:
        """Add what only the caller can know, such as live messages without a record."""
        self._noted.append(finding)

    @property
    def highest_term(self) -> int:
        """The highest term of the snapshot and of every record that was looked at; 0: none."""
        newest = self._snapshots.newest
        terms = [segment.terms[-1][1] for segment in self._wal.segments if segment.terms]
        return max([newest.term if newest is not None else 0, *terms])

    # --- hard state -----------------------------------------------------------------------------------------

    @property
    def hard_state(self) -> HardState | None:
        """The last one written."""
        return self._hard_state.state

    def set_hard_state(self, state: HardState) -> None:
        """Replace it; durable when this returns, under every policy. StorageError is final."""
        marks = self._hard_state.marks
        assert marks is not None, "marks are written at open"
        self._hard_state.write(state, marks)

    # --- snapshots and space --------------------------------------------------------------------------------

    def begin_snapshot(
        self, index: int, term: int, meta: bytes, *, afresh: bool = False, keep: bytes | tuple[bytes, ...] = ()
    ) -> SnapshotWriter:
        """Start a snapshot of the state after `index`, durable before it is finished. Any thread.

        `afresh`: with every page put, and none kept but those whose keys begin with `keep`.
        """
        return self._snapshots.begin(index, term, meta, lambda: self.durable_index, afresh=afresh, keep=keep)

    def read_page(self, key: bytes) -> bytes | None:
        """A page of the newest snapshot, verified; None: it has none of that key. Blocking; any thread.

        Raises:
            CorruptRecord: it is damaged. StorageError: the disk failed.
        """
        try:
            return self._snapshots.read_page(key)
        except OSError as error:
            raise StorageError(f"page {key.hex()} cannot be read: {error.strerror or error}") from error

    @property
    def snapshot(self) -> SnapshotReader | None:
        """The newest complete snapshot."""
        return self._snapshots.reader

    @property
    def snapshot_index(self) -> int:
        """The entry that the newest complete snapshot stands at; 0: there is none. Cheap."""
        newest = self._snapshots.newest
        return newest.index if newest is not None else 0

    def reclaim(self, snapshot_index: int, is_live: Callable[[int, int], bool]) -> int:
        """Recycle the segments at or below `snapshot_index` in which nothing is live; returns how many.

        Clamped to the newest durable snapshot: nothing above it is ever given back.
        """
        newest = self._snapshots.newest
        return self._wal.reclaim(min(snapshot_index, newest.index if newest is not None else 0), is_live)

    def begin_install(self, base: int, index: int, term: int, meta: bytes) -> Installer:
        """Start to receive another node's snapshot of the state after `index`, with the live records it needs.

        Args:
            base: own entries up to here are kept; records behind it come from the sender.
            term: of the entry at `index`.
            meta: as for `begin_snapshot`.

        Raises: StorageError: another is being received, or `base` is not before `index`.
        """
        if self._installer is not None:
            raise StorageError("another snapshot is being received: finish or abort it first")
        if not 0 <= base < index:
            raise StorageError(f"a snapshot at {index} adds nothing to a log that is kept up to {base}")
        self._installer = Installer(
            self._disk,
            self._config.data_dir,
            self._wal,
            self._snapshots,
            self.disk_uuid,
            self._config.segment_bytes,
            base=base,
            index=index,
            term=term,
            meta=meta,
            ended=self._install_ended,
        )
        return self._installer

    def begin_restore(self, lost: Sequence[int]) -> Restorer:
        """Start to put records back that are damaged or gone, and that another node has.

        Only in segments that the newest snapshot covers wholly: behind it a loss is repaired by the log itself.

        Args:
            lost: their indexes, ascending.

        Raises: StorageError: another is being received.
        """
        if self._installer is not None:
            raise StorageError("a snapshot is being received: finish or abort it first")
        newest = self._snapshots.newest
        self._installer = restorer = Restorer(
            self._disk,
            self._config.data_dir,
            self._wal,
            self.disk_uuid,
            self._config.segment_bytes,
            lost,
            newest.index if newest is not None else 0,
            self._install_ended,
        )
        return restorer

    def _install_ended(self) -> None:
        self._installer = None

    def segments_through(self, index: int) -> tuple[Segment, ...]:
        """The segments that may be written anew or given back once the newest snapshot covers up to `index`, ascending.

        Wholly at or below it, not the one that is being written, and not held by anybody. Blocks nothing; a moment
        later it may be another list.
        """
        newest = self._snapshots.newest
        through = min(index, newest.index if newest is not None else 0, self.durable_index)
        active, holds = self._wal.active, self._wal.holds
        return tuple(
            segment
            for segment in self._wal.segments
            if segment.last_index <= through and segment is not active
            if not any(hold.covers(segment) for hold in holds)
        )

    def begin_rewrite(self, segments: Sequence[Segment], thin: Callable[[Record], bytes | None]) -> Rewriter:
        """Start to write neighbouring segments anew as one, without what is dead in them.

        Args:
            segments: of `segments_through`, ascending, with nothing alive in the holes between them.
            thin: the body that a record is to have from now on; None: it is dead. What is alive in the newest durable
                snapshot stays.

        Raises: StorageError: another run is being written.
        """
        if self._rewriter is not None:
            raise StorageError("other segments are being written anew: finish or abort that first")
        self._rewriter = Rewriter(
            self._disk, self._config.data_dir, self._wal, self.disk_uuid, segments, thin, self._rewrite_ended
        )
        return self._rewriter

    def _rewrite_ended(self) -> None:
        self._rewriter = None

    def hold_pages(self) -> HeldPages | None:
        """The pages of the newest snapshot, kept until they are released; None: there is no snapshot."""
        return self._snapshots.hold()

    def give_back(self, segments: Sequence[Segment]) -> int:
        """Recycle segments of `segments_through` in which nothing is alive; bytes of their files.

        Those that are held by now stay. Raises: Reclaimed: the log was replaced. StorageError: final.
        """
        return self._wal.give_back(segments, self._wal.installs)

    @property
    def wal_counters(self) -> WalCounters:
        """What the log has done since it was opened. Not a copy."""
        return self._wal.counters

    def tail_bytes(self, index: int) -> int:
        """Bytes of the records behind `index`. Any thread."""
        return self._wal.bytes_behind(index)

    def disk_bytes(self) -> int:
        """Bytes of all files of the data directory, quarantine and single small files not counted. Blocking."""
        total = 0
        for folder in ("wal", "snapshots"):
            directory = f"{self._config.data_dir}/{folder}"
            for name in self._disk.list_directory(directory):
                try:
                    total += self._disk.size(f"{directory}/{name}")
                except FileNotFoundError:
                    # Renamed or removed since the directory was listed.
                    continue
        return total

    @property
    def segment_bytes(self) -> int:
        """Size of a segment; the largest there is, if a record needed a larger one."""
        return max([self._config.segment_bytes, *(segment.file_bytes for segment in self._wal.segments)])

    @property
    def reserve_bytes(self) -> int:
        """What is held back for a full disk: segments, and room for snapshots."""
        return self._config.reserve_segments * self._config.segment_bytes + self._snapshots.reserve_bytes

    @property
    def snapshot_bytes(self) -> int:
        """What one snapshot takes at most, with the garbage in its page files; the largest of those that are kept."""
        return self._snapshots.snapshot_bytes

    @property
    def held_segments(self) -> tuple[Segment, ...]:
        """Segments that a backup keeps."""
        holds = self._wal.holds
        return tuple(segment for segment in self._wal.segments if any(hold.covers(segment) for hold in holds))

    @property
    def watchers(self) -> list[Callable[[str, int, int], None]]:
        """Told in the thread that did it, once it is durable: "reclaimed" or "rewritten", first and last index.

        Addresses stay what they were; the segments of a span that was written anew are one now.
        """
        return self._wal.watchers

    def stream(self, pin: Pin, after: int, is_live: Callable[[int, int], bool]) -> Outgoing:
        """What a fixed pin holds, as bytes for another node's `Installer.feed`. It ends with the pin.

        The pin lets its records go: what dies while they are sent is left out, and its room is given back.

        Args:
            after: the receiver has all entries up to here.
            is_live: asked about spans of indexes, here and now; what is dead by now is left out.
        """
        stream = Outgoing(self._wal, pin.manifest, pin.extents, pin.read_page, after, is_live)
        pin.let_records_go()
        return stream

    def pin(self) -> Pin:
        """Keep every segment from being given back until the pin is narrowed or released. Not beside `reclaim`."""
        return Pin(self._disk, self._config.data_dir, self._wal, self._snapshots)

    @property
    def space(self) -> Space:
        """Whether pushes may go on. Cheap: no system call."""
        log, snapshot = self._wal.reserve_is_whole, self._snapshots.reserve_is_whole
        return Space(pushes_allowed=log and snapshot, log_reserve=log, snapshot_reserve=snapshot)

    def replenish(self) -> bool:
        """Try to fill the reserves again; True when pushes may go on. Blocking; not in the hot path."""
        log = self._wal.replenish()
        try:
            return self._snapshots.replenish() and log
        except OSError as error:
            raise StorageError(f"the reserve could not be filled: {error.strerror or error}") from error

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the log's segments and the newest snapshot's pages, reserves not counted. No system call."""
        newest = self._snapshots.newest
        pages = newest.page_bytes if newest is not None else 0
        return sum(segment.file_bytes for segment in self._wal.segments) + pages

    def stats(self) -> StorageStats:
        """Sizes and counters, frozen."""
        segments = self._wal.segments
        newest = self._snapshots.newest
        counters = self._wal.counters
        wal_dir = f"{self._config.data_dir}/wal"
        log_bytes = sum(self._disk.size(f"{wal_dir}/{name}") for name in self._disk.list_directory(wal_dir))
        return StorageStats(
            segments=tuple(SegmentStats(s.first_index, s.last_index, s.end, s.file_bytes) for s in segments),
            log_bytes=log_bytes,
            snapshot_bytes=self._snapshots.bytes_on_disk,
            snapshot_page_bytes=newest.page_bytes if newest is not None else 0,
            first_index=self.first_index,
            last_index=self.last_index,
            durable_index=self.durable_index,
            snapshot_index=newest.index if newest is not None else 0,
            syncs=counters.syncs,
            bytes_written=counters.bytes_written,
            rotations=counters.rotations,
            recycled=counters.recycled,
            reclaimed=counters.reclaimed,
        )

    def close(self, *, clean: bool = True) -> None:
        """Release the directory. With `clean` everything is synced, under any policy, and the stop is marked
        so.

        Raises StorageError if that fails; the directory is released all the same.
        """
        try:
            self._wal.close(sync=clean)
            marks = self._hard_state.marks
            if clean and marks is not None:
                self._hard_state.write(self._hard_state.state, attrs.evolve(marks, clean=True))
        except OSError as error:
            raise StorageError(f"closing failed: {error.strerror or error}") from error
        finally:
            self._disk.close(self._lock)


def _enter_directory(disk: Disk, data_dir: str) -> int:
    """Create the directory if only its last part is missing, and lock it."""
    is_new = not disk.exists(data_dir)
    try:
        disk.make_directory(data_dir)
        if is_new:
            disk.fsync_directory(os.path.dirname(data_dir) or ".")
        return disk.lock(f"{data_dir}/{identity.LOCK_NAME}")
    except BlockingIOError:
        raise DataDirLocked(f"{data_dir} is in use by another walrq process") from None
    except FileNotFoundError as error:
        raise DataDirInvalid(f"{data_dir} cannot be created: its parent directory does not exist") from error
    except OSError as error:
        raise DataDirInvalid(f"{data_dir} cannot be used: {error.strerror or error}") from error


def _lost_page(disk: Disk, data_dir: str, key: bytes, place: PageAt) -> Finding:
    text = f"page {key.hex()} of the snapshot is damaged: what it holds is lost, everything else is served"
    start, end = place.offset, place.offset + place.length
    finding = Finding(Verdict.DAMAGED, f"snapshots/{pages_name(place.file)}", text, start, end)
    is_there = disk.exists(f"{data_dir}/{finding.file}")
    return keep_aside_if_room(disk, data_dir, finding) if is_there else finding


def _first_unreached(wal: Wal, snapshot_index: int, damaged_index: int, *, refuse: bool) -> int | None:
    """A newer snapshot is damaged: an older one will do only if the log still has all that came after it.

    Returns: the first index that it does not have; None: it does. Raises: CorruptRecord instead, with `refuse`.
    """
    expected = snapshot_index + 1
    for segment in wal.segments:
        if segment.first_index > expected or (segment.sparse and segment.last_index >= expected):
            break
        expected = max(expected, segment.last_index + 1)
    reaches = expected - 1
    wanted = max(damaged_index, wal.last_index)
    if reaches >= wanted:
        return None
    if refuse:
        raise CorruptRecord(
            f"the newest snapshot is damaged, the one before it ends at {snapshot_index} and the log then"
            f" reaches only {reaches} of {wanted}; nothing was deleted, see quarantine/"
        )
    return expected
