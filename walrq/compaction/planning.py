"""Which segments are worth writing anew. Pure: sizes in, a run of neighbours out.

A segment is worth it if most of it is dead; the one with the least alive comes first, and neighbours that are worth it
go with it, as far as what is alive in all of them fits into one. Nothing is written as long as the sealed log is small
against what is alive in it: it is better to wait until more has died, for then there is less to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from walrq.compaction.bound import SEGMENT_OVERHEAD_BYTES, live_on_disk

# The bound allows twice what is alive. Begin before that, and end somewhat below, so that the next pass is not due at
# once.
BEGIN_AT: Final = 1.7
END_AT: Final = 1.5
MUST_AT: Final = 2.0
# Of a segment's file at most this part is alive when it is worth it.
WORTH_AT: Final = 0.6
# A run frees at least this part of its files: a small one is left alone, for a header remains of it.
FREED_MIN: Final = 0.25
# Segments that a run is begun with, the best first.
TRIED_MAX: Final = 16
# What is made is kept well within one segment: how large it becomes is only known when it is written.
FILL: Final = 0.7
# Segments beyond those that are needed, before small ones are put together for their number alone.
SPARE_SEGMENTS: Final = 8
SMALL_PARTS: Final = 4
PAGE_BYTES: Final = 4096
MERGED_MIN: Final = 4


@attrs.frozen
class Candidate:
    """A sealed segment: what it covers, its file, and what is alive in it.

    `tried`: what was alive when it was last written anew or looked at in vain; None: never. `is_stuck`: in vain, for it
    is damaged.
    """

    first_index: int
    last_index: int
    file_bytes: int
    live_bytes: int
    tried: int | None = None
    is_stuck: bool = False

    @property
    def is_worth_it(self) -> bool:
        """Whether most of it is dead, and more than when it was tried last."""
        if self.live_bytes > WORTH_AT * max(0, self.file_bytes - SEGMENT_OVERHEAD_BYTES // 2):
            return False
        return not self.is_stuck and (self.tried is None or self.live_bytes <= WORTH_AT * self.tried)


def sums(candidates: Sequence[Candidate], segment_bytes: int) -> tuple[int, int]:
    """(bytes of their files, bytes that what is alive in them needs)."""
    live = sum(each.live_bytes for each in candidates)
    return sum(each.file_bytes for each in candidates), live_on_disk(live, segment_bytes)


def choose(
    candidates: Sequence[Candidate],
    segment_bytes: int,
    is_empty: Callable[[int, int], bool],
    *,
    under_way: bool = False,
) -> range | None:
    """Positions of the run that is to be written next; None: nothing is worth it.

    Args:
        candidates: ascending. Between two of them may lie segments that are no candidates.
        is_empty: whether nothing is alive in a span of indexes: only then may a hole be taken in.
        under_way: something has been written in this pass; it goes on a little further than it begins.
    """
    sealed, live = sums(candidates, segment_bytes)
    if sealed > (END_AT if under_way else BEGIN_AT) * live:
        worth = [position for position, each in enumerate(candidates) if each.is_worth_it]
        worth.sort(key=lambda at: candidates[at].live_bytes / candidates[at].file_bytes)
        for best in worth[:TRIED_MAX]:
            run = _extended(candidates, best, segment_bytes, is_empty, lambda each: each.is_worth_it)
            if _frees(candidates[run.start : run.stop], FREED_MIN):
                return run
    if sealed > MUST_AT * live:
        # inv: DiskBounded: whatever it costs, as long as it frees something.
        for position in range(len(candidates)):
            run = _extended(candidates, position, segment_bytes, is_empty, lambda each: not each.is_stuck)
            if not candidates[position].is_stuck and _frees(candidates[run.start : run.stop], 0.0):
                return run
    return _small_ones(candidates, segment_bytes, live, is_empty)


def _frees(run: Sequence[Candidate], part: float) -> bool:
    """Whether a run frees so much of its files, and a page at least."""
    files = sum(each.file_bytes for each in run)
    left = sum(each.live_bytes for each in run)
    return not left or left + SEGMENT_OVERHEAD_BYTES + PAGE_BYTES <= (1 - part) * files


def _small_ones(
    candidates: Sequence[Candidate], segment_bytes: int, live: int, is_empty: Callable[[int, int], bool]
) -> range | None:
    """The longest run of small segments, if there are too many segments for what is alive."""
    if len(candidates) <= SPARE_SEGMENTS + 4 * (1 + live // segment_bytes):
        return None
    best: range | None = None
    position = 0
    while position < len(candidates):
        if not _is_small(candidates[position], segment_bytes):
            position += 1
            continue
        run = _extended(candidates, position, segment_bytes, is_empty, lambda each: _is_small(each, segment_bytes))
        if len(run) >= MERGED_MIN and (best is None or len(run) > len(best)):
            best = run
        position = run.stop
    return best


def _is_small(candidate: Candidate, segment_bytes: int) -> bool:
    return SMALL_PARTS * candidate.file_bytes <= segment_bytes and not candidate.is_stuck


def _extended(
    candidates: Sequence[Candidate],
    position: int,
    segment_bytes: int,
    is_empty: Callable[[int, int], bool],
    takes: Callable[[Candidate], bool],
) -> range:
    """A run around a position, as far as neighbours are taken and all that is alive fits."""
    first = last = position
    room = int(FILL * segment_bytes) - candidates[position].live_bytes

    def fits(one: Candidate, low: Candidate, high: Candidate) -> bool:
        return takes(one) and one.live_bytes <= room and is_empty(low.last_index + 1, high.first_index - 1)

    while first > 0 and fits(candidates[first - 1], candidates[first - 1], candidates[first]):
        first -= 1
        room -= candidates[first].live_bytes
    while last + 1 < len(candidates) and fits(candidates[last + 1], candidates[last], candidates[last + 1]):
        last += 1
        room -= candidates[last].live_bytes
    return range(first, last + 1)
