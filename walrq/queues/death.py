"""Dead messages: buried in a dead-letter queue or parked, listed, driven back, removed.

The move happens in the very entry in which the limit was reached, so a message is never in two places or none. A
dead-letter queue is a queue like any other; a message in it keeps its id and carries its story (`Origin`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from walrq import api
from walrq.api import Filter
from walrq.errors import InvalidQueueName, WalrqError
from walrq.ids import check_queue_name
from walrq.queues import commands, horizon
from walrq.queues.batch import PARKED, READY, Batch, Origin, Run
from walrq.queues.queue import HEADER_PAGE, Queue
from walrq.queues.settings import DLQ_NONE

if TYPE_CHECKING:
    from walrq.queues.machine import Machine

DLQ_SUFFIX = ".dlq"


def target_name(queue: Queue) -> str | None:
    """Name of the dead-letter queue, None when dead messages are parked for good."""
    name = queue.settings.dlq
    if name is None:
        try:
            return check_queue_name(queue.name + DLQ_SUFFIX)
        except InvalidQueueName:
            # The queue's own name leaves no room for the suffix.
            return None
    return None if name == DLQ_NONE else name


def bury(m: Machine, queue: Queue, run: Run, reason: str) -> None:
    """Move a limbo run to the dead-letter queue, or park it."""
    # inv: DlqExact  (in the entry that reached the limit, to one place, with its reason)
    if m.notes is not None:
        m.notes.append(("dead", queue.name, None, run.last - run.first + 1))
    name = target_name(queue)
    target = m.queues.get(name) if name is not None else None
    if target is None and name is not None and not queue.dlq_seen:
        try:
            target = m.create(name)
        except WalrqError:
            # No room for another queue: parked, visible, never dropped.
            target = None
    origin = Origin(
        run.batch.id_of(queue.uid, run.first),
        run.delivery,
        queue.name,
        reason,
        m.wall,
        run.history,
        run.attempts,
        run.batch.max_attempts,
    )
    if target is None:
        park(m, queue, run, origin)
        return
    if not queue.dlq_seen:
        queue.mark(HEADER_PAGE)
        queue.dlq_seen = True
    transfer(m, queue, run, target, origin)


def park(m: Machine, queue: Queue, run: Run, origin: Origin) -> None:
    """Keep a dead limbo run in its own queue, as a batch of its own, so that its story has a place."""
    batch = _moved_batch(queue, run, queue, origin)
    batch.expire_ms = run.batch.expire_ms
    queue.add_batch(batch)
    parked = Run(batch, 0, batch.count - 1, batch.seq, run.delivery, run.attempts, run.group)
    parked.history = run.history
    queue.finish(run)
    queue.put_parked(parked)
    m.parked.add(queue.uid)


def _moved_batch(queue: Queue, run: Run, target: Queue, origin: Origin) -> Batch:
    old = run.batch
    count = run.last - run.first + 1
    batch = Batch(
        old.index,
        old.ordinal,
        old.base + run.first,
        count,
        old.total,
        old.size,
        target.take_sequences(count),
        old.priority,
        0,
        old.pushed_ms,
        0,
    )
    batch.origin = origin
    return batch


def transfer(
    m: Machine,
    queue: Queue,
    run: Run,
    target: Queue,
    origin: Origin,
    *,
    moved_on: bool = False,
    max_attempts: int = 0,
) -> None:
    """A limbo run of `queue` becomes a batch of its own at the end of `target`, ready at once.

    `moved_on`: still alive, so its attempts and what its producer said of attempts and time to live go with it.
    `max_attempts`: what holds from now on of one that comes back to life; 0 = the queue's setting.
    """
    batch = _moved_batch(queue, run, target, origin)
    batch.max_attempts = max_attempts
    attempts = run.attempts if moved_on else 0
    ends = [m.wall + target.settings.retention_ms] if target.settings.retention_ms is not None else []
    if moved_on:
        batch.max_attempts = run.batch.max_attempts
        if run.batch.expire_ms:
            ends.append(run.batch.expire_ms)
    if ends:
        batch.expire_ms = min(ends)
    moved: Run | None = None
    if run.group is not None or attempts:
        moved = Run(batch, 0, batch.count - 1, batch.seq, run.delivery, attempts, run.group)
        moved.history = run.history if attempts else ()
    if not (horizon.is_windowed(m, target) and horizon.admit(m, target, batch, None if moved is None else [moved])):
        target.add_batch(batch)
        if moved is None:
            target.put_fresh(batch)
        else:
            target.put_ready(moved)
    queue.finish(run)
    m.effects.woken.add(target.name)


def send_behind(m: Machine, queue: Queue, run: Run) -> None:
    """A limbo run of a lane of which something is cold goes behind all of it, with its id and its history."""
    old = run.batch
    story = old.origin
    first_id = old.id_of(queue.uid, run.first)
    if story is None:
        origin = Origin(first_id, run.delivery)
    else:
        origin = Origin(
            first_id,
            run.delivery,
            story.queue,
            story.reason,
            story.died_ms,
            story.history,
            story.attempts,
            story.max_attempts,
        )
    batch = _moved_batch(queue, run, queue, origin)
    batch.max_attempts = old.max_attempts
    batch.expire_ms = old.expire_ms
    moved = Run(batch, 0, batch.count - 1, batch.seq, run.delivery, run.attempts, run.group)
    moved.history = run.history
    is_cold = horizon.admit(m, queue, batch, [moved])
    assert is_cold, "a lane with something cold takes nothing hot"
    queue.finish(run)


def matches(where: Filter | None, ids: Collection[int] | None, batch: Batch, offset: int, uid: int) -> bool:
    """Whether the dead message at `offset` meets every part of a filter; `ids` are the filter's, as `wanted` gives."""
    if where is None:
        return True
    origin = batch.origin
    assert origin is not None
    last = origin.history[-1] if origin.history else None
    if where.reason is not None and where.reason != origin.reason:
        return False
    if where.error_type is not None and (last is None or where.error_type != last.error_type):
        return False
    if where.error_contains is not None and (
        last is None or last.error_text is None or where.error_contains not in last.error_text
    ):
        return False
    return ids is None or batch.id_of(uid, offset) in ids


def wanted(where: Filter | None) -> Collection[int] | None:
    """The ids of a filter for many look-ups; None when it names none."""
    return frozenset(where.ids) if where is not None and where.ids is not None else None


def dead_runs(
    m: Machine, name: str, *, states: tuple[int, ...] = (READY,), cold: Sequence[Batch] = ()
) -> Iterator[tuple[Queue, Batch, Run]]:
    """Dead messages of the queue `name`: those in its dead-letter queue by sequence, then its parked ones in order of
    death. Pieces of batches that were touched before; fresh ones as a run that stands for the fresh rest. With those
    batches of the dead-letter queue that are `cold`, by sequence."""
    queue = m.queues.get(name)
    target = target_name(queue) if queue is not None else None
    buried = m.queues.get(target) if target is not None else None
    if buried is not None and buried.origins.get(name):
        for batch in heapq.merge(buried.batches(), cold, key=lambda batch: batch.seq):
            if batch.origin is not None and batch.origin.queue == name and batch.live:
                for run in visible_runs(batch):
                    if run.state in states:
                        yield buried, batch, run
    if queue is not None:
        for order in sorted(queue.parked_runs):
            run = queue.parked_runs[order]
            yield queue, run.batch, run


def visible_runs(batch: Batch) -> list[Run]:
    """The runs of a batch by offset, without changing it: the fresh rest as a run of its own."""
    runs = list(batch.pieces.values()) if batch.pieces else []
    if batch.fresh:
        delivery = 0 if batch.origin is None else batch.origin.delivery
        rest = Run(batch, batch.cursor, batch.count - 1, batch.seq + batch.cursor, delivery, 0, None)
        rest.state = READY
        runs.append(rest)
    return sorted(runs, key=lambda run: run.first)


def _selected(
    m: Machine, name: str, where: Filter | None, limit: int | None
) -> tuple[list[tuple[Queue, Batch, int, int]], bool]:
    """(stretches of matching dead messages, whether more are left)."""
    found: list[tuple[Queue, Batch, int, int]] = []
    left = limit if limit is not None else -1
    ids = wanted(where)
    for queue, batch, run in dead_runs(m, name):
        first: int | None = None
        for offset in range(run.first, run.last + 2):
            inside = offset <= run.last and matches(where, ids, batch, offset, queue.uid)
            if inside and left == 0:
                if first is not None:
                    found.append((queue, batch, first, offset - 1))
                return found, True
            if inside:
                left -= 1
                if first is None:
                    first = offset
            elif first is not None:
                found.append((queue, batch, first, offset - 1))
                first = None
    return found, False


def taken(queue: Queue, batch: Batch, first: int, last: int) -> Run:
    """First..last of a batch, which stand in one visible run, as a limbo run."""
    queue.detach(batch)
    assert batch.pieces is not None
    run = batch.piece_at(first)
    assert run is not None and last <= run.last
    return queue.carve(run, first, last)


def count_matching(m: Machine, request: api.Redrive) -> api.Moved:
    """What `redrive` would move (a dry run)."""
    m.require(request.queue)
    found, more = _selected(m, request.queue, request.where, request.limit)
    return api.Moved(sum(last - first + 1 for _, _, first, last in found), more)


def redrive(m: Machine, command: commands.Redrive) -> api.Moved:
    """Back behind the waiting work, in order of death, attempts at 0, with as many allowed as its producer said."""
    queue = m.require(command.queue)
    target = m.require(command.target) if command.target is not None else queue
    found, more = _selected(m, command.queue, command.where, command.limit)
    more = more or command.more
    moved = 0
    for source, batch, first, last in found:
        run = taken(source, batch, first, last)
        assert batch.origin is not None
        origin = Origin(batch.id_of(source.uid, first), run.delivery)
        transfer(m, source, run, target, origin, max_attempts=batch.origin.max_attempts)
        moved += last - first + 1
    _forget_parked(m, queue)
    return api.Moved(moved, more)


def purge_dead(m: Machine, command: commands.PurgeDead) -> api.Done:
    """Remove matching dead messages."""
    queue = m.require(command.queue)
    found, _ = _selected(m, command.queue, command.where, None)
    removed = 0
    for source, batch, first, last in found:
        source.finish(taken(source, batch, first, last))
        removed += last - first + 1
    _forget_parked(m, queue)
    return api.Done(removed)


def _forget_parked(m: Machine, queue: Queue) -> None:
    if not queue.parked_runs:
        m.parked.discard(queue.uid)


def flowing(m: Machine) -> list[tuple[Queue, Queue]]:
    """Queues whose parked messages have a dead-letter queue again, by uid, with that queue."""
    pairs = []
    for uid in sorted(m.parked):
        queue = m.by_uid[uid]
        name = target_name(queue)
        target = m.queues.get(name) if name is not None else None
        if target is not None:
            pairs.append((queue, target))
    return pairs


def flow(m: Machine, budget: int) -> None:
    """Move up to `budget` parked runs on."""
    for queue, target in flowing(m):
        for order in sorted(queue.parked_runs)[:budget]:
            run = queue.parked_runs[order]
            assert run.state == PARKED
            origin = run.batch.origin
            assert origin is not None
            kept = Origin(
                run.batch.id_of(queue.uid, run.first),
                run.delivery,
                queue.name,
                origin.reason,
                origin.died_ms,
                origin.history,
                origin.attempts,
                origin.max_attempts,
            )
            queue.withdraw(run)
            transfer(m, queue, run, target, kept)
            budget -= 1
        if not queue.dlq_seen:
            queue.mark(HEADER_PAGE)
            queue.dlq_seen = True
        _forget_parked(m, queue)
        if not budget:
            return
