"""Deadlines of parked polls: one heap, one task, however many polls wait.

A poll that was served before its time leaves its heap entry behind; entries of the dead are dropped when they
come up, or all at once when they outnumber the living. Never busy: without parked polls the task sleeps until
one parks.

Source: lazy deletion as in Trio's own deadline heap.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import trio

from walrq.daemon.clock import Clock

if TYPE_CHECKING:
    from walrq.daemon.broker import Broker, PollCall

# Rebuilding is linear; below this size it is never worth it.
_PRUNE_MIN: Final = 1_024


class Deadlines:
    """When parked polls have waited long enough, earliest first."""

    __slots__ = ("_count", "_heap", "_sleeping_until", "_wake", "living")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, PollCall]] = []
        self._count = 0
        self._wake = trio.Event()
        self._sleeping_until: int | None = None
        # Parked polls as the broker counts them; the heap holds these and the dead.
        self.living = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, call: PollCall) -> None:
        """Watch over `call` until its `deadline_ms`."""
        if not call.watched:  # a poll that parks again keeps its place
            call.watched = True
            self._count += 1
            heapq.heappush(self._heap, (call.deadline_ms, self._count, call))
            if len(self._heap) > _PRUNE_MIN and len(self._heap) > 4 * self.living:
                self._prune()
        if self._sleeping_until is None or call.deadline_ms < self._sleeping_until:
            self._wake.set()

    def due(self, monotonic_ms: int) -> list[PollCall]:
        """Take out what is due and still parked, in order."""
        heap = self._heap
        calls = []
        while heap and heap[0][0] <= monotonic_ms:
            call = heapq.heappop(heap)[2]
            call.watched = False
            if call.parked:
                calls.append(call)
        return calls

    def _prune(self) -> None:
        kept = []
        for entry in self._heap:
            if entry[2].parked:
                kept.append(entry)
            else:
                entry[2].watched = False
        heapq.heapify(kept)
        self._heap = kept

    def next_ms(self) -> int | None:
        """The earliest deadline, or None when nobody waits."""
        heap = self._heap
        while heap and not heap[0][2].parked:
            heapq.heappop(heap)[2].watched = False
        return heap[0][0] if heap else None

    async def wait_due(self, clock: Clock) -> None:
        """Return when the earliest deadline has come, or an earlier one may have been added."""
        self._sleeping_until = self.next_ms()
        if self._wake.is_set():
            self._wake = trio.Event()
        deadline = float("inf") if self._sleeping_until is None else clock.deadline(self._sleeping_until)
        with trio.move_on_at(deadline):
            await self._wake.wait()


async def run(broker: Broker, clock: Clock) -> None:
    """Answer parked polls, empty, when their time is over."""
    deadlines = broker.deadlines
    while True:
        await deadlines.wait_due(clock)
        now_ms = clock.monotonic_ms()
        calls = deadlines.due(now_ms)
        if calls:
            broker.expire(calls)
            broker.flush()
