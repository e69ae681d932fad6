"""Where a queue's ready messages line up: levels, groups, and what lies beyond the hot window.

Heaps hold runs by order with lazy deletion: a run that was withdrawn, or put back elsewhere, leaves a stale entry that
is dropped when it comes up. Plain structures; `queue.py` moves runs between them.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import count
from typing import TypeAlias

from walrq.queues.batch import READY, Batch, Run

Returned: TypeAlias = tuple[int, int, Run]
"""(order, tie, run). The tie only keeps the heap from comparing runs: of two equal orders at most one is alive."""

tie = count()


class Level:
    """The ungrouped messages of one priority."""

    __slots__ = ("fresh", "ready", "returned")

    def __init__(self) -> None:
        self.fresh: deque[Batch] = deque()
        self.returned: list[Returned] = []
        self.ready = 0


class Group:
    """The messages with one group key.

    `turn` is the priority under which the group stands in the rotation, None while it is not eligible.
    """

    __slots__ = ("heap", "in_flight", "key", "ready", "turn", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.heap: list[Returned] = []
        self.ready = 0
        self.in_flight = 0
        # Messages in back-off: they keep their place, so the group waits for them.
        self.waiting = 0
        self.turn: int | None = None

    def head(self) -> Run | None:
        """The ready run of lowest order."""
        return head_of(self.heap)


def head_of(heap: list[Returned]) -> Run | None:
    while heap:
        order, _, run = heap[0]
        # A run that was withdrawn, or withdrawn and put back elsewhere, left a stale entry.
        if run.state == READY and run.order == order:
            return run
        heapq.heappop(heap)
    return None


class Tally:
    """Counts over all queues: leases, and what is in the hot window (messages in any state, and their bytes).

    Attributes:
        tasks: task number -> (queue uid, lease number) of every numbered lease there is.
        tasks_given, delayed_taken: numbered leases and counted delayed messages so far.
    """

    __slots__ = ("bytes", "delayed_taken", "leases", "messages", "tasks", "tasks_given")

    def __init__(self) -> None:
        self.leases = 0
        self.messages = 0
        self.bytes = 0
        self.tasks: dict[int, tuple[int, int]] = {}
        self.tasks_given = 0
        self.delayed_taken = 0


class Cold:
    """Ready messages of one priority whose metadata is on disk only. All of them stand behind the hot ones.

    Attributes:
        floor: highest sequence that is not cold.
        blocks: batches per block of log indexes.
    """

    __slots__ = ("batches", "blocks", "bytes", "floor", "messages")

    def __init__(self) -> None:
        self.floor = 0
        self.messages = 0
        self.batches = 0
        self.bytes = 0
        self.blocks: dict[int, int] = {}
