"""Messages that wait for a time: the two heaps of what is near, and the way beyond the horizon and back.

The heaps have lazy deletion. A timer is stale once the thing it was set for has moved on; it is recognised when it
comes up and dropped. When stale ones may outnumber living ones the heap is rebuilt from the living, so its size stays
bounded by them. Order is total and part of the behaviour: (time, uid, kind, number). The heaps themselves are no state:
they follow from the runs and are rebuilt from an image. Idea: Trio's `Deadlines`.

What is due beyond the horizon is a row of `walrq.far` and no run: it has no timer, no batch, no page of its own, only
its share in the counts of its queue and of live blocks. It comes back with the same id and place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from walrq.api import Attempt
from walrq.far.rows import ATTEMPTS, DELIVERY, GROUP, HISTORY, ORDER, ORIGIN, SEQUENCE, UID, Row
from walrq.far.rows import DUE as ROW_DUE
from walrq.ids import id_parts
from walrq.queues.batch import BACKOFF, DELAYED, Batch, Lease, Origin, Run

if TYPE_CHECKING:
    from walrq.queues.machine import Machine
    from walrq.queues.queue import Queue

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


# --- beyond the horizon -------------------------------------------------------------------------------------
# The version of the state machine since which messages wait there.
FAR_SINCE: Final = 2


def is_far(m: Machine, queue: Queue, batch: Batch, offset: int, due_ms: int) -> bool:
    """Whether messages of a batch from `offset` on, due then, wait beyond the horizon.

    It shrinks to nothing while the hot window has no room for what is not due yet.
    """
    horizon_ms = m.bounds.far_horizon_ms
    if horizon_ms is None or m.version < FAR_SINCE:
        return False
    time_ms = _back_by(batch, due_ms)
    if time_ms - m.wall <= horizon_ms and (
        time_ms <= m.wall or m.tally.messages + batch.count <= m.window.pushed_messages
    ):
        return False
    return m.far.admits(time_ms, batch.id_of(queue.uid, offset))


def _back_by(batch: Batch, due_ms: int) -> int:
    """When it must be back: in time for the end of its life, so that it ends then and is counted until then."""
    return min(due_ms, batch.expire_ms) if batch.expire_ms else due_ms


def attempts_of(history: Iterable[Attempt]) -> list[Any]:
    """A history as plain values."""
    return [[a.at_ms, a.reason, a.worker, a.error_type, a.error_text] for a in history]


def open_attempts(raw: Iterable[Any]) -> tuple[Attempt, ...]:
    """Back from plain values."""
    return tuple(Attempt(*row) for row in raw)


def stretch(queue: Queue, run: Run, due_ms: int) -> Row:
    """A stretch of a batch that is being pushed, or a limbo run, as a row."""
    batch = run.batch
    sequence = batch.seq + run.first
    more: dict[int, Any] = {}
    origin = batch.origin
    if origin is not None:
        more[UID] = queue.uid
        more[SEQUENCE] = sequence
        more[ORIGIN] = [
            origin.delivery,
            origin.queue,
            origin.reason,
            origin.died_ms,
            attempts_of(origin.history),
            origin.attempts,
            origin.max_attempts,
        ]
    if run.order != sequence:
        more[ORDER] = run.order
    if run.group is not None:
        more[GROUP] = run.group
    if run.delivery:
        more[DELIVERY] = run.delivery
    if run.attempts:
        more[ATTEMPTS] = run.attempts
    if run.history:
        more[HISTORY] = attempts_of(run.history)
    time_ms = _back_by(batch, due_ms)
    if time_ms != due_ms:
        more[ROW_DUE] = due_ms
    return Row(
        time_ms,
        batch.id_of(queue.uid, run.first),
        batch.index,
        batch.ordinal,
        batch.base + run.first,
        run.last - run.first + 1,
        batch.total,
        batch.size,
        batch.priority,
        batch.max_attempts,
        batch.expire_ms,
        more,
    )


def put_far(m: Machine, queue: Queue, row: Row) -> None:
    """A row begins to wait."""
    # inv: Conservation
    queue.far_messages += row.count
    queue.far_bytes += row.weight
    m.far.blocks.add(row.index, 1)
    m.far.put(row)


def leave_far(m: Machine, queue: Queue, row: Row) -> None:
    """A row that was taken from the tail or a page waits no more; what becomes of it is the caller's."""
    queue.far_messages -= row.count
    queue.far_bytes -= row.weight
    m.far.blocks.add(row.index, -1)


def arrive(m: Machine, row: Row) -> int:
    """A row that has left comes back into its queue, unless that was emptied meanwhile or its life is over.

    Returns how many messages came.
    """
    queue = owner(m, row)
    if queue is None:
        # Emptied, and counted then; only the log did not know.
        m.far.blocks.add(row.index, -1)
        return 0
    leave_far(m, queue, row)
    if 0 < row.expire_ms <= m.wall:
        return 0
    settle_down(m, queue, row)
    return row.count


def owner(m: Machine, row: Row) -> Queue | None:
    """The queue that a row belongs to; None if it was emptied or deleted since."""
    queue = m.by_uid.get(row.uid)
    return queue if queue is not None and row.sequence >= queue.far_floor else None


def settle_down(m: Machine, queue: Queue, row: Row) -> Run:
    """Give a row that has left its place in the queue: ready if it is due, else delayed."""
    more = row.more
    batch, first = _batch_for(queue, row)
    order = more.get(ORDER, row.sequence)
    last = first + row.count - 1
    run = Run(batch, first, last, order, more.get(DELIVERY, 0), more.get(ATTEMPTS, 0), more.get(GROUP))
    run.history = open_attempts(more.get(HISTORY, ()))
    if row.due_ms > m.wall:
        # inv: DelayNotEarly
        queue.put_delayed(run, row.due_ms)
    else:
        queue.put_ready(run)
        m.effects.woken.add(queue.name)
    return run


def _batch_for(queue: Queue, row: Row) -> tuple[Batch, int]:
    """The batch that a row's messages belong to, and their first offset there: that of their siblings, if it is there,
    else one of their own."""
    batch = queue.find(row.sequence)
    if batch is not None and (batch.index, batch.ordinal) == (row.index, row.ordinal):
        first = row.sequence - batch.seq
        if first + row.count <= batch.count:
            queue.rejoin(batch, first, row.count)
            return batch, first
    batch = Batch(
        row.index,
        row.ordinal,
        row.base,
        row.count,
        row.total,
        row.size,
        row.sequence,
        row.priority,
        row.max_attempts,
        id_parts(row.first_id)[0],
        row.expire_ms,
    )
    if ORIGIN in row.more:
        delivery, name, reason, died_ms, history, attempts, max_attempts = row.more[ORIGIN]
        batch.origin = Origin(
            row.first_id, delivery, name, reason, died_ms, open_attempts(history), attempts, max_attempts
        )
    queue.add_batch(batch)
    return batch, 0


def empty_far(m: Machine, queue: Queue) -> int:
    """A queue is emptied: what of it waits beyond the horizon is gone. Returns how many messages.

    Rows in pages are found later (`sweep`): until then only their blocks of the log are still counted.
    """
    number = queue.far_messages
    if number:
        if m.far.pages:
            queue.far_floor = queue.next_seq
        for row in m.far.empty(queue.uid, queue.next_seq):
            m.far.blocks.add(row.index, -1)
        queue.far_messages = queue.far_bytes = 0
    return number
