"""The loop that turns proposals into durable, applied entries.

    go, or wake -> take_batch -> persist (the disk) -> complete -> resolve (replies) -> flush (sockets) -> go

Group commit needs no component: the batch is what was proposed while the last persist ran. With a policy that
syncs, persist runs in a thread and the event loop goes on reading; under `never` it is one buffered write and
runs here. One persist at a time: whatever else writes to the log (the interval's sync, the settling of an idle
log) goes through the same thread.

A turn costs no task switch where it can be helped: who has read all that was ready starts it (`go`), and the end of
a persist is handled where the event loop learns of it. The task looks after what is left: proposals made by others,
the settling, failures.

A failed write or sync is final: the exception leaves the task and ends the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import outcome
import trio

from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.persister import Persister
from walrq.limits import SLOT_SETTLE_MS
from walrq.replica import Batch, Replica
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
        self._broker: Broker | None = None
        # A batch is being persisted. Invariant: nothing is taken meanwhile, and its end looks for more.
        self._writing = False
        self._failed: outcome.Error | None = None
        # Somebody gathers proposals and will call `go`: no need to wake anybody.
        self._held = False
        self._stirred = trio.Event()
        # The task waits for more than the settling: a turn that it did not begin has to wake it.
        self._asleep = False
        self.persister = Persister()
        self.on_turn: list[Callable[[], None]] = []
        self.turns = 0

    def wake(self) -> None:
        """There is something to write."""
        if not (self._writing or self._held):
            self._stirred.set()

    def hold(self) -> None:
        """Until `go` is called, proposals gather."""
        self._held = True

    def go(self) -> None:
        """Begin a turn, unless one is under way or there is nothing to write."""
        self._held = False
        if not self._writing and self._replica.has_work:
            if self._broker is None or not self.persister.running:
                self._stirred.set()
                return
            if self._asleep and self._settles:
                self._stirred.set()
            self._begin(self._broker)

    async def run(self, broker: Broker) -> None:
        """Drive for ever."""
        self._broker = broker
        try:
            while True:
                await self._look_after(broker)
        finally:
            # What the disk was told to write is written, and answered.
            with trio.CancelScope(shield=True):
                while self._writing and self._failed is None:
                    await self._wait_for_turn()

    async def _look_after(self, broker: Broker) -> None:
        """Begin what nobody else has begun; settle a log that has become idle; raise what went wrong."""
        if self._failed is not None:
            self._failed.unwrap()
        if self._replica.has_work and not self._writing:
            if self._inline:
                # Whoever is ready may add to this entry first; without it a lone writer starves the readers.
                await trio.lowlevel.checkpoint()
            if not self._writing:
                await self.turn(broker)
            return
        turns = self.turns
        self._stirred = trio.Event()
        if self._settles:
            with trio.move_on_after(SLOT_SETTLE_MS / 1000):
                await self._stirred.wait()
            if self._stirred.is_set() or self._writing or self.turns != turns:
                return
            await self.persister.call(self._storage.settle)
        if self.turns == turns and not self._writing:
            self._asleep = True
            await self._stirred.wait()
            self._asleep = False

    async def turn(self, broker: Broker) -> bool:
        """Write one entry, if there is something to write and nobody else is writing, and answer what it decided."""
        self._broker = broker
        before = self.turns
        if self.persister.running or self._inline:
            self._begin(broker)
            while self._writing and self._failed is None:
                await self._wait_for_turn()
            if self._failed is not None:
                self._failed.unwrap()
            return self.turns != before
        batch = self._replica.take_batch(self._clock.read())
        if batch is None:
            return False
        self._writing = True
        await self.persister.call(self._replica.persist, batch)
        self._conclude(broker, batch)
        return True

    def _begin(self, broker: Broker) -> None:
        replica = self._replica
        batch = replica.take_batch(self._clock.read())
        if batch is None:
            return
        self._writing = True
        if self._inline and not self.persister.busy:
            self._written(broker, batch, outcome.capture(replica.persist, batch))
        else:
            self.persister.hand_over(replica.persist, (batch,), partial(self._written, broker, batch))

    def _written(self, broker: Broker, batch: Batch, result: outcome.Outcome[None]) -> None:
        """A persist has ended: answer, and go on. What goes wrong is raised by the task."""
        ended = outcome.capture(self._go_on, broker, batch, result)
        if isinstance(ended, outcome.Error):
            self._failed = ended
            self._stirred.set()
            self._tell()

    def _go_on(self, broker: Broker, batch: Batch, result: outcome.Outcome[None]) -> None:
        result.unwrap()
        self._conclude(broker, batch)
        if self._writing or not self._replica.has_work:
            return
        if self._inline or not self.persister.running:
            # While the node ends the thread may be gone already: what it was handed now would never be written.
            self._stirred.set()
        else:
            self._begin(broker)

    def _conclude(self, broker: Broker, batch: Batch) -> None:
        self.turns += 1
        broker.resolve(self._replica.complete(batch))
        broker.flush()
        self._writing = False
        self._tell()

    def _tell(self) -> None:
        for each in list(self.on_turn):
            each()

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
        """Return when nothing waits to be written, nor is being written."""
        while self._replica.has_work or self._writing:
            await self._wait_for_turn()

    async def _wait_for_turn(self) -> None:
        written = trio.Event()
        self.on_turn.append(written.set)
        try:
            await written.wait()
        finally:
            self.on_turn.remove(written.set)
