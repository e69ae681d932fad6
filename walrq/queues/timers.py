"""The two timer heaps of the machine, with lazy deletion.

A timer is stale once the thing it was set for has moved on; it is recognised when it comes up and dropped. When
stale ones may outnumber living ones the heap is rebuilt from the living, so its size stays bounded by them.

Order is total and part of the behaviour: (time, uid, kind, number). The heaps themselves are no state: they follow
from the runs and are rebuilt from an image. Idea: Trio's `Deadlines`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final, TypeAlias

from walrq.queues.batch import BACKOFF, DELAYED, Batch, Lease, Run

# Kinds on the lease clock.
LEASE_ENDS: Final = 0
BACKOFF_ENDS: Final = 1
# Kinds on the wall clock.
DUE: Final = 0
TTL: Final = 1

Subject: TypeAlias = Lease | Run | Batch
Timer: TypeAlias = tuple[int, int, int, int, int, Subject]
"""(time, queue uid, kind, number, tie, subject). The tie only keeps the heap from comparing subjects: of two timers
equal before it at most one is alive."""

_SLACK: Final = 4096


class TimerHeap:
    """Timers of one clock."""

    __slots__ = ("_alive", "_heap", "_rebuild_at", "_tie")

    def __init__(self, alive: Callable[[Timer], bool]) -> None:
        """`alive` tells whether a timer still stands for something."""
        self._alive = alive
        self._heap: list[Timer] = []
        self._tie = count()
        self._rebuild_at = _SLACK

    def add(self, time_ms: int, uid: int, kind: int, number: int, subject: Subject) -> None:
        """Set a timer."""
        heap = self._heap
        heapq.heappush(heap, (time_ms, uid, kind, number, next(self._tie), subject))
        if len(heap) > self._rebuild_at:
            self._prune()

    def _prune(self) -> None:
        alive = self._alive
        self._heap = [timer for timer in self._heap if alive(timer)]
        heapq.heapify(self._heap)
        # Rebuilding costs as much as the additions since the last time: amortised constant.
        self._rebuild_at = 2 * len(self._heap) + _SLACK

    def next(self) -> int | None:
        """Time of the earliest living timer."""
        heap = self._heap
        while heap:
            if self._alive(heap[0]):
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def pop_due(self, now_ms: int) -> Timer | None:
        """Remove and return the earliest living timer at or before `now_ms`."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            timer = heapq.heappop(heap)
            if self._alive(timer):
                return timer
        return None


def lease_timer_alive(timer: Timer) -> bool:
    """A lease with a run that ends then, or a run whose back-off ends then."""
    time_ms, _, _, _, _, subject = timer
    if type(subject) is Lease:
        for run in subject.runs:
            if run.deadline == time_ms:
                return True
        return False
    assert isinstance(subject, Run)
    return subject.state == BACKOFF and subject.deadline == time_ms


def wall_timer_alive(timer: Timer) -> bool:
    """A delayed run that is due then, or a batch with something left of it."""
    time_ms, _, _, _, _, subject = timer
    if type(subject) is Run:
        return subject.state == DELAYED and subject.deadline == time_ms
    assert isinstance(subject, Batch)
    # Leased as a whole it still needs its timer: whatever comes back before that time must go then.
    return subject.live > 0
