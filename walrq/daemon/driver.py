"""The loop that turns proposals into durable, applied entries.

    wait for work -> take_batch -> persist (the disk) -> complete -> resolve (replies) -> flush (sockets)

Group commit needs no component: the batch is what was proposed while the last persist ran. With a policy that
syncs, persist runs in a thread and the event loop goes on reading; under `never` it is one buffered write and
runs here. One persist at a time: whatever else writes to the log (the interval's sync, the settling of an idle
log) goes through the same thread.

A failed write or sync is final: the exception leaves this task and ends the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.persister import Persister
from walrq.limits import SLOT_SETTLE_MS
from walrq.replica import Replica
from walrq.storage.storage import Storage

log = logging.getLogger("walrq.driver")


class Driver:
    """See the module.

    Attributes:
        persister: the thread through which everything that writes to the log goes, one call at a time.
        on_turn: called after every turn (the reaper and the compactor look whether they are needed).
    """

    def __init__(self, replica: Replica, storage: Storage, clock: Clock, *, inline: bool, settles: bool) -> None:
        """`inline`: persist without a thread (nothing is synced then); `settles`: an idle log is settled."""
        self._replica = replica
        self._storage = storage
        self._clock = clock
        self._inline = inline
        self._settles = settles
        self._work = trio.Event()
        self._waiting = False
        self.persister = Persister()
        self.on_turn: list[Callable[[], None]] = []
        self.turns = 0

    def wake(self) -> None:
        """There is something to write."""
        if self._waiting:
            self._waiting = False
            self._work.set()

    async def run(self, broker: Broker) -> None:
        """Drive for ever."""
        replica = self._replica
        while True:
            if replica.has_work:
                if self._inline:
                    # Whoever is ready may add to this entry first; without it a lone writer starves the
                    # readers.
                    await trio.lowlevel.checkpoint()
            else:
                await self._wait_for_work()
            await self.turn(broker)

    async def turn(self, broker: Broker) -> bool:
        """Write one entry, if there is something to write, and answer what it decided."""
        replica = self._replica
        batch = replica.take_batch(self._clock.read())
        if batch is None:
            return False
        if self._inline and not self.persister.busy:
            replica.persist(batch)
        else:
            await self.persister.call(replica.persist, batch)
        self.turns += 1
        broker.resolve(replica.complete(batch))
        broker.flush()
        for each in self.on_turn:
            each()
        return True

    async def _wait_for_work(self) -> None:
        """Sleep until there is something to write; once idle for a while, let the log settle."""
        self._work = trio.Event()
        self._waiting = True
        if self._settles:
            with trio.move_on_after(SLOT_SETTLE_MS / 1000):
                await self._work.wait()
            if self._waiting:
                await self.persister.call(self._storage.settle)
        if self._waiting:
            await self._work.wait()

    async def run_interval(self, interval_ms: int) -> None:
        """Sync every `interval_ms` what the policy `interval:MS` left unsynced; nothing while nothing is."""
        synced = 0
        while True:
            await trio.sleep(interval_ms / 1000)
            if self.turns == synced:
                await self._wait_for_turn()
            synced = self.turns
            await self.persister.call(self._storage.sync)

    async def wait_written(self) -> None:
        """Return when nothing waits to be written."""
        while self._replica.has_work:
            await self._wait_for_turn()

    async def _wait_for_turn(self) -> None:
        written = trio.Event()
        self.on_turn.append(written.set)
        try:
            await written.wait()
        finally:
            self.on_turn.remove(written.set)
