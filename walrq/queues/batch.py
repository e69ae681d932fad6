"""Batches, runs and leases: the nouns that the queue moves about.

A *batch* is one producer's push, or a stretch of one that moved to another queue; its body stays in the log at
(index, ordinal), positions base .. base + count - 1. Offsets below count from 0 within the batch.

A message of a batch is in exactly one place:

    fresh    offset >= cursor while `batch.fresh`: never leased, no object of its own
    a piece  some Run in `batch.pieces`, in the state the run says
    gone     settled or removed

Nothing here decides anything; `queue.py` moves runs, `machine.py` says when.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Final

from walrq.api import Attempt
from walrq.ids import message_id

# Of a row of a batch that was pushed and never touched; other rows have more.
UNTOUCHED_FIELDS: Final = 7

# Below, looking at each piece is as fast as stepping back to the beginning of the one that holds an offset.
_PIECES_FEW: Final = 64


class RunState(enum.IntEnum):
    """Where a run stands. The numbers are stored in images and never change."""

    READY = 0
    DELAYED = 1
    LEASED = 2
    PARKED = 3
    BACKOFF = 4
    GONE = 5


# Plain integers: enum attribute access costs more than the comparison itself on the hot path.
READY: Final = 0
DELAYED: Final = 1
LEASED: Final = 2
PARKED: Final = 3
BACKOFF: Final = 4
GONE: Final = 5


class Origin:
    """Where a moved batch came from: kept id of offset 0, and for a dead one the story of its death."""

    __slots__ = ("attempts", "delivery", "died_ms", "first_id", "history", "max_attempts", "queue", "reason")

    def __init__(
        self,
        first_id: int,
        delivery: int,
        queue: str | None = None,
        reason: str | None = None,
        died_ms: int = 0,
        history: tuple[Attempt, ...] = (),
        attempts: int = 0,
        max_attempts: int = 0,
    ) -> None:
        # Counted attempts at death; where the message lies now they start afresh.
        self.attempts = attempts
        # What its producer said of attempts, 0 = nothing: rests while it is dead, and holds again after a redrive.
        self.max_attempts = max_attempts
        self.first_id = first_id
        self.delivery = delivery
        self.queue = queue
        self.reason = reason
        self.died_ms = died_ms
        self.history = history


class Batch:
    """See the module. Invariant: 0 < live = fresh messages + sum of piece lengths <= count."""

    __slots__ = (
        "base",
        "count",
        "cursor",
        "expire_ms",
        "fresh",
        "index",
        "live",
        "max_attempts",
        "ordinal",
        "origin",
        "pieces",
        "priority",
        "pushed_ms",
        "seq",
        "size",
        "total",
    )

    def __init__(
        self,
        index: int,
        ordinal: int,
        base: int,
        count: int,
        total: int,
        size: int,
        seq: int,
        priority: int,
        max_attempts: int,
        pushed_ms: int,
        expire_ms: int,
    ) -> None:
        self.index = index
        self.ordinal = ordinal
        self.base = base
        self.count = count
        # Messages and bytes of the whole body, for equal shares.
        self.total = total
        self.size = size
        self.seq = seq
        self.priority = priority
        # 0 = the queue's setting.
        self.max_attempts = max_attempts
        self.pushed_ms = pushed_ms
        # 0 = never.
        self.expire_ms = expire_ms
        self.cursor = 0
        self.fresh = False
        self.live = count
        self.pieces: dict[int, Run] | None = None
        self.origin: Origin | None = None

    def piece_at(self, offset: int) -> Run | None:
        """The piece that holds `offset`: either there are few pieces, or they are short; the shorter walk is taken."""
        pieces = self.pieces
        if not pieces:
            return None
        if len(pieces) <= _PIECES_FEW:
            return next((run for run in pieces.values() if run.first <= offset <= run.last), None)
        first = next((first for first in range(offset, -1, -1) if first in pieces), None)
        return pieces[first] if first is not None and offset <= pieces[first].last else None

    def bytes_of(self, first: int, last: int) -> int:
        """Bytes of offsets first..last, by equal shares of the body."""
        start = self.base + first
        return self.size * (self.base + last + 1) // self.total - self.size * start // self.total

    def id_of(self, uid: int, offset: int) -> int:
        """The message id of `offset`; `uid` is the queue's."""
        if self.origin is not None:
            return self.origin.first_id + offset
        return message_id(self.pushed_ms, uid, self.seq + offset)


class Run:
    """Messages first..last of one batch that share their history.

    Attributes:
        order: place in the queue of `first`; the following messages have the following places.
        delivery: leases so far (a leased run counts its current one).
        attempts: counted attempts so far.
        deadline: leased: end on the lease clock; back-off: its end on the lease clock; delayed: due on the wall clock.
    """

    __slots__ = (
        "attempts",
        "batch",
        "deadline",
        "delivery",
        "first",
        "group",
        "history",
        "last",
        "lease",
        "order",
        "state",
    )

    def __init__(
        self, batch: Batch, first: int, last: int, order: int, delivery: int, attempts: int, group: str | None
    ) -> None:
        self.batch = batch
        self.first = first
        self.last = last
        self.order = order
        self.delivery = delivery
        self.attempts = attempts
        self.group = group
        self.state = GONE
        self.deadline = 0
        self.lease: Lease | None = None
        self.history: tuple[Attempt, ...] = ()

    def part(self, first: int, last: int) -> Run:
        """A new run of a stretch of this one, with the same history, in no state yet."""
        run = Run(self.batch, first, last, self.order + first - self.first, self.delivery, self.attempts, self.group)
        run.history = self.history
        run.deadline = self.deadline
        return run


class Lease:
    """What one receipt names: offsets first .. first + count - 1 of a batch. `task` is its task number, 0 = none; a
    numbered lease is of one message.

    `runs` are those still outstanding, by offset: there may be thousands after a worker settled every other message,
    so they are found by bisection.
    """

    __slots__ = ("batch", "count", "fence", "first", "number", "runs", "task", "worker")

    def __init__(
        self, number: int, batch: Batch, first: int, count: int, fence: tuple[int, int], worker: str | None
    ) -> None:
        self.number = number
        self.batch = batch
        self.first = first
        self.count = count
        self.fence = fence
        self.worker = worker
        self.task = 0
        self.runs: list[Run] = []

    def add(self, run: Run) -> None:
        """One more outstanding run."""
        runs = self.runs
        if runs and runs[-1].first > run.first:
            insort(runs, run, key=_first)
        else:
            runs.append(run)

    def remove(self, run: Run) -> None:
        """It is outstanding no more."""
        runs = self.runs
        if runs[-1] is run:
            runs.pop()
        else:
            del runs[bisect_left(runs, run.first, key=_first)]

    def overlapping(self, low: int, high: int) -> Iterator[Run]:
        """Outstanding runs with a message in low .. high (offsets within the batch)."""
        runs = self.runs
        for position in range(max(0, bisect_right(runs, low, key=_first) - 1), len(runs)):
            run = runs[position]
            if run.first > high:
                return
            if run.last >= low:
                yield run


def _first(run: Run) -> int:
    return run.first


# --- as plain values, in images and cold pages ---------------------------------------------------------------
def _attempts(history: tuple[Attempt, ...]) -> list[Any]:
    return [(a.at_ms, a.reason, a.worker, a.error_type, a.error_text) for a in history]


def run_row(run: Run) -> list[Any]:
    """A run as plain values."""
    lease = run.lease
    return [
        run.first,
        run.last,
        run.order,
        run.delivery,
        run.attempts,
        run.group,
        run.state,
        run.deadline,
        _attempts(run.history),
        None
        if lease is None
        else [
            lease.number,
            lease.first,
            lease.count,
            *lease.fence,
            lease.worker,
            *((lease.task,) if lease.task else ()),
        ],
    ]


def batch_row(batch: Batch) -> list[Any]:
    """A batch as plain values, in one of two forms."""
    origin = batch.origin
    pieces = batch.pieces
    if batch.fresh and not (batch.cursor or pieces or batch.base or batch.max_attempts or batch.expire_ms):
        if origin is None and batch.live == batch.count == batch.total:
            # A backlog is mostly this: pushed and untouched.
            return [
                batch.index,
                batch.ordinal,
                batch.count,
                batch.size,
                batch.seq,
                batch.priority,
                batch.pushed_ms,
            ]
    return [
        batch.index,
        batch.ordinal,
        batch.base,
        batch.count,
        batch.total,
        batch.size,
        batch.seq,
        batch.priority,
        batch.max_attempts,
        batch.pushed_ms,
        batch.expire_ms,
        batch.cursor,
        batch.fresh,
        None
        if origin is None
        else (
            origin.first_id,
            origin.delivery,
            origin.queue,
            origin.reason,
            origin.died_ms,
            _attempts(origin.history),
            origin.attempts,
            origin.max_attempts,
        ),
        [run_row(pieces[first]) for first in sorted(pieces)] if pieces else [],
    ]


def open_attempts(raw: Any) -> tuple[Attempt, ...]:
    """Attempts from plain values."""
    return tuple(Attempt(*row) for row in raw)
