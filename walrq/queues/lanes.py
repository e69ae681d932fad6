"""Where a queue's ready messages line up: levels, groups, and what lies beyond the hot window.

Heaps hold runs by order with lazy deletion: a run that was withdrawn, or put back elsewhere, leaves a stale entry that
is dropped when it comes up. Plain structures; `queue.py` moves runs between them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import cbor2

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


# The lane of all grouped messages of a queue; the others' number is their priority.
GROUPED: Final = 256
# Numbers of the stretches that are not sealed, and the first one of those that are.
TAIL: Final = 0
FRONT: Final = 1
SEALED_FIRST: Final = 2


class Stretch:
    """Rows of cold batches that stand one behind the other, and what is known of all of them together.

    Attributes:
        number: of the page that they are; TAIL and FRONT are those that still grow.
        rows: how many batches.
        first: sequence of the first one.
        messages, bytes: of those that are left.
        soonest: when the first of them expires, 0 = none does. It may be too early, never too late.
        low, high: the log indexes that they were pushed by lie between these.
        taken: of a sealed one, sequences of batches that left out of turn.
        weight: bytes of the rows; of those that still grow.
    """

    __slots__ = ("bytes", "first", "high", "low", "messages", "number", "rows", "soonest", "taken", "weight")

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows = 0
        self.first = 0
        self.messages = 0
        self.bytes = 0
        self.soonest = 0
        self.low = 0
        self.high = 0
        self.taken: set[int] = set()
        self.weight = 0

    def count(self, batch: Batch, size: int, weight: int) -> None:
        """One more batch, with `size` bytes left and a row of `weight` bytes."""
        if not self.rows or batch.seq < self.first:
            self.first = batch.seq
        if not self.rows or batch.index < self.low:
            self.low = batch.index
        if batch.index > self.high:
            self.high = batch.index
        if batch.expire_ms and not 0 < self.soonest <= batch.expire_ms:
            self.soonest = batch.expire_ms
        self.rows += 1
        self.messages += batch.live
        self.bytes += size
        self.weight += weight

    def fields(self) -> tuple[Any, ...]:
        """As plain values."""
        return (
            self.number,
            self.rows,
            self.first,
            self.messages,
            self.bytes,
            self.soonest,
            self.low,
            self.high,
            sorted(self.taken),
        )

    @classmethod
    def of(cls, fields: Sequence[Any]) -> Stretch:
        """From plain values."""
        self = cls(fields[0])
        self.rows, self.first, self.messages, self.bytes, self.soonest, self.low, self.high, taken = fields[1:]
        self.taken.update(taken)
        return self


class Cold:
    """Ready messages of one lane whose metadata is not in memory: what stands behind its hot ones.

    In order: the `front` (what was driven out last; its last row is the first in order), the sealed stretches, the
    tail. A stretch is sealed when it is long enough, and is an image page from then on, which never changes: it is in
    memory only until a snapshot with it is durable. Counters and the directory of the stretches stay.

    Attributes:
        floor: no batch up to this sequence is cold. A run with a higher order waits until those before it are back.
        messages, batches, bytes: of all that is cold.
        blocks: batches per block of log indexes.
        moved: how many of the batches have an origin, so that their ids say nothing about where they stand.
        mixed: priorities of ungrouped messages that stand among grouped ones.
        origins: dead messages by the name of the queue they died in.
        owed, owed_bytes: messages at the head that were dropped without being looked at, and about how many bytes: they
            are gone already, and leave when they come up. `messages` and `bytes` do not count them.
        unsaved: bytes of sealed stretches that no durable snapshot is known to hold. Not part of the state.
    """

    __slots__ = (
        "batches",
        "blocks",
        "bytes",
        "floor",
        "front",
        "front_rows",
        "messages",
        "mixed",
        "moved",
        "origins",
        "owed",
        "owed_bytes",
        "sealed",
        "tail",
        "tail_rows",
        "unsaved",
    )

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.messages = 0
        self.batches = 0
        self.bytes = 0
        self.blocks: dict[int, int] = {}
        self.front = Stretch(FRONT)
        self.front_rows: list[bytes] = []
        # Ordered, for its first entry is taken over and over.
        self.sealed: OrderedDict[int, Stretch] = OrderedDict()
        self.tail = Stretch(TAIL)
        self.tail_rows: list[bytes] = []
        self.moved = 0
        self.mixed: set[int] = set()
        self.origins: dict[str, int] = {}
        self.owed = 0
        self.owed_bytes = 0
        self.unsaved: dict[int, bytes] = {}

    def head(self) -> Stretch | None:
        """What comes next."""
        if self.front_rows:
            return self.front
        if self.sealed:
            return next(iter(self.sealed.values()))
        return self.tail if self.tail_rows else None

    def stretches(self) -> list[Stretch]:
        """All of them, in order."""
        found = [self.front] if self.front_rows else []
        found += self.sealed.values()
        return [*found, self.tail] if self.tail_rows else found

    def fields(self) -> list[Any]:
        """All but the rows, as plain values."""
        return [
            self.floor,
            self.messages,
            self.batches,
            self.bytes,
            sorted(self.blocks.items()),
            [each.fields() for each in self.stretches()],
            self.moved,
            sorted(self.mixed),
            sorted(self.origins.items()),
            self.owed,
            self.owed_bytes,
        ]

    @classmethod
    def of(cls, fields: Sequence[Any], tail: bytes | None, front: bytes | None) -> Cold:
        """From plain values and the pages of what is not sealed."""
        floor, messages, batches, size, blocks, stretches, moved, mixed, origins, owed, owed_bytes = fields
        self = cls(floor)
        self.messages, self.batches, self.bytes = messages, batches, size
        self.blocks = dict(blocks)
        for each in stretches:
            stretch = Stretch.of(each)
            if stretch.number == TAIL:
                self.tail, self.tail_rows = stretch, encoded_rows(tail or b"")
                stretch.weight = sum(map(len, self.tail_rows))
            elif stretch.number == FRONT:
                self.front, self.front_rows = stretch, encoded_rows(front or b"")[::-1]
                stretch.weight = sum(map(len, self.front_rows))
            else:
                self.sealed[stretch.number] = stretch
        self.moved = moved
        self.mixed.update(mixed)
        self.origins = dict(origins)
        self.owed, self.owed_bytes = owed, owed_bytes
        return self

    def page(self, number: int) -> bytes | None:
        """The bytes of a stretch's page, if it is in memory."""
        if number == TAIL:
            return page_of(self.tail_rows) if self.tail_rows else None
        if number == FRONT:
            return page_of(self.front_rows[::-1]) if self.front_rows else None
        return self.unsaved.get(number)

    @property
    def soonest(self) -> int:
        """When the first batch may expire, 0 = none does."""
        return min((each.soonest for each in self.stretches() if each.soonest), default=0)


def page_of(rows: Sequence[bytes]) -> bytes:
    """The page of rows that are CBOR already: an array of them."""
    return cbor2.dumps([None] * len(rows))[: -len(rows) or None] + b"".join(rows)


def encoded_rows(page: bytes) -> list[bytes]:
    """The rows of a page, each as CBOR."""
    return [cbor2.dumps(row) for row in rows_of(page)] if page else []


def rows_of(page: bytes) -> list[list[Any]]:
    """The rows of a page, in order."""
    return list(cbor2.loads(page))


# Pages of cold stretches: below all others, the number of the stretch above its lane.
COLD_PAGE_FIRST: Final = -(1 << 32)
_LANE_BITS: Final = 9
assert GROUPED < 1 << _LANE_BITS


def cold_page(lane: int, number: int) -> int:
    """The page of a stretch of cold batches."""
    return COLD_PAGE_FIRST - (number << _LANE_BITS | lane)


def stretch_in(page: int) -> tuple[int, int]:
    """(lane, number) of a page at or below COLD_PAGE_FIRST."""
    value = COLD_PAGE_FIRST - page
    return value & (1 << _LANE_BITS) - 1, value >> _LANE_BITS


def line_of(lane: Level | list[Returned], border: int | None) -> Iterator[tuple[int, Batch, int]]:
    """(order, batch, offset) of a lane's ready messages up to its border, head first; changes nothing."""
    heap = lane.returned if isinstance(lane, Level) else lane
    runs = {id(run): run for order, _, run in heap if run.state == READY and run.order == order}
    stretches = [(run.order, run.batch, run.first, run.last) for run in runs.values()]
    if isinstance(lane, Level):
        stretches += [(b.seq + b.cursor, b, b.cursor, b.count - 1) for b in lane.fresh if b.fresh]
    for order, batch, first, last in sorted(stretches, key=lambda stretch: stretch[0]):
        if border is not None and order > border:
            return
        for offset in range(first, last + 1):
            yield order + offset - first, batch, offset


def fitting(batch: Batch, first: int, number: int, bytes_limit: int, must: bool) -> int:
    """How many of `number` messages from `first` fit; at least one when it must."""
    if batch.bytes_of(first, first + number - 1) <= bytes_limit:
        return number
    share = max(1, batch.size // batch.total)
    return min(number, max(1 if must else 0, bytes_limit // share))
