"""Puts what an image holds back where it stood. Turns and timers follow from the caller (`image.py`)."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict

from walrq.queues.batch import DELAYED, LEASED, PARKED, READY, Batch, Lease, Run
from walrq.queues.lanes import Group, Level, tie
from walrq.queues.queue import Queue


def discount(queue: Queue, batch: Batch, live: int) -> None:
    """A restored batch has only `live` messages left; which ones is said by what is restored next."""
    gone = batch.count - live
    if not gone:
        return
    batch.live = live
    origin = batch.origin
    if origin is not None and origin.queue is not None:
        queue.origins[origin.queue] -= gone
    size = batch.bytes_of(0, batch.count - 1)
    queue.bytes -= size
    queue.tally.bytes -= size
    queue.tally.messages -= gone


def restore_run(queue: Queue, run: Run, state: int, deadline: int, lease: Lease | None) -> None:
    """Put a restored run where it stood. Turns and timers are restored by the caller."""
    batch = run.batch
    queue.add_piece(run)
    run.state = state
    run.deadline = deadline
    number = run.last - run.first + 1
    if batch.live != batch.count:
        size = batch.bytes_of(run.first, run.last)
        queue.bytes += size
        queue.tally.bytes += size
    group: Group | None = None
    if run.group is not None and state != PARKED and state != DELAYED:
        group = queue.groups.get(run.group)
        if group is None:
            group = queue.groups[run.group] = Group(run.group)
    if state == READY:
        queue.ready += number
        if group is not None:
            group.ready += number
            heapq.heappush(group.heap, (run.order, next(tie), run))
        else:
            level = queue.levels.get(batch.priority)
            if level is None:
                level = queue.levels[batch.priority] = Level()
                insort(queue.tops, batch.priority)
            level.ready += number
            heapq.heappush(level.returned, (run.order, next(tie), run))
    elif state == LEASED:
        assert lease is not None
        queue.leased += number
        run.lease = lease
        lease.runs.append(run)
        if group is not None:
            group.in_flight += number
    elif state == PARKED:
        queue.parked += number
        queue.parked_runs[run.order] = run
    else:
        queue.delayed += number
        if group is not None:
            group.waiting += number


def restore_turns(queue: Queue, rows: list[tuple[int, list[str | None]]]) -> None:
    """The rotation as it was."""
    for priority, lanes in rows:
        queue.rotation[priority] = OrderedDict.fromkeys(lanes)
        for lane in lanes:
            if lane is not None:
                queue.groups[lane].turn = priority


def restore_ready(queue: Queue, batch: Batch) -> None:
    """Put the fresh rest of a restored batch where it stood (batches come in order of sequence)."""
    number = batch.count - batch.cursor
    queue.ready += number
    if batch.live != batch.count:
        size = batch.bytes_of(batch.cursor, batch.count - 1)
        queue.bytes += size
        queue.tally.bytes += size
    level = queue.levels.get(batch.priority)
    if level is None:
        level = queue.levels[batch.priority] = Level()
        insort(queue.tops, batch.priority)
    level.ready += number
    level.fresh.append(batch)
