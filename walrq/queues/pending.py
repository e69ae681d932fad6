"""Messages that are pending: cancel and reschedule by id, with exact answers; what comes back from beyond the horizon.

A far message may lie in a sealed page, which the machine cannot read. Whether it may is known from the bounds of the
pages; then the answer is `LookFar`, nothing has happened, and the request comes again with the rows that were found.
What moved between the look-up and the entry is found where it is now: near, in the tail, or in a page sealed since,
which asks for another look.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from walrq import api
from walrq.api import Outcome
from walrq.errors import InvalidArgument
from walrq.far.rows import Row
from walrq.ids import SEQUENCE_BITS, id_parts
from walrq.queues import commands, horizon, timers
from walrq.queues.batch import LEASED, PARKED, Batch, Run
from walrq.queues.effects import LookFar
from walrq.queues.leases import come_back
from walrq.queues.pushes import check_horizon
from walrq.queues.queue import LIVE_SHIFT, PAGE_SHIFT, Queue

if TYPE_CHECKING:
    from walrq.queues.machine import Machine


def _candidates(queue: Queue, identifier: int) -> Iterator[tuple[Batch, int]]:
    """Batches that may hold the message, with its offset there."""
    _, uid, sequence = id_parts(identifier)
    if uid == queue.uid:
        batch = queue.find(sequence)
        if batch is not None and batch.origin is None and batch.id_of(uid, sequence - batch.seq) == identifier:
            yield batch, sequence - batch.seq
    for batch in list(queue.moved_in.get(identifier >> SEQUENCE_BITS, {}).values()):
        assert batch.origin is not None
        offset = identifier - batch.origin.first_id
        if 0 <= offset < batch.count:
            yield batch, offset


def locate(queue: Queue, identifier: int) -> tuple[Run, int] | None:
    """The run that holds a message, and its offset; None when the queue holds it no more. A fresh batch is detached."""
    for batch, offset in _candidates(queue, identifier):
        if batch.fresh and offset >= batch.cursor:
            queue.detach(batch)
        run = batch.piece_at(offset)
        if run is not None:
            return run, offset
    return None


def _absent(queue: Queue, identifier: int) -> Outcome:
    _, uid, sequence = id_parts(identifier)
    return Outcome.GONE if uid == queue.uid and 1 <= sequence < queue.next_seq else Outcome.UNKNOWN


# --- beyond the horizon -------------------------------------------------------------------------------------
def _unseen(m: Machine, queue: Queue, ids: tuple[int, ...], found: commands.FarFound | None) -> tuple[int, ...]:
    """Those of `ids` that may lie in sealed pages nobody looked at: all others can be answered exactly."""
    if not queue.far_messages or not m.far.pages:
        return ()
    seen = 0 if found is None else found.seen
    return tuple(
        identifier
        for identifier in ids
        if any(number >= seen for number in m.far.pages_for(identifier))
        and m.far.in_tail(identifier) is None
        and locate(queue, identifier) is None
    )


def _unseen_cold(m: Machine, queue: Queue, ids: tuple[int, ...], seen: int) -> tuple[int, ...]:
    """Bring those of `ids` back that are cold and in memory; those that may be in sealed stretches nobody looked at."""
    if not queue.cold:
        return ()
    wanted = [identifier for identifier in ids if locate(queue, identifier) is None]
    return tuple(horizon.find(m, queue, wanted, seen)) if wanted else ()


def _take_far(m: Machine, queue: Queue, identifier: int, found: commands.FarFound | None) -> Row | None:
    """Take one message out of the row it waits in; what remains of the row waits on. None: no row holds it."""
    row = m.far.in_tail(identifier)
    if row is not None:
        if timers.owner(m, row) is not queue:
            return None
        m.far.leave_tail(row.first_id)
    else:
        row = _take_found(m, queue, identifier, found)
        if row is None:
            return None
    timers.leave_far(m, queue, row)
    offset = identifier - row.first_id
    if offset:
        timers.put_far(m, queue, row.part(0, offset - 1))
    if offset + 1 < row.count:
        timers.put_far(m, queue, row.part(offset + 1, row.count - 1))
    return row.part(offset, offset)


def _take_found(m: Machine, queue: Queue, identifier: int, found: commands.FarFound | None) -> Row | None:
    for each in found.rows if found is not None else ():
        row = each.row
        if row.first_id <= identifier < row.first_id + row.count and timers.owner(m, row) is queue:
            # inv: SettledIsFinal  (a row leaves its page once, whoever found it)
            return row if m.far.mark(each.number, each.position) else None
    return None


def hydrate_far(m: Machine, command: commands.HydrateFar) -> api.Done:
    """What waits up to a new frontier comes back into its queues, in order of time.

    Raises:
        InvalidArgument: the rows are not those of the pages; nothing is changed.
    """
    arrived = 0
    touched: dict[int, set[int]] = {}
    for row in m.far.take(command.since, command.to, command.seen, command.cuts):
        number = timers.arrive(m, row)
        if number:
            touched.setdefault(row.uid, set()).add(row.sequence >> PAGE_SHIFT)
        arrived += number
    for uid, pages in touched.items():
        m.by_uid[uid].keep_order(pages)
    return api.Done(arrived)


def sweep_far(m: Machine, command: commands.SweepFar) -> api.Done:
    """Rows that an emptied queue left in sealed pages are gone from there too, and from the counts of the log."""
    far = m.far
    sweep = far.sweeps[0] if far.sweeps else None
    if sweep is None or (sweep.uid, sweep.next) != (command.uid, command.first):
        return api.Done(0)
    swept = 0
    for number, position, index in command.rows:
        if far.mark(number, position):
            far.blocks.add(index, -1)
            swept += 1
    far.swept(command.uid, command.last)
    queue = m.by_uid.get(command.uid)
    if queue is not None and all(each.uid != command.uid for each in far.sweeps):
        queue.far_floor = 0
    return api.Done(swept)


def lose_far(m: Machine, command: commands.LoseFar) -> api.Done:
    """Sealed pages are lost, with what is in them; everything else is counted as before.

    Raises:
        InvalidArgument: more would be lost than there is; nothing is changed.
    """
    far = m.far
    lost = [number for number in command.pages if number in far.pages]
    if lost != list(command.pages):
        # Some of it left meanwhile: it is counted anew.
        return api.Done(0)
    for uid, messages, size in command.queues:
        queue = m.by_uid.get(uid)
        if queue is None or queue.far_messages < messages or queue.far_bytes < size:
            raise InvalidArgument("more far messages would be lost than there are")
    for number in lost:
        far.lose(number)
    for uid, messages, size in command.queues:
        m.by_uid[uid].far_messages -= messages
        m.by_uid[uid].far_bytes -= size
    for block, rows in command.blocks:
        far.blocks.add(block << LIVE_SHIFT, -rows)
    return api.Done(sum(messages for _, messages, _ in command.queues))


# --- by id --------------------------------------------------------------------------------------------------
def cancel(m: Machine, command: commands.Cancel) -> api.Outcomes | LookFar:
    """Remove pending messages."""
    queue = m.require(command.queue)
    unseen, cold = _unseen(m, queue, command.ids, command.far), _unseen_cold(m, queue, command.ids, command.cold)
    if unseen or cold:
        return LookFar(unseen, cold)
    outcomes = []
    for identifier in command.ids:
        found = locate(queue, identifier)
        if found is None:
            row = _take_far(m, queue, identifier, command.far)
            outcomes.append(_absent(queue, identifier) if row is None else Outcome.DONE)
        elif found[0].state == LEASED:
            outcomes.append(Outcome.LEASED)
        else:
            run, offset = found
            parked = run.state == PARKED
            queue.finish(queue.carve(run, offset, offset))
            if parked and not queue.parked_runs:
                m.parked.discard(queue.uid)
            outcomes.append(Outcome.DONE)
    if queue.ready:
        # A message in back-off may have held its group.
        m.effects.woken.add(queue.name)
    return api.Outcomes(tuple(outcomes))


def reschedule(m: Machine, command: commands.Reschedule) -> api.Outcomes | LookFar:
    """Let a pending message become due at another time."""
    queue = m.require(command.queue)
    due_ms = command.deliver_at_ms
    check_horizon(m, due_ms)
    unseen, cold = _unseen(m, queue, (command.id,), command.far), _unseen_cold(m, queue, (command.id,), command.cold)
    if unseen or cold:
        return LookFar(unseen, cold)
    found = locate(queue, command.id)
    if found is None:
        row = _take_far(m, queue, command.id, command.far)
        if row is None:
            return api.Outcomes((_absent(queue, command.id),))
        if 0 < row.expire_ms <= m.wall:
            return api.Outcomes((Outcome.GONE,))
        back = timers.settle_down(m, queue, row.at(due_ms))
        queue.keep_order({back.batch.seq >> PAGE_SHIFT})
        if due_ms <= m.wall:
            return api.Outcomes((Outcome.DONE,))
        found = back, back.first
    run, offset = found
    if run.state == LEASED:
        return api.Outcomes((Outcome.LEASED,))
    if run.state == PARKED:
        # Dead messages are not pending: they are driven back, not rescheduled.
        return api.Outcomes((Outcome.GONE,))
    piece = queue.carve(run, offset, offset)
    if due_ms > m.wall:
        if timers.is_far(m, queue, piece.batch, piece.first, due_ms):
            row = timers.stretch(queue, piece, due_ms)
            queue.finish(piece)
            timers.put_far(m, queue, row)
        else:
            queue.put_delayed(piece, due_ms)
        if queue.ready:
            m.effects.woken.add(queue.name)
    else:
        come_back(m, queue, piece)
    return api.Outcomes((Outcome.DONE,))
