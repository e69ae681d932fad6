"""Cancel and reschedule: exact answers about one message by its id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from walrq import api
from walrq.api import Outcome
from walrq.ids import SEQUENCE_BITS, id_parts
from walrq.queues import commands
from walrq.queues.batch import LEASED, PARKED, Batch, Run
from walrq.queues.leases import come_back
from walrq.queues.pushes import check_horizon
from walrq.queues.queue import Queue

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


def cancel(m: Machine, command: commands.Cancel) -> api.Outcomes:
    """Remove pending messages."""
    queue = m.require(command.queue)
    outcomes = []
    for identifier in command.ids:
        found = locate(queue, identifier)
        if found is None:
            outcomes.append(_absent(queue, identifier))
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


def reschedule(m: Machine, command: commands.Reschedule) -> api.Outcomes:
    """Let a pending message become due at another time."""
    queue = m.require(command.queue)
    check_horizon(m, command.deliver_at_ms)
    found = locate(queue, command.id)
    if found is None:
        return api.Outcomes((_absent(queue, command.id),))
    run, offset = found
    if run.state == LEASED:
        return api.Outcomes((Outcome.LEASED,))
    if run.state == PARKED:
        # Dead messages are not pending: they are driven back, not rescheduled.
        return api.Outcomes((Outcome.GONE,))
    piece = queue.carve(run, offset, offset)
    if command.deliver_at_ms > m.wall:
        queue.put_delayed(piece, command.deliver_at_ms)
        if queue.ready:
            m.effects.woken.add(queue.name)
    else:
        come_back(m, queue, piece)
    return api.Outcomes((Outcome.DONE,))
