"""The hot window: which messages have their metadata in memory. It is part of the replicated state.

A push beyond the window leaves only counters per (queue, priority), a `Cold`; its metadata goes out as an effect, for
the node to keep on disk. Before the window runs dry the leader reads it back and proposes `Hydrate`, which every
replica applies. Behind a cold batch every later one of its priority is cold too, so order is kept. A push of higher
priority drives the newest untouched batches of a lower one out.

Batches with burned positions, with groups or with a delay stay hot: what tells their messages apart is not on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from walrq import api
from walrq.errors import InvalidArgument
from walrq.queues import commands
from walrq.queues.batch import Batch
from walrq.queues.commands import ColdBatch
from walrq.queues.lanes import Cold
from walrq.queues.queue import HEADER_PAGE, LIVE_SHIFT, PAGE_SHIFT, Queue

if TYPE_CHECKING:
    from walrq.queues.machine import Machine


def is_full(m: Machine, queue: Queue, messages: int, size: int) -> bool:
    """Whether the window has no room for so many more messages or bytes."""
    bounds = m.bounds
    return (
        (bounds.hot_messages_per_queue is not None and queue.length + messages > bounds.hot_messages_per_queue)
        or (bounds.hot_bytes_per_queue is not None and queue.bytes + size > bounds.hot_bytes_per_queue)
        or (bounds.hot_messages is not None and m.tally.messages + messages > bounds.hot_messages)
        or (bounds.hot_bytes is not None and m.tally.bytes + size > bounds.hot_bytes)
    )


def push_cold(m: Machine, queue: Queue, batch: Batch) -> bool:
    """Whether a new ready batch went cold instead of becoming hot; may drive others out to keep it hot."""
    priority = batch.priority
    if priority in queue.cold:
        _add(m, queue, batch)
        return True
    while is_full(m, queue, batch.count, batch.size):
        if not _evict(m, queue, priority):
            _add(m, queue, batch)
            return True
    return False


def _evict(m: Machine, queue: Queue, above: int) -> bool:
    """Drive the newest untouched batch of the lowest priority below `above` out; False when there is none."""
    for priority in queue.tops:
        if priority >= above:
            return False
        batch = queue.newest_untouched(priority)
        if batch is not None:
            queue.remove_fresh(batch)
            _add(m, queue, batch, newest=False)
            return True
    return False


def _add(m: Machine, queue: Queue, batch: Batch, *, newest: bool = True) -> None:
    queue.mark(HEADER_PAGE)
    cold = queue.cold.get(batch.priority)
    if cold is None:
        cold = queue.cold[batch.priority] = Cold()
        cold.floor = batch.seq - 1
    elif not newest:
        cold.floor = min(cold.floor, batch.seq - 1)
    cold.messages += batch.count
    cold.batches += 1
    cold.bytes += batch.size
    block = batch.index >> LIVE_SHIFT
    cold.blocks[block] = cold.blocks.get(block, 0) + 1
    m.live_blocks[block] = m.live_blocks.get(block, 0) + 1
    m.effects.cold.append(
        (
            queue.uid,
            batch.priority,
            ColdBatch(
                batch.index,
                batch.ordinal,
                batch.seq,
                batch.count,
                batch.size,
                batch.pushed_ms,
                None,
                batch.max_attempts,
                batch.expire_ms,
            ),
        )
    )


def hydrate(m: Machine, command: commands.Hydrate) -> api.Done:
    """Bring cold batches back into the window, in order. One that is hot already (a repeated proposal) is passed over.

    Raises:
        InvalidArgument: the queue holds fewer cold messages than the command brings; nothing is changed.
    """
    queue = m.by_uid.get(command.uid)
    cold = queue.cold.get(command.priority) if queue is not None else None
    if queue is None or cold is None:
        return api.Done(0)
    batches = [batch for batch in command.batches if batch.sequence > cold.floor]
    if sum(batch.count for batch in batches) > cold.messages or len(batches) > cold.batches:
        raise InvalidArgument("hydrate brings more messages than the queue has cold")
    queue.mark(HEADER_PAGE)
    hydrated = 0
    for row in batches:
        assert row.sequence > cold.floor, "hydrate goes in order"
        cold.floor = row.sequence + row.count - 1
        cold.messages -= row.count
        cold.batches -= 1
        cold.bytes -= row.size
        hydrated += row.count
        _unblock(cold.blocks, row.index >> LIVE_SHIFT)
        if not 0 < row.expire_ms <= m.wall:
            batch = Batch(
                row.index,
                row.ordinal,
                0,
                row.count,
                row.count,
                row.size,
                row.sequence,
                command.priority,
                row.max_attempts,
                row.pushed_ms,
                row.expire_ms,
            )
            queue.add_batch(batch)
            queue.put_fresh(batch)
            m.effects.woken.add(queue.name)
        _unblock(m.live_blocks, row.index >> LIVE_SHIFT)
    if not cold.batches:
        del queue.cold[command.priority]
    queue.keep_order({row.sequence >> PAGE_SHIFT for row in batches})
    return api.Done(hydrated)


def forget(m: Machine, queue: Queue) -> int:
    """Drop everything cold of a queue (purge, delete). Returns how many messages."""
    number = sum(cold.messages for cold in queue.cold.values())
    for cold in queue.cold.values():
        for block, batches in cold.blocks.items():
            for _ in range(batches):
                _unblock(m.live_blocks, block)
    if queue.cold:
        queue.mark(HEADER_PAGE)
        queue.cold.clear()
    return number


def _unblock(blocks: dict[int, int], block: int) -> None:
    left = blocks[block] - 1
    if left:
        blocks[block] = left
    else:
        del blocks[block]
