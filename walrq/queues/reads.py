"""Looking without touching: peek, dead-letter listings, queue counts, messages without a body. Nothing here changes
the machine.

A page of messages is in order of sequence (dead ones: in order of death); its cursor is the sequence to go on from.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from walrq import api
from walrq.api import State
from walrq.far.rows import ATTEMPTS, DELIVERY, GROUP, HISTORY, ORIGIN, Row
from walrq.ids import id_parts
from walrq.limits import BATCH_MESSAGES_MAX, FRAME_BYTES_MAX
from walrq.queues import death
from walrq.queues.batch import BACKOFF, DELAYED, LEASED, PARKED, READY, Batch, Run
from walrq.queues.effects import Seen
from walrq.queues.queue import LIVE_SHIFT, PAGE_SHIFT, Queue
from walrq.queues.settings import as_dict
from walrq.queues.timers import open_attempts

if TYPE_CHECKING:
    from walrq.queues.machine import Machine

# Stories of one page: with as much again for bodies a reply stays within a frame.
STORIES_BYTES_MAX: Final = FRAME_BYTES_MAX // 4
_ROW_BYTES: Final = 200


_STATES = {
    State.READY: (READY,),
    State.DELAYED: (DELAYED, BACKOFF),
    State.LEASED: (LEASED,),
    State.PARKED: (PARKED,),
}


def peek(m: Machine, request: api.Peek, cold: Sequence[Batch] = ()) -> tuple[list[Seen], int]:
    """A page of messages of one state, and the cursor of the next page (0 at the end).

    Args:
        cold: batches of the queue that are not in memory, as many as a page may need, by sequence.

    Raises:
        QueueNotFound: no such queue.
    """
    if request.state == State.DEAD:
        return dead(m, api.ListDead(request.queue, request.limit, request.after))
    queue = m.require(request.queue)
    states = _STATES[request.state]
    seen: list[Seen] = []
    room = STORIES_BYTES_MAX
    hot = _batches_from(queue, max(0, request.after - BATCH_MESSAGES_MAX) >> PAGE_SHIFT)
    for batch in heapq.merge(hot, cold, key=lambda batch: batch.seq):
        if batch.seq + batch.count <= request.after:
            continue
        for run in death.visible_runs(batch):
            if run.state not in states:
                continue
            for offset in range(max(run.first, request.after - batch.seq), run.last + 1):
                if len(seen) == request.limit or room <= 0:
                    return seen, batch.seq + offset
                seen.append(_seen(m, queue, batch, run, offset, request.state))
                room -= _weight(seen[-1])
    return seen, 0


def _batches_from(queue: Queue, from_page: int) -> Iterator[Batch]:
    for page, batches in queue.pages.items():
        if page >= from_page:
            yield from batches.values()


def dead(m: Machine, request: api.ListDead, cold: Sequence[Batch] = ()) -> tuple[list[Seen], int]:
    """A page of the dead messages of a queue, in its dead-letter queue first, then the parked ones.

    The cursor counts matching messages.

    Args:
        cold: batches of the dead-letter queue that are not in memory, up to the end of the page, by sequence.
    """
    m.require(request.queue)
    ids = death.wanted(request.where)
    seen: list[Seen] = []
    position = 0
    room = STORIES_BYTES_MAX
    for queue, batch, run in death.dead_runs(m, request.queue, states=(READY, LEASED, DELAYED, BACKOFF), cold=cold):
        for offset in range(run.first, run.last + 1):
            if not death.matches(request.where, ids, batch, offset, queue.uid):
                continue
            position += 1
            if position <= request.after:
                continue
            if len(seen) == request.limit or room <= 0:
                return seen, position - 1
            seen.append(_seen(m, queue, batch, run, offset, State.DEAD))
            room -= _weight(seen[-1])
    return seen, 0


# The cursor of a page of far messages: this, and a place among them.
FAR_AFTER: Final = api.SINCE << 1


def by_sequence(
    near: Sequence[Seen], following: int, far: Iterable[tuple[Row, int, int]], limit: int
) -> tuple[list[Seen], int]:
    """A page of delayed messages, near and far, by sequence, and the cursor of the next page (0 at the end).

    Args:
        following: of `near`.
        far: rows and the first and last of their messages, from the same sequence on as `near`.
    """
    seen = list(near)
    for row, first, last in far:
        seen += far_seen(row, first, min(last, first + limit))
    seen.sort(key=lambda one: one.peeked.sequence)
    if following:
        seen = [one for one in seen if one.peeked.sequence < following]
    if len(seen) > limit:
        following = seen[limit].peeked.sequence
    return seen[:limit], following and api.SINCE + following


def far_seen(row: Row, first: int, last: int) -> list[Seen]:
    """Messages `first` .. `last` of a row that waits beyond the horizon, as peek shows delayed ones."""
    more = row.more
    _, origin, reason, died_ms, *story = more.get(ORIGIN, (0, None, None, 0))
    history = open_attempts(story[0] if reason is not None else more.get(HISTORY, ()))
    return [
        Seen(
            row.index,
            row.ordinal,
            row.base + offset,
            api.Peeked(
                id=row.first_id + offset,
                state=State.DELAYED,
                sequence=row.sequence + offset,
                priority=row.priority,
                delivery=more.get(DELIVERY, 0),
                attempts=more.get(ATTEMPTS, 0),
                pushed_ms=id_parts(row.first_id)[0],
                due_ms=row.due_ms,
                group=more.get(GROUP),
                payload=None,
                reason=reason,
                origin=origin,
                died_ms=died_ms,
                history=history,
            ),
        )
        for offset in range(first, last + 1)
    ]


def _weight(seen: Seen) -> int:
    """About how many bytes a message's story takes in a reply."""
    weight = _ROW_BYTES
    for attempt in seen.peeked.history:
        weight += _ROW_BYTES
        for text in (attempt.worker, attempt.error_type, attempt.error_text):
            if text is not None:
                weight += len(text.encode())
    return weight


def _seen(m: Machine, queue: Queue, batch: Batch, run: Run, offset: int, state: State) -> Seen:
    origin = batch.origin
    due_ms = 0
    if run.state == DELAYED:
        due_ms = run.deadline
    elif run.state == BACKOFF:
        due_ms = m.wall + run.deadline - m.now
    story = origin is not None and origin.reason is not None
    return Seen(
        batch.index,
        batch.ordinal,
        batch.base + offset,
        api.Peeked(
            id=batch.id_of(queue.uid, offset),
            state=state,
            sequence=batch.seq + offset,
            priority=batch.priority,
            delivery=run.delivery,
            # Of a dead message one wants to know how it came to die.
            attempts=origin.attempts if state == State.DEAD and origin is not None else run.attempts,
            pushed_ms=batch.pushed_ms,
            due_ms=due_ms,
            group=run.group,
            payload=None,
            deadline_in_ms=max(0, run.deadline - m.now) if run.state == LEASED else 0,
            reason=origin.reason if origin is not None else None,
            origin=origin.queue if origin is not None else None,
            died_ms=origin.died_ms if origin is not None else 0,
            history=origin.history if origin is not None and story else run.history,
        ),
    )


def show(m: Machine, name: str) -> api.QueueInfo:
    """Counts and settings.

    Raises:
        QueueNotFound: no such queue.
    """
    return _info(m, m.require(name))


@attrs.define
class Counts:
    """How many messages a queue has in each state; `target` is its dead-letter queue, None while that is not there."""

    ready: int
    delayed: int
    leased: int
    dead: int
    target: str | None


def counts(m: Machine, queue: Queue) -> Counts:
    """A queue's numbers, cheaply: for those who look at all queues."""
    target = death.target_name(queue)
    buried = m.queues.get(target) if target is not None else None
    return Counts(
        queue.ready + sum(cold.messages for cold in queue.cold.values()),
        queue.delayed + queue.far_messages,
        queue.leased,
        queue.parked + (buried.origins.get(queue.name, 0) if buried is not None else 0),
        target if buried is not None else None,
    )


def oldest_ms(queue: Queue) -> int:
    """Wall stamp of the push of the message with the lowest sequence, 0 when there is none."""
    for batches in queue.pages.values():
        for batch in batches.values():
            return batch.pushed_ms
    return 0


def _info(m: Machine, queue: Queue) -> api.QueueInfo:
    number = counts(m, queue)
    return api.QueueInfo(
        name=queue.name,
        uid=queue.uid,
        ready=number.ready,
        delayed=number.delayed,
        leased=number.leased,
        parked=queue.parked,
        dead=number.dead,
        bytes=queue.bytes + queue.far_bytes + sum(cold.bytes for cold in queue.cold.values()),
        oldest_ms=oldest_ms(queue),
        pushed=queue.pushed,
        delivered=queue.delivered,
        acked=queue.acked,
        settings=as_dict(queue.settings),
    )


def list_queues(m: Machine, request: api.ListQueues) -> api.QueueList:
    """A page of queues by name."""
    names = heapq.nsmallest(
        request.limit + 1,
        (name for name in m.queues if name.startswith(request.prefix) and name > request.after),
    )
    page = names[: request.limit]
    return api.QueueList(
        tuple(_info(m, m.queues[name]) for name in page), page[-1] if len(names) > request.limit else ""
    )


@attrs.define
class Lost:
    """Live messages of one queue that were pushed by entries first .. last, all of which are gone."""

    queue: str
    first: int
    last: int
    messages: int

    def __str__(self) -> str:
        return (
            f"{self.messages} live messages of queue {self.queue!r} have no record any more: a segment was lost;"
            " they are delivered as lost"
        )


def no_cold(queue: Queue, low: int, high: int) -> Sequence[Batch]:
    """What is cold, of a machine of which nothing is."""
    return ()


def lost_messages(
    m: Machine,
    ranges: Sequence[tuple[int, int]],
    through: int,
    cold: Callable[[Queue, int, int], Iterable[Batch]] = no_cold,
) -> list[Lost]:
    """Live messages whose segment was lost below the snapshot: one value per queue and hole of the log.

    The snapshot knows the messages, the log has their bodies; neither alone can tell.

    Args:
        ranges: (first, last) index of every segment, ascending and apart.
        through: the last index applied; nothing lives behind it.
        cold: reads the cold batches of a queue that entries of a span of indexes may have pushed.
    """
    holes: list[tuple[int, int]] = []
    # Index 0 is no entry.
    expected = 1
    for first, last in ranges:
        if first > expected:
            holes.append((expected, first - 1))
        expected = last + 1
    if expected <= through:
        holes.append((expected, through))
    starts = [first for first, _ in holes]

    def hole_of(index: int) -> int:
        """The position of the hole that `index` lies in; -1: it lies in a segment."""
        position = bisect_right(starts, index) - 1
        return position if position >= 0 and index <= holes[position][1] else -1

    def is_holed(block: int) -> bool:
        """Whether a hole begins, ends or lies around the block."""
        end = ((block + 1) << LIVE_SHIFT) - 1
        position = bisect_right(starts, end) - 1
        return position >= 0 and holes[position][1] >= block << LIVE_SHIFT

    # Nearly always nothing is lost, and no message has to be looked at.
    if not any(is_holed(block) for block in m.live_blocks):
        return []
    found: dict[tuple[str, int], Lost] = {}
    for queue in m.queues.values():
        beyond = [batch for low, high in holes for batch in cold(queue, low, high)] if queue.cold else []
        for batch in [*queue.batches(), *{id(batch): batch for batch in beyond}.values()]:
            hole = hole_of(batch.index)
            if hole < 0:
                continue
            lost = found.setdefault((queue.name, hole), Lost(queue.name, batch.index, batch.index, 0))
            lost.first = min(lost.first, batch.index)
            lost.last = max(lost.last, batch.index)
            lost.messages += batch.live
    return list(found.values())
