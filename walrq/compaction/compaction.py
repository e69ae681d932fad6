"""A pass over the log: what is mostly dead is written anew, a slice at a time.

    snapshot durable --> read its new pages --> choose a run --> mark what is alive in it --> write it anew --> swap
                                                    ^------------------------------------------------------------|

A pass looks at one snapshot, and is over when nothing is worth it. Then, and only then, the snapshot becomes the one
that the disk bound speaks of: what has died since is counted as alive until the next pass, what was written since as
the log behind it. So the bound holds at every moment, not only after each pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import attrs

from walrq.compaction import planning
from walrq.compaction.bound import Usage, live_on_disk
from walrq.compaction.liveness import Liveness, Marks
from walrq.compaction.planning import Candidate
from walrq.compaction.thinning import thinned
from walrq.errors import CorruptRecord, DiskFull, Reclaimed
from walrq.sparse.rewriting import Rewriter
from walrq.storage.record import Record
from walrq.storage.segment import RECORDS_START, Segment
from walrq.storage.snapshot import HeldPages
from walrq.storage.storage import Storage

# One step: some milliseconds of a thread, and never more of the interpreter than that at a time.
SLICE_BYTES: Final = 256 * 1024
SLICE_RECORDS: Final = 128

_logger = logging.getLogger(__name__)


@attrs.define
class Counts:
    """What passes have done since the start."""

    passes: int = 0
    rewrites: int = 0
    given_up: int = 0


@attrs.define
class _Known:
    """Of a segment, by incarnation: what was thought to be alive when it was made or looked at, and its real size."""

    live_bytes: int
    scale: float = 1.0
    is_stuck: bool = False


@attrs.frozen
class _Stands:
    """What the bound speaks of: entries up to `index`, where the last whole pass ended; 0: there was none yet."""

    index: int = 0
    live_bytes: int = 0
    sealed_bytes: int = 0
    held_bytes: int = 0


class Compaction:
    """See the package for how it is driven.

    Attributes:
        is_swapping: the next step changes the log: nobody may put another node's snapshot in place beside it.
    """

    def __init__(
        self,
        storage: Storage,
        through: Callable[[], int],
        *,
        slice_bytes: int = SLICE_BYTES,
        slice_records: int = SLICE_RECORDS,
    ) -> None:
        """`through`: entries up to here are needed by nobody else, who reads the log as a log."""
        self._slice = slice_bytes, slice_records
        self._storage = storage
        self._through = through
        self._liveness = Liveness()
        self._work: Generator[None, None, None] | None = None
        # (snapshot, through) of the last pass, whole or given up.
        self._passed = (0, 0)
        self._known: dict[int, _Known] = {}
        self._rewriter: Rewriter | None = None
        self._stands = _Stands()
        self.is_swapping = False
        self.counts = Counts()

    # --- driving --------------------------------------------------------------------------------------------
    @property
    def is_due(self) -> bool:
        """Whether `step` has something to do."""
        return self._work is not None or self._state() != self._passed

    def _state(self) -> tuple[int, int]:
        index = self._storage.snapshot_index
        return index, min(index, self._through())

    def step(self) -> bool:
        """Do a slice of a pass; False: nothing is left to do until the next snapshot. Blocking.

        Raises: StorageError: final.
        """
        if self._work is None:
            if not self.is_due:
                return False
            self._work = self._pass()
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        except BaseException:
            self._work = None
            raise
        return self.is_due

    @property
    def index(self) -> int:
        """The snapshot that the bound speaks of, as far as the log was looked at; 0: none yet."""
        return self._stands.index

    def run(self) -> None:
        """A whole pass, for whoever has nothing else to do."""
        while self.step():
            pass

    def abandon(self) -> None:
        """Leave a pass where it is: what it was writing is removed. StorageError."""
        work, self._work = self._work, None
        if work is not None:
            work.close()
        self._end_rewrite()

    # --- a pass ---------------------------------------------------------------------------------------------
    def _pass(self) -> Generator[None, None, None]:
        state = self._state()
        pages = self._storage.hold_pages()
        if pages is None:
            self._passed = state
            return
        try:
            yield from self._liveness.refresh(pages)
            whole = yield from self._rewrite_all(pages)
        except (CorruptRecord, DiskFull) as error:
            # A damaged page: the next snapshot is written without it. A full disk: less is written until there is room.
            _logger.warning("compaction_given_up %s", error.text)
            self.counts.given_up += 1
            self._passed = state
            return
        finally:
            pages.release()
        if whole:
            self._passed = state
            self.counts.passes += 1

    def _rewrite_all(self, pages: HeldPages) -> Generator[None, None, bool]:
        """Whether nothing is worth it any more, by the newest snapshot."""
        under_way = False
        while True:
            through = min(self._through(), self._liveness.index)
            segments = self._storage.segments_through(through)
            candidates = self._candidates(segments)
            run = planning.choose(candidates, self._storage.segment_bytes, self._is_hole, under_way=under_way)
            if run is None:
                self._settle(through, candidates)
                return True
            if under_way and self._state()[0] != self._liveness.index:
                # A newer snapshot knows of more that is dead.
                return False
            under_way = True
            yield from self._flip(pages, segments[run.start : run.stop], candidates[run.start : run.stop])

    def _candidates(self, segments: Sequence[Segment]) -> list[Candidate]:
        live = self._liveness.bytes_by([(segment.first_index, segment.last_index) for segment in segments])
        known = {segment.incarnation: self._known.get(segment.incarnation) for segment in segments}
        self._known = {incarnation: each for incarnation, each in known.items() if each is not None}
        found = []
        for segment, size in zip(segments, live, strict=True):
            before = known[segment.incarnation]
            scaled = int(size * before.scale) if before is not None else size
            found.append(
                Candidate(
                    segment.first_index,
                    segment.last_index,
                    segment.file_bytes,
                    min(scaled, segment.end - RECORDS_START),
                    None if before is None else before.live_bytes,
                    before is not None and before.is_stuck,
                )
            )
        return found

    def _is_hole(self, first: int, last: int) -> bool:
        """Whether a span of indexes lies between segments, and nothing in it is alive (or was, and is lost)."""
        if last < first:
            return True
        ranges = self._storage.index_ranges()
        return self._liveness.is_empty(first, last) and not any(low <= last and first <= high for low, high in ranges)

    def _settle(self, through: int, candidates: Sequence[Candidate]) -> None:
        """From here on the bound speaks of this snapshot."""
        # inv: DiskBounded
        held = self._storage.held_segments
        live = self._liveness.bytes_in(0, through)
        live = max(live, sum(each.live_bytes for each in candidates))
        self._stands = _Stands(
            through,
            live_on_disk(live, self._storage.segment_bytes),
            sum(each.file_bytes for each in candidates),
            sum(segment.file_bytes for segment in held if segment.last_index <= through)
            + sum(each.file_bytes for each in candidates if each.is_stuck),
        )

    def _flip(
        self, pages: HeldPages, old: Sequence[Segment], candidates: Sequence[Candidate]
    ) -> Generator[None, None, None]:
        first, last = old[0].first_index, old[-1].last_index
        marks: Marks = {}
        for found in self._liveness.marks(pages, first, last):
            if found is None:
                yield
            else:
                marks = found
        live = sum(each.live_bytes for each in candidates)
        if not marks:
            self.is_swapping = True
            yield
            self._give_back(old)
            self.is_swapping = False
            return
        self._rewriter = rewriter = self._storage.begin_rewrite(old, lambda record: _thin(record, marks))
        try:
            while rewriter.step(*self._slice):
                yield
            self.is_swapping = True
            yield
            done = rewriter.finish()
        except (Reclaimed, CorruptRecord) as error:
            # Given back, mended or held meanwhile, or damaged: looked at again when more of it is dead.
            _logger.info("rewrite_given_up first=%d last=%d: %s", first, last, error.text)
            self._end_rewrite()
            self.counts.given_up += 1
            self._leave(old, candidates, is_stuck=isinstance(error, CorruptRecord))
            return
        except DiskFull:
            self._end_rewrite()
            raise
        self._rewriter = None
        self.is_swapping = False
        self.counts.rewrites += 1
        made = next((each for each in self._storage.segments_through(last) if each.first_index == first), None)
        if made is not None:
            scale = max(1.0, (done.made_bytes - RECORDS_START) / max(1, live))
            self._known[made.incarnation] = _Known(int(live * scale), scale)

    def _give_back(self, old: Sequence[Segment]) -> None:
        try:
            self._storage.give_back(old)
        except Reclaimed:
            # The log was replaced by another node's snapshot: the next pass sees what there is now.
            self.counts.given_up += 1

    def _leave(self, old: Sequence[Segment], candidates: Sequence[Candidate], *, is_stuck: bool) -> None:
        for segment, candidate in zip(old, candidates, strict=True):
            self._known[segment.incarnation] = _Known(candidate.live_bytes, is_stuck=is_stuck)

    def _end_rewrite(self) -> None:
        """What was being written is removed. StorageError."""
        self.is_swapping = False
        rewriter, self._rewriter = self._rewriter, None
        if rewriter is not None:
            rewriter.abort()

    # --- what there is --------------------------------------------------------------------------------------
    def usage(self) -> Usage:
        """What is used, and the bound. Blocking: looks at every file's size. Any thread, also beside a step."""
        storage, stands = self._storage, self._stands
        # In this order: what a pass gives back is gone before the bound speaks of its snapshot.
        disk_bytes = storage.disk_bytes()
        return Usage(
            disk_bytes=disk_bytes,
            live_bytes=stands.live_bytes,
            tail_bytes=storage.tail_bytes(stands.index),
            segment_bytes=storage.segment_bytes,
            reserve_bytes=storage.reserve_bytes,
            snapshot_bytes=storage.snapshot_bytes,
            held_bytes=stands.held_bytes,
            sealed_bytes=stands.sealed_bytes,
        )

    def stats(self) -> dict[str, Any]:
        """Plain numbers, without a look at the disk."""
        counters = self._storage.wal_counters
        written = counters.bytes_written
        given_back = counters.reclaimed + counters.rewritten
        return {
            "compactions": given_back,
            "wal_compactions": given_back,
            "wal_segments_rewritten": counters.rewritten,
            "wal_compaction_passes": self.counts.passes,
            "wal_compactions_given_up": self.counts.given_up,
            "wal_bytes_rewritten": counters.bytes_rewritten,
            "wal_bytes_freed": counters.bytes_freed,
            "write_amplification": round((written + counters.bytes_rewritten) / written, 3) if written else 1.0,
        }


def _thin(record: Record, marks: Marks) -> bytes | None:
    live = marks.get(record.index)
    return None if live is None else thinned(record.body, live)
