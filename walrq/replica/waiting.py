"""What waits beyond the horizon, as the replica goes about it: when to fetch what, and the command that brings it.

A leader's work, one piece at a time, beside everything else: `Replica.far_work` hands a piece out, any thread runs it,
its command is proposed like any other. A piece that comes too late is refused by the state and made anew.
"""

from __future__ import annotations

from walrq.far.rows import time_of
from walrq.far.shelf import Far
from walrq.limits import FAR_ROWS_PER_ENTRY
from walrq.queues.commands import Command, HydrateFar, LoseFar, SweepFar
from walrq.queues.machine import Machine
from walrq.storage.storage import Storage
from walrq.tiers.timers import Listing, Losing, Search, Since, Slice, Sweeping

# Messages that one entry brings back, where the hot window does not say less.
MESSAGES_MAX = 100_000
# The share of the window by which what is due may exceed it: one in so many.
OVERFLOW = 4


def _room(machine: Machine) -> int:
    """How many messages may come back now: a quarter more than the window, so that what is due does not wait for queues
    that nobody consumes."""
    window = machine.window.messages
    return MESSAGES_MAX if window is None else window + window // OVERFLOW - machine.tally.messages


def _ample(machine: Machine) -> int:
    """With so much room the horizon is where it should be; with less, when pushes have no more either, only what is due
    comes back."""
    window = machine.window
    return 0 if window.messages is None else window.messages + window.messages // OVERFLOW - window.pushed_messages + 1


class FarWork:
    """One piece of work: what is to be read, and what follows from it."""

    def __init__(self, reading: Slice | Sweeping | Losing) -> None:
        self._reading = reading

    def run(self) -> None:
        """Read. Blocking; any thread.

        Raises:
            PageLost: a page cannot be read.
        """
        self._reading.run()

    def command(self) -> Command | None:
        """What is to be proposed; None: nothing, all can be read again."""
        reading = self._reading
        if isinstance(reading, Losing):
            return LoseFar(reading.pages, reading.queues, reading.blocks) if reading.pages else None
        if isinstance(reading, Sweeping):
            return SweepFar(reading.uid, reading.first, reading.last, reading.rows)
        return HydrateFar(reading.since, reading.to, reading.seen, reading.cuts)


class Waiting:
    """See the module. One per replica."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        # Some page could not be read, and nobody else has it: what is lost is to be found out.
        self.is_losing = False

    def wanted_ms(self, machine: Machine) -> int | None:
        """The wall clock's time at which there will be work; None: nothing waits. 0: now."""
        far = machine.far
        if far.sweeps or self.is_losing:
            return 0
        first, horizon_ms = far.next_key(), machine.bounds.far_horizon_ms
        if first is None or horizon_ms is None:
            return None
        room = _room(machine)
        if room <= 0:
            # Full, and more than full: what is due waits until something is taken.
            return None
        return time_of(first) - (horizon_ms // 2 if room >= _ample(machine) else 0)

    def work(self, machine: Machine, wall_ms: int) -> FarWork | None:
        """What is to be done now."""
        wanted_ms = self.wanted_ms(machine)
        if wanted_ms is None or wanted_ms > wall_ms:
            return None
        far = machine.far
        if self.is_losing:
            self.is_losing = False
            counted = {
                uid: (queue.far_messages, queue.far_bytes, queue.far_floor) for uid, queue in machine.by_uid.items()
            }
            return FarWork(Losing(far, self._read, counted))
        if far.sweeps:
            return FarWork(Sweeping(far, self._read))
        horizon_ms = machine.bounds.far_horizon_ms
        assert horizon_ms is not None
        room = _room(machine)
        until_ms = wall_ms + horizon_ms if room >= _ample(machine) else wall_ms
        return FarWork(Slice(far, self._read, until_ms, FAR_ROWS_PER_ENTRY, min(MESSAGES_MAX, room)))

    def look_up(self, far: Far, ids: tuple[int, ...]) -> Search:
        """A search for messages by id."""
        return Search(far, self._read, ids)

    def listing(self, far: Far, uid: int, floor: int, after: int, rows_max: int) -> Listing:
        """A page of a queue's rows."""
        return Listing(far, self._read, uid, floor, after, rows_max)

    def since(self, far: Far, uid: int, sequence: int, messages_max: int) -> Since:
        """A queue's rows from a sequence on."""
        return Since(far, self._read, uid, sequence, messages_max)

    def _read(self, key: bytes) -> bytes | None:
        return self._storage.read_page(key)
