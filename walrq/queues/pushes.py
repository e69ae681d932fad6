"""Taking messages in: pushes with their delays, groups, dedup ids and length limits; moves between queues."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from walrq import api
from walrq.errors import DelayTooLong, Overloaded, QueueFull
from walrq.ids import message_id
from walrq.limits import BATCH_MESSAGES_MAX, DELAY_MS_MAX, POLL_BYTES_MAX
from walrq.queues import commands, death, horizon, timers
from walrq.queues.batch import READY, Batch, Origin, Run
from walrq.queues.effects import Grant
from walrq.queues.queue import Queue
from walrq.queues.settings import DEFAULTS

if TYPE_CHECKING:
    from walrq.queues.machine import Machine

# Expired dedup ids dropped per new one: the table shrinks as fast as it grows, without a sweep.
_DEDUP_SWEEP = 4
# Dropped when the bound is reached: room for any batch, in a few ms.
_DEDUP_SWEEP_AT_BOUND = BATCH_MESSAGES_MAX


def push(m: Machine, command: commands.Push) -> api.Pushed:
    """Append a batch."""
    if not command.counted:
        return _push(m, command)
    pushed = _push(m, command)
    if command.delay_ms is not None:
        m.tally.delayed_taken += pushed.count
        number = m.tally.delayed_taken
    else:
        queue = m.queues[command.queue]
        number = queue.ready + sum(cold.messages for cold in queue.cold.values())
    return api.Pushed(pushed.first_id, pushed.count, pushed.ids, pushed.duplicates, number)


def _push(m: Machine, command: commands.Push) -> api.Pushed:
    columns = command.columns
    queue = m.queues.get(command.queue)
    settings = DEFAULTS if queue is None else queue.settings
    due = _due(m, command, settings.delay_ms)
    if queue is None:
        queue = m.create(command.queue)
    number = len(columns.ends) >> 2
    known: dict[int, int] | None = None
    if columns.dedup is not None:
        known = _dedup_hits(m, queue, columns.dedup)
    size = columns.size
    if settings.max_length is not None or settings.max_bytes is not None:
        _make_room(m, queue, number, size, known)
    seq = queue.take_sequences(number)
    wall = m.wall
    first_id = message_id(wall, queue.uid, seq)
    life = _life(command.ttl_ms, settings.retention_ms)
    batch = Batch(
        m.index,
        m.ordinal,
        0,
        number,
        number,
        size,
        seq,
        command.priority,
        command.max_attempts or 0,
        wall,
        wall + life if life is not None else 0,
    )
    queue.pushed += number - len(known or ())
    if known is not None:
        assert columns.dedup is not None
        _remember_ids(m, queue, columns.dedup, known, first_id)
    if not known and columns.groups is None and due <= wall:
        # The window is asked only where it may be full: see `horizon.is_full`.
        tally, window = m.tally, m.window
        if (
            tally.messages + number > window.pushed_messages
            or tally.bytes + size > window.pushed_bytes
            or queue.cold
            or queue.windowed
        ) and horizon.admit(m, queue, batch):
            return api.Pushed(first_id, number)
        queue.add_batch(batch)
        queue.put_fresh(batch)
        m.effects.woken.add(queue.name)
        return api.Pushed(first_id, number)
    _place(m, queue, batch, columns.groups, known, due)
    if not known:
        return api.Pushed(first_id, number)
    ids = tuple(known.get(position, first_id + position) for position in range(number))
    return api.Pushed(first_id, number, ids, tuple(sorted(known)))


def _due(m: Machine, command: commands.Push, default_ms: int) -> int:
    if command.deliver_at_ms is not None:
        due = command.deliver_at_ms
    else:
        due = m.wall + (command.delay_ms if command.delay_ms is not None else default_ms)
    check_horizon(m, due)
    return due


def check_horizon(m: Machine, due_ms: int) -> None:
    """Refuse what lies more than 30 days ahead."""
    if due_ms - m.wall > DELAY_MS_MAX:
        raise DelayTooLong(
            f"the message would be due in {due_ms - m.wall} ms, allowed are {DELAY_MS_MAX} ms (30 days)",
            limit=DELAY_MS_MAX,
        )


def _life(ttl_ms: int | None, retention_ms: int | None) -> int | None:
    if ttl_ms is None:
        return retention_ms
    return ttl_ms if retention_ms is None else min(ttl_ms, retention_ms)


def _dedup_hits(m: Machine, queue: Queue, keys: tuple[str | None, ...]) -> dict[int, int]:
    """Position -> old id of every hit; -1 - k for a duplicate of position k of the same batch. Changes nothing."""
    now = m.now
    hits: dict[int, int] = {}
    inside: dict[str, int] = {}
    for position, key in enumerate(keys):
        if key is None:
            continue
        entry = queue.dedup.get(key)
        if entry is not None and entry[0] > now:
            hits[position] = entry[1]
        elif key in inside:
            hits[position] = -1 - inside[key]
        else:
            inside[key] = position
    if m.dedup_ids + len(inside) > m.bounds.dedup_ids_max:
        _drop_ended_ids(m)
    if m.dedup_ids + len(inside) > m.bounds.dedup_ids_max:
        raise Overloaded(
            f"{m.dedup_ids} deduplication ids are remembered, allowed are {m.bounds.dedup_ids_max}",
            limit="dedup_ids_max",
        )
    return hits


def _drop_ended_ids(m: Machine) -> None:
    """At the bound: forget ids whose window is over, in whatever queue, else an idle queue's would refuse for ever."""
    left = _DEDUP_SWEEP_AT_BOUND
    for uid in sorted(m.by_uid):
        queue = m.by_uid[uid]
        table = queue.dedup
        while table:
            oldest = next(iter(table))
            if table[oldest][0] > m.now:
                break
            if not left:
                return
            left -= 1
            queue.mark_dedup(oldest)
            del table[oldest]
            m.dedup_ids -= 1


def _remember_ids(m: Machine, queue: Queue, keys: tuple[str | None, ...], known: dict[int, int], first_id: int) -> None:
    """Record the new ids and resolve duplicates inside the batch."""
    now = m.now
    end = now + queue.settings.dedup_window_ms
    table = queue.dedup
    for position, key in enumerate(keys):
        if key is None:
            continue
        if position in known:
            if known[position] < 0:
                known[position] = first_id + (-1 - known[position])
            continue
        queue.mark_dedup(key)
        if key in table:
            del table[key]
        else:
            m.dedup_ids += 1
        table[key] = (end, first_id + position)
        for _ in range(_DEDUP_SWEEP):
            oldest = next(iter(table))
            if table[oldest][0] > now:
                break
            queue.mark_dedup(oldest)
            del table[oldest]
            m.dedup_ids -= 1


def _place(
    m: Machine,
    queue: Queue,
    batch: Batch,
    groups: tuple[str | None, ...] | None,
    burned: dict[int, int] | None,
    due: int,
) -> None:
    """One run per stretch of equal group without burned positions."""
    stretches: list[tuple[int, int, str | None]] = []
    number = batch.count
    first = 0
    while first < number:
        if burned and first in burned:
            first += 1
            continue
        group = groups[first] if groups is not None else None
        last = first
        while (
            last + 1 < number and not (burned and last + 1 in burned) and (groups is None or groups[last + 1] == group)
        ):
            last += 1
        stretches.append((first, last, group))
        first = last + 1
    if not stretches:
        return
    if due > m.wall and timers.is_far(m, queue, batch, stretches[0][0], due):
        for first, last, group in stretches:
            run = Run(batch, first, last, batch.seq + first, 0, 0, group)
            timers.put_far(m, queue, timers.stretch(queue, run, due))
        return
    runs = [Run(batch, first, last, batch.seq + first, 0, 0, group) for first, last, group in stretches]
    if due <= m.wall and horizon.is_windowed(m, queue) and horizon.admit(m, queue, batch, runs):
        return
    queue.add_batch(batch)
    for position in sorted(burned or ()):
        queue.burn(batch, position, position)
    if due <= m.wall and stretches == [(0, number - 1, None)]:
        queue.put_fresh(batch)
    else:
        for run in runs:
            if due > m.wall:
                queue.put_delayed(run, due)
            else:
                queue.put_ready(run)
    if due <= m.wall:
        m.effects.woken.add(queue.name)


def _make_room(m: Machine, queue: Queue, number: int, size: int, known: dict[int, int] | None) -> None:
    """Hold the queue's length limits, or refuse the whole batch."""
    settings = queue.settings
    adding = number - len(known or ())
    if not adding:
        # Nothing new: the old ids are the answer, however full the queue is.
        return
    burned = sum(size * (position + 1) // number - size * position // number for position in known or ())
    adding_bytes = size - burned
    over = _over(queue, adding, adding_bytes)
    if over is None:
        return
    if settings.overflow == "drop_oldest" and not _too_big(queue, adding, adding_bytes):
        plan, messages, left = _oldest_ready(queue, adding, adding_bytes)
        if (messages <= 0 and left <= 0) or horizon.owe(queue, messages, left):
            for batch, first, last in plan:
                queue.finish(death.taken(queue, batch, first, last))
            return
    raise QueueFull(over, queue=queue.name)


def _held(queue: Queue) -> tuple[int, int]:
    """Messages and bytes of a queue, those outside the hot window and beyond the horizon included."""
    return (
        queue.length + queue.far_messages + sum(cold.messages for cold in queue.cold.values()),
        queue.bytes + queue.far_bytes + sum(cold.bytes for cold in queue.cold.values()),
    )


def _over(queue: Queue, adding: int, adding_bytes: int) -> str | None:
    settings = queue.settings
    length, held = _held(queue)
    if settings.max_length is not None and length + adding > settings.max_length:
        return f"max_length: {length} messages and {adding} more exceed {settings.max_length}"
    if settings.max_bytes is not None and held + adding_bytes > settings.max_bytes:
        return f"max_bytes: {held} bytes and {adding_bytes} more exceed {settings.max_bytes}"
    return None


def _too_big(queue: Queue, adding: int, adding_bytes: int) -> bool:
    settings = queue.settings
    return (settings.max_length is not None and adding > settings.max_length) or (
        settings.max_bytes is not None and adding_bytes > settings.max_bytes
    )


def _oldest_ready(queue: Queue, adding: int, adding_bytes: int) -> tuple[list[tuple[Batch, int, int]], int, int]:
    """The hot ready messages of lowest sequence that must go, as (batch, first, last); and how many messages and bytes
    must go beside them.

    Nothing is changed, so that a refusal drops nothing; and nothing is walked beyond what goes.
    """
    settings = queue.settings
    length, held = _held(queue)
    messages = length + adding - settings.max_length if settings.max_length is not None else 0
    size = held + adding_bytes - settings.max_bytes if settings.max_bytes is not None else 0
    plan: list[tuple[Batch, int, int]] = []
    for batch in queue.batches():
        for run in death.visible_runs(batch):
            if run.state != READY:
                continue
            for offset in range(run.first, run.last + 1):
                messages -= 1
                size -= batch.bytes_of(offset, offset)
                if messages <= 0 and size <= 0:
                    plan.append((batch, run.first, offset))
                    return plan, 0, 0
            plan.append((batch, run.first, run.last))
    return plan, messages, size


def move(m: Machine, command: commands.Move) -> api.Moved:
    """Move what a poll would take next behind another queue's messages, atomically."""
    source = m.require(command.source)
    moved = _move(m, source, command.target, command.limit, lambda run: None)
    return api.Moved(moved, source.takeable() > 0)


def hand_on(m: Machine, source: Queue, name: str, limit: int) -> list[Grant]:
    """As `move`, for a poll that passes messages on instead of leasing them: what moved, for its answer."""
    if not source.takeable():
        return []
    grants: list[Grant] = []

    def note(run: Run) -> None:
        batch = run.batch
        grants.append(
            Grant(
                source.name,
                source.uid,
                0,
                batch.index,
                batch.ordinal,
                batch.base + run.first,
                run.last - run.first + 1,
                batch.id_of(source.uid, run.first),
                run.delivery,
                run.attempts,
                (m.index, m.ordinal),
                batch.priority,
                batch.pushed_ms,
                run.group,
            )
        )

    _move(m, source, name, limit, note)
    return grants


def _move(m: Machine, source: Queue, name: str, limit: int, note: Callable[[Run], None]) -> int:
    """Move up to `limit` messages behind those of queue `name`; each run is shown to `note` before it leaves."""
    target = m.queues.get(name)
    if target is not None and target is not source:
        _check_room(source, target, limit)
    into = m.create(name) if target is None else target

    def place(run: Run) -> None:
        note(run)
        origin = Origin(run.batch.id_of(source.uid, run.first), run.delivery)
        death.transfer(m, source, run, into, origin, moved_on=True)

    return source.take(min(limit, source.takeable()), POLL_BYTES_MAX, place)


def _check_room(source: Queue, target: Queue, limit: int) -> None:
    """Refuse a move that the target's length limits do not allow as a whole."""
    max_length, max_bytes = target.settings.max_length, target.settings.max_bytes
    number = min(limit, source.takeable())
    length, held = _held(target)
    if max_length is not None and number and length + number > max_length:
        text = f"max_length: {length} messages and {number} more exceed {max_length}"
        raise QueueFull(text, queue=target.name)
    if max_bytes is not None and number:
        size = sum(batch.bytes_of(offset, offset) for batch, offset in islice(source.upcoming(), number))
        if held + size > max_bytes:
            text = f"max_bytes: {held} bytes and {size} more exceed {max_bytes}"
            raise QueueFull(text, queue=target.name)
