"""The hot window: which messages have their metadata in memory. It is part of the replicated state.

A batch that does not fit becomes *cold*: its row (`batch.batch_row`) goes behind the others of its lane, and all that
stays in memory of it are counters. Long stretches of rows are sealed and are pages of the image from then on, on disk
only (`lanes.Cold`). Before the window runs dry the leader reads the next stretch back and proposes `Hydrate`, which
every replica applies.

A lane is what must come back in order: the ungrouped messages of one priority, or all grouped messages of a queue
(inside a group priorities count for nothing). Behind a cold batch every later one of its lane is cold too; a ready run
that stands beyond that border (its delay is over, it failed) waits there. A push of higher priority drives the newest
untouched ungrouped batches of a lower one out.

Out of turn comes only what somebody names (`Hydrate.picked`): to cancel it, to drive it back, or because its time to
live is over. Only ready messages are ever cold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import cbor2

from walrq import api
from walrq.errors import InvalidArgument
from walrq.ids import id_parts
from walrq.queues import commands
from walrq.queues.batch import READY, UNTOUCHED_FIELDS, Batch, Origin, Run, batch_row, open_attempts
from walrq.queues.lanes import FRONT, GROUPED, SEALED_FIRST, TAIL, Cold, Stretch, cold_page, page_of, rows_of
from walrq.queues.queue import HEADER_PAGE, LIVE_SHIFT, PAGE_SHIFT, Queue

if TYPE_CHECKING:
    from walrq.queues.machine import Machine

# A stretch is sealed at so many rows: an eighth of its lane, so that what grows stays a small share of what is cold.
STRETCH_ROWS_MIN: Final = 16
STRETCH_ROWS_MAX: Final = 512
_LANE_SHARE: Final = 8
# Or at so many messages, for it comes back whole: a sixteenth of the window.
STRETCH_MESSAGES_MAX: Final = 4_096
_WINDOW_SHARE: Final = 16
# Or at so many bytes: groups and histories make rows long.
STRETCH_BYTES_MAX: Final = 256 * 1024


# --- out of the window --------------------------------------------------------------------------------------
def admit(m: Machine, queue: Queue, batch: Batch, runs: Sequence[Run] | None = None) -> bool:
    """Whether a new ready batch went cold instead of becoming hot; may drive others out to keep it hot.

    Args:
        batch: not yet in the queue.
        runs: all that is ready of it, in no state yet; None: the whole batch is fresh.
    """
    lane = _lane_of(queue, batch, runs)
    if lane not in queue.cold and _fits(m, queue, batch, lane):
        return False
    if runs is not None:
        _hold(batch, runs)
    else:
        batch.fresh = True
    _add(m, queue, lane, batch)
    return True


def is_windowed(m: Machine, queue: Queue) -> bool:
    """Whether `admit` may have something to do. The hot path asks the like of it by itself."""
    return bool(queue.cold) or queue.windowed or m.window.messages is not None or m.window.bytes is not None


def _lane_of(queue: Queue, batch: Batch, runs: Sequence[Run] | None) -> int:
    if runs is not None and any(run.group is not None for run in runs):
        return GROUPED
    grouped = queue.cold.get(GROUPED)
    return GROUPED if grouped is not None and batch.priority in grouped.mixed else batch.priority


def _hold(batch: Batch, runs: Sequence[Run]) -> None:
    """Enter ready runs of a batch that is in no queue."""
    batch.pieces = {run.first: run for run in runs}
    batch.fresh = False
    batch.live = sum(run.last - run.first + 1 for run in runs)
    for run in runs:
        run.state = READY


def is_full(m: Machine, queue: Queue, messages: int, size: int) -> bool:
    """Whether pushes have no room in the window for so many more messages or bytes."""
    settings, window, tally = queue.settings, m.window, m.tally
    return (
        (settings.max_hot_messages is not None and queue.length + messages > settings.max_hot_messages)
        or (settings.max_hot_bytes is not None and queue.bytes + size > settings.max_hot_bytes)
        or tally.messages + messages > window.pushed_messages
        or tally.bytes + size > window.pushed_bytes
    )


def hot_ready(queue: Queue, lane: int) -> int:
    """Ready messages of a lane that are in the window."""
    if lane != GROUPED:
        level = queue.levels.get(lane)
        return level.ready if level is not None else 0
    return queue.ready - sum(level.ready for level in queue.levels.values())


def _fits(m: Machine, queue: Queue, batch: Batch, lane: int) -> bool:
    while is_full(m, queue, batch.live, batch.size):
        if not _evict(m, queue, batch.priority):
            # A lane of which nothing is hot may always have something: else it would wait for others' consumers.
            return not hot_ready(queue, lane)
    return True


def _evict(m: Machine, queue: Queue, above: int) -> bool:
    """Drive the newest untouched batch of the lowest priority below `above` out; False when there is none."""
    for priority in queue.tops:
        if priority >= above:
            return False
        batch = queue.newest_untouched(priority)
        border = queue.border(priority) if queue.cold else None
        if batch is not None and (border is None or batch.seq <= border):
            _add(m, queue, priority, batch, remove=queue.remove_fresh)
            return True
    return False


def _add(m: Machine, queue: Queue, lane: int, batch: Batch, *, remove: Callable[[Batch], None] | None = None) -> None:
    """Let a batch be cold: behind all of its lane, or before all that is cold of it if it is removed from the hot."""
    queue.mark(HEADER_PAGE)
    cold = queue.cold.get(lane)
    if cold is None:
        cold = queue.begin_cold(lane, batch.seq - 1)
    row = cbor2.dumps(batch_row(batch))
    size = _size_left(batch)
    cold.messages += batch.live
    cold.batches += 1
    cold.bytes += size
    block = batch.index >> LIVE_SHIFT
    cold.blocks[block] = cold.blocks.get(block, 0) + 1
    m.live_blocks[block] = m.live_blocks.get(block, 0) + 1
    origin = batch.origin
    if origin is not None:
        cold.moved += 1
    if origin is not None and origin.queue is not None:
        queue.origins[origin.queue] = queue.origins.get(origin.queue, 0) + batch.live
        cold.origins[origin.queue] = cold.origins.get(origin.queue, 0) + batch.live
    if lane == GROUPED and batch.pieces is not None:
        if any(run.group is None for run in batch.pieces.values()):
            cold.mixed.add(batch.priority)
    if remove is None:
        stretch, rows = cold.tail, cold.tail_rows
    else:
        stretch, rows = cold.front, cold.front_rows
        cold.floor = min(cold.floor, batch.seq - 1)
    queue.mark(cold_page(lane, stretch.number))
    stretch.count(batch, size, len(row))
    rows.append(row)
    if batch.expire_ms:
        known = m.cold_ends.get((queue.uid, lane), 0)
        if not known or batch.expire_ms < known:
            m.cold_ends_at(queue.uid, lane, batch.expire_ms)
    if remove is not None:
        remove(batch)
    if _is_long(m, queue, cold, stretch):
        _seal(m, queue, lane, cold, stretch)
    if not hot_ready(queue, lane):
        # Otherwise whoever takes something from it will say so.
        queue.thirst[queue.uid] = None


def _size_left(batch: Batch) -> int:
    if batch.pieces:
        return sum(batch.bytes_of(run.first, run.last) for run in batch.pieces.values())
    return batch.size if batch.count == batch.total else batch.bytes_of(0, batch.count - 1)


def _is_long(m: Machine, queue: Queue, cold: Cold, stretch: Stretch) -> bool:
    rows_max = min(STRETCH_ROWS_MAX, max(STRETCH_ROWS_MIN, cold.batches // _LANE_SHARE))
    if stretch.rows >= rows_max or stretch.weight >= STRETCH_BYTES_MAX:
        return True
    messages_max = STRETCH_MESSAGES_MAX
    for bound in (queue.settings.max_hot_messages, m.window.messages):
        if bound is not None:
            messages_max = min(messages_max, bound // _WINDOW_SHARE)
    return stretch.messages >= messages_max


def _seal(m: Machine, queue: Queue, lane: int, cold: Cold, stretch: Stretch) -> None:
    """The tail or the front becomes a page that never changes again."""
    number = queue.next_cold
    queue.next_cold = number + 1
    queue.mark(cold_page(lane, stretch.number))
    queue.mark(cold_page(lane, number))
    if stretch is cold.tail:
        page = page_of(cold.tail_rows)
        cold.tail, cold.tail_rows = Stretch(TAIL), []
    else:
        page = page_of(cold.front_rows[::-1])
        cold.front, cold.front_rows = Stretch(FRONT), []
    is_front = stretch.number == FRONT
    stretch.number = number
    cold.sealed[number] = stretch
    if is_front:
        cold.sealed.move_to_end(number, last=False)
    cold.unsaved[number] = page
    m.cold_unsaved[queue.uid, lane, number] = None


# --- back into it -------------------------------------------------------------------------------------------
def hydrate(m: Machine, command: commands.Hydrate) -> api.Done:
    """Bring cold batches back. What is not where the command says (it was proposed twice) is passed over.

    Raises:
        InvalidArgument: the rows cannot be those of the stretch; nothing is changed.
    """
    queue = m.by_uid.get(command.uid)
    cold = queue.cold.get(command.lane) if queue is not None else None
    if queue is None or cold is None:
        return api.Done(0)
    queue.mark(HEADER_PAGE)
    if command.picked is not None:
        back = _pick(m, queue, command, cold)
    else:
        back = _next_stretch(m, queue, command, cold)
    if cold.head() is None:
        _settle_accounts(m, queue, cold)
        queue.end_cold(command.lane)
    if (queue.uid, command.lane) in m.cold_ends:
        m.cold_ends_at(queue.uid, command.lane, cold.soonest)
    if back:
        m.effects.woken.add(queue.name)
    return api.Done(back)


def _next_stretch(m: Machine, queue: Queue, command: commands.Hydrate, cold: Cold) -> int:
    """The whole of the stretch at the head."""
    stretch = cold.head()
    assert stretch is not None
    lane = command.lane
    if command.stretch != (stretch.number if stretch.number >= SEALED_FIRST else TAIL):
        return 0
    if stretch.number >= SEALED_FIRST and not command.rows:
        _lose(m, queue, lane, cold, stretch)
        return 0
    if stretch.number >= SEALED_FIRST:
        rows = rows_of(command.rows)
        if len(rows) != stretch.rows:
            raise InvalidArgument(f"hydrate: {len(rows)} rows are not those of stretch {stretch.number}")
        _forget_stretch(m, queue, lane, cold, stretch)
    else:
        kept = cold.tail_rows if stretch is cold.tail else cold.front_rows[::-1]
        rows = [cbor2.loads(row) for row in kept]
        queue.mark(cold_page(lane, stretch.number))
        if stretch is cold.tail:
            cold.tail, cold.tail_rows = Stretch(TAIL), []
        else:
            cold.front, cold.front_rows = Stretch(FRONT), []
    back = 0
    pages = set()
    for row in rows:
        sequence = sequence_of(row)
        if sequence not in stretch.taken:
            back += _pay(m, queue, cold, row) if cold.owed else _thaw(m, queue, cold, row, in_turn=True)
            pages.add(sequence >> PAGE_SHIFT)
        cold.floor = max(cold.floor, sequence + count_of(row) - 1)
    queue.keep_order(pages)
    if lane == GROUPED:
        queue.release_held()
    queue.thirst[queue.uid] = None
    return back


def _lose(m: Machine, queue: Queue, lane: int, cold: Cold, stretch: Stretch) -> None:
    """Nobody can read a sealed stretch: its messages are gone. What was known of them one by one only, such as the
    blocks they lie in, is kept until nothing of the lane is cold: rather too much is held than too little."""
    _forget_stretch(m, queue, lane, cold, stretch)
    owed = min(cold.owed, stretch.messages)
    share = cold.owed_bytes * owed // cold.owed if cold.owed else 0
    cold.owed -= owed
    cold.owed_bytes -= share
    cold.messages -= stretch.messages - owed
    cold.batches -= stretch.rows - len(stretch.taken)
    cold.bytes -= stretch.bytes - share
    queue.thirst[queue.uid] = None


def _pick(m: Machine, queue: Queue, command: commands.Hydrate, cold: Cold) -> int:
    """Some batches of a stretch, out of turn."""
    assert command.picked is not None
    if cold.owed:
        # What comes first is not known; it comes back soon (`find` asks again).
        return 0
    wanted = frozenset(command.picked)
    lane = command.lane
    if command.stretch >= SEALED_FIRST:
        stretch = cold.sealed.get(command.stretch)
        if stretch is None:
            return 0
        rows = [row for row in rows_of(command.rows) if sequence_of(row) in wanted - stretch.taken]
        if command.soonest is not None:
            stretch.soonest = command.soonest
    else:
        stretch = cold.tail if command.stretch == TAIL else cold.front
        queue.mark(cold_page(lane, stretch.number))
        rows = _out_of(cold, stretch, wanted)
        if command.soonest is not None:
            stretch.soonest = command.soonest
    back = 0
    for row in rows:
        before = cold.messages, cold.bytes
        back += _thaw(m, queue, cold, row, in_turn=False)
        stretch.messages -= before[0] - cold.messages
        stretch.bytes -= before[1] - cold.bytes
        if stretch.number >= SEALED_FIRST:
            stretch.taken.add(sequence_of(row))
    if stretch.number >= SEALED_FIRST and len(stretch.taken) == stretch.rows:
        _forget_stretch(m, queue, lane, cold, stretch)
    queue.keep_order({sequence_of(row) >> PAGE_SHIFT for row in rows})
    return back


def _out_of(cold: Cold, stretch: Stretch, wanted: frozenset[int]) -> list[list[Any]]:
    """Take rows out of a stretch that is not sealed."""
    kept, gone = [], []
    rows = cold.tail_rows if stretch is cold.tail else cold.front_rows
    for encoded in rows:
        row = cbor2.loads(encoded)
        if sequence_of(row) in wanted:
            gone.append(row)
            stretch.rows -= 1
            stretch.weight -= len(encoded)
        else:
            kept.append(encoded)
    rows[:] = kept
    return gone


def _forget_stretch(m: Machine, queue: Queue, lane: int, cold: Cold, stretch: Stretch) -> None:
    """Nothing of a sealed stretch is cold any more."""
    queue.mark(cold_page(lane, stretch.number))
    del cold.sealed[stretch.number]
    if cold.unsaved.pop(stretch.number, None) is not None:
        m.cold_unsaved.pop((queue.uid, lane, stretch.number), None)


def sequence_of(row: Sequence[Any]) -> int:
    """The sequence of a row's first message."""
    return int(row[4] if len(row) == UNTOUCHED_FIELDS else row[6])


def count_of(row: Sequence[Any]) -> int:
    """How many sequences a row spans."""
    return int(row[2] if len(row) == UNTOUCHED_FIELDS else row[3])


def opened(row: Sequence[Any]) -> Batch:
    """A row as a batch that is in no queue: fresh, or with its ready runs as pieces."""
    if len(row) == UNTOUCHED_FIELDS:
        index, ordinal, count, size, seq, priority, pushed_ms = row
        batch = Batch(index, ordinal, 0, count, count, size, seq, priority, 0, pushed_ms, 0)
        batch.fresh = True
        return batch
    batch = Batch(*row[:11])
    if row[13] is not None:
        first_id, delivery, name, reason, died_ms, history, *counts = row[13]
        batch.origin = Origin(first_id, delivery, name, reason, died_ms, open_attempts(history), *counts)
    if row[12]:
        batch.fresh = True
        return batch
    runs = []
    for first, last, order, delivery, attempts, group, _, _, history, _ in row[14]:
        run = Run(batch, first, last, order, delivery, attempts, group)
        run.history = open_attempts(history)
        runs.append(run)
    _hold(batch, runs)
    return batch


def _thaw(m: Machine, queue: Queue, cold: Cold, row: Sequence[Any], *, in_turn: bool) -> int:
    """A row is cold no more: hot, or gone if its time to live has passed. Returns how many messages became hot."""
    batch = opened(row)
    size = _size_left(batch)
    cold.messages -= batch.live
    cold.batches -= 1
    cold.bytes -= size
    block = batch.index >> LIVE_SHIFT
    _unblock(cold.blocks, block)
    origin = batch.origin
    if origin is not None:
        cold.moved -= 1
    if origin is not None and origin.queue is not None:
        _less(queue.origins, origin.queue, batch.live)
        _less(cold.origins, origin.queue, batch.live)
    if 0 < batch.expire_ms <= m.wall:
        _unblock(m.live_blocks, block)
        return 0
    live = batch.live
    runs = list(batch.pieces.values()) if batch.pieces else []
    batch.pieces = None
    batch.live = batch.count
    if batch.fresh and not (in_turn and queue.comes_last(batch)):
        batch.fresh = False
        delivery = 0 if origin is None else origin.delivery
        runs = [Run(batch, 0, batch.count - 1, batch.seq, delivery, 0, None)]
    queue.add_batch(batch)
    _unblock(m.live_blocks, block)
    if not runs:
        queue.put_fresh(batch)
        return live
    behind = 0
    for run in sorted(runs, key=lambda run: run.first):
        if run.first > behind:
            queue.burn(batch, behind, run.first - 1)
        behind = run.last + 1
    if behind < batch.count:
        queue.burn(batch, behind, batch.count - 1)
    for run in runs:
        queue.put_ready(run)
    return live


def _pay(m: Machine, queue: Queue, cold: Cold, row: Sequence[Any]) -> int:
    """A row of which messages were dropped while it was cold comes back without them."""
    batch = opened(row)
    number = min(cold.owed, batch.live)
    share = cold.owed_bytes * number // cold.owed
    cold.owed -= number
    cold.owed_bytes -= share
    # They are counted once more, to leave as all others do.
    cold.messages += number
    cold.bytes += share
    back = _thaw(m, queue, cold, row, in_turn=True)
    found = queue.find(batch.seq)
    if not back or found is None:
        return 0
    left = number
    for run in queue.runs_of(found):
        if left:
            last = min(run.last, run.first + left - 1)
            left -= last - run.first + 1
            queue.finish(queue.carve(run, run.first, last))
    return back - number


def owe(queue: Queue, messages: int, size: int) -> bool:
    """Drop the oldest cold messages of a queue, `messages` of them at least and about `size` bytes; False: so many are
    not there, and nothing is dropped."""
    if messages > sum(cold.messages for cold in queue.cold.values()) or size > sum(
        cold.bytes for cold in queue.cold.values()
    ):
        return False
    queue.mark(HEADER_PAGE)
    for cold in sorted(queue.cold.values(), key=_first_of):
        if messages <= 0 and size <= 0:
            break
        by_size = -(-size * cold.messages // cold.bytes) if cold.bytes and size > 0 else 0
        number = min(cold.messages, max(messages, by_size))
        share = cold.bytes * number // cold.messages if cold.messages else 0
        cold.messages -= number
        cold.bytes -= share
        cold.owed += number
        cold.owed_bytes += share
        messages -= number
        size -= share
    queue.thirst[queue.uid] = None
    return True


def _first_of(cold: Cold) -> int:
    head = cold.head()
    return head.first if head is not None else 0


def _less(counts: dict[str, int], name: str, number: int) -> None:
    counts[name] -= number
    if not counts[name]:
        del counts[name]


def _unblock(blocks: dict[int, int], block: int) -> None:
    left = blocks[block] - 1
    if left:
        blocks[block] = left
    else:
        del blocks[block]


# --- by id ---------------------------------------------------------------------------------------------------
def holds(batch: Batch, uid: int, identifier: int) -> bool:
    """Whether a batch of the queue `uid` that is in no queue has something left of a message."""
    offset = identifier - batch.id_of(uid, 0)
    if not 0 <= offset < batch.count:
        return False
    return batch.fresh or any(run.first <= offset <= run.last for run in (batch.pieces or {}).values())


def find(m: Machine, queue: Queue, ids: Sequence[int], seen: int) -> list[int]:
    """Bring messages back that are cold and in memory. Returns those that may be in sealed stretches from `seen` on.

    A message whose id was given here stands in the stretch that begins before it, if in any; one that has kept the id
    of another place may be in every stretch.
    """
    missing = list(ids)
    for lane, cold in list(queue.cold.items()):
        for stretch in (cold.front, cold.tail):
            page = cold.page(stretch.number)
            if page is None:
                continue
            picked = []
            for row in rows_of(page):
                batch = opened(row)
                if any(holds(batch, queue.uid, identifier) for identifier in missing):
                    picked.append(batch.seq)
                    missing = [identifier for identifier in missing if not holds(batch, queue.uid, identifier)]
            if picked:
                hydrate(m, commands.Hydrate(queue.uid, lane, stretch.number, b"", tuple(picked)))
    unseen = []
    for identifier in missing:
        _, uid, sequence = id_parts(identifier)
        own = sequence if uid == queue.uid else 0
        if any(_may_hold(cold, own, seen) for cold in queue.cold.values()):
            unseen.append(identifier)
    return unseen


def _may_hold(cold: Cold, sequence: int, seen: int) -> bool:
    """Whether a sealed stretch from number `seen` on may hold that sequence, 0 = something that was moved."""
    if cold.owed:
        return True
    if cold.moved and any(number >= seen for number in cold.sealed):
        return True
    number = stretch_of(cold, sequence)
    return number is not None and number >= seen


def stretch_of(cold: Cold, sequence: int) -> int | None:
    """The sealed stretch that a sequence would stand in."""
    if sequence <= cold.floor:
        return None
    before = None
    for stretch in cold.sealed.values():
        if stretch.first > sequence:
            break
        before = stretch.number
    return before


# --- the rest -----------------------------------------------------------------------------------------------
def forget(m: Machine, queue: Queue) -> int:
    """Drop everything cold of a queue (purge, delete). Returns how many messages."""
    number = sum(cold.messages for cold in queue.cold.values())
    if number:
        queue.mark(HEADER_PAGE)
    for lane, cold in list(queue.cold.items()):
        _settle_accounts(m, queue, cold)
        for stretch in cold.stretches():
            queue.mark(cold_page(lane, stretch.number))
        for stretch_number in cold.unsaved:
            m.cold_unsaved.pop((queue.uid, lane, stretch_number), None)
        m.cold_ends_at(queue.uid, lane, 0)
        queue.end_cold(lane)
    return number


def _settle_accounts(m: Machine, queue: Queue, cold: Cold) -> None:
    """Nothing of a lane is cold any more: give back what it still holds in the counts of all."""
    for block, batches in cold.blocks.items():
        for _ in range(batches):
            _unblock(m.live_blocks, block)
    for name, dead in cold.origins.items():
        _less(queue.origins, name, dead)


def saved(m: Machine, stretches: Sequence[tuple[int, int, int]]) -> None:
    """A durable snapshot holds these sealed stretches, (uid, lane, number): their bytes need not be in memory."""
    for uid, lane, number in stretches:
        if m.cold_unsaved.pop((uid, lane, number), 0) is None:
            del m.by_uid[uid].cold[lane].unsaved[number]
