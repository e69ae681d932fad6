"""The loop that turns proposals into durable, applied entries.

    go, or wake -> take_batch -> persist (the disk) -> complete -> resolve (replies) -> flush (sockets) -> go

Group commit needs no component: the batch is what was proposed while the last persist ran. With a policy that
syncs, persist runs in a thread and the event loop goes on reading; under `never` it is one buffered write and
runs here. One persist at a time: whatever else writes to the log (the interval's sync, the settling of an idle
log) goes through the same thread.

A turn costs no task switch where it can be helped: who has read all that was ready starts it (`go`), and the end of
a persist is handled where the event loop learns of it. The task looks after what is left: proposals made by others,
the settling, failures.

With peers (`attach`) there are more occasions, and each ends in `pump`: a message came, a tick passed, a background
job has ended. What may leave is sent as soon as a batch is taken, before the disk has it, so that a leader's sync and
its followers' overlap; what depends on the disk does not come out of the replica before `complete`. A node without
peers takes none of these ways.

A failed write or sync is final: the exception leaves the task and ends the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import outcome
import trio

from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.persister import Persister
from walrq.errors import DiskFull
from walrq.limits import SLOT_SETTLE_MS
from walrq.raft.messages import Message
from walrq.replica import Batch, Replica
from walrq.storage.storage import Storage

log = logging.getLogger("walrq.driver")

# How often a disk without any room is tried again.
WRITE_AGAIN_S: Final = 0.5


class Job(Protocol):
    """A background job of the replica."""

    def run(self) -> None:
        """Do it. Blocking; any thread."""
        ...


class Driver:
    """See the module.

    Attributes:
        persister: the thread through which everything that writes to the log goes, one call at a time.
        on_turn: called after every turn (the reaper, the compactor and the doorman look whether they are needed).
        on_written: told of each entry the seconds from when it was taken until it was durable here and answered; None
            while nobody wants to know.
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
        # A batch that the disk had no room for, and that must be written all the same.
        self._full: Batch | None = None
        self._told_full = False
        # Somebody gathers proposals and will call `go`: no need to wake anybody.
        self._held = False
        self._nudged = False
        self._stirred = trio.Event()
        # The task waits for more than the settling: a turn that it did not begin has to wake it.
        self._asleep = False
        # With peers: how messages leave.
        self._send: Callable[[list[Message]], None] | None = None
        self._change: trio.Event | None = None
        # Whether proposals were taken when last looked.
        self._accepted = False
        # Queues may want more from beyond their window; None: nobody waits for that.
        self._thirst: trio.Event | None = None
        # A background job of the replica that waits for its thread, or runs.
        self._job: Job | None = None
        self._job_there = trio.Event()
        # Held by whoever works on the storage beside the persists: background jobs, settling, syncing, reclaim. While a
        # background job puts a peer's snapshot in place, the replica has nothing to persist.
        self.aside = trio.Lock()
        self.persister = Persister()
        self.on_turn: list[Callable[[], None]] = []
        self.on_written: Callable[[float], None] | None = None
        self._taken_s = 0.0
        self.turns = 0

    # --- peers ----------------------------------------------------------------------------------------------
    def attach(self, broker: Broker, send: Callable[[list[Message]], None]) -> None:
        """Send through `send` from now on."""
        self._broker = broker
        self._send = send

    def receive(self, message: Message) -> None:
        """A peer's message. While proposals gather, what follows from it waits for `go` as they do.

        Raises:
            RemoteProtocolError: it contradicts what no correct peer contradicts.
        """
        try:
            self._replica.receive(message, self._clock.read())
        finally:
            if self._held:
                self._nudged = True
            else:
                self.pump()

    def tick(self) -> None:
        """A tick passed."""
        self._replica.tick(self._clock.read())
        self.pump()

    def pump(self) -> None:
        """Answer what is decided, write what must be written unless a write is under way, send what may leave."""
        broker = self._broker
        if broker is None:
            return
        applied = self._replica.applied_index
        broker.resolve(self._replica.advance())
        broker.flush()
        if not (self._writing or self._held) and self._replica.has_work:
            self.go()
        self._send_out()
        accepts = self._replica.accepts
        if self._replica.applied_index != applied or accepts != self._accepted:
            self._accepted = accepts
            self._tell()

    async def wait_change(self) -> None:
        """With peers: return when something may have changed, whatever it is."""
        if self._change is None:
            self._change = trio.Event()
        await self._change.wait()

    def _send_out(self) -> None:
        """With peers: what may leave leaves, and a background job finds its thread."""
        send = self._send
        if send is None:
            return
        if self._change is not None:
            self._change.set()
            self._change = None
        replica = self._replica
        messages = replica.take_messages(self._clock.read())
        if messages:
            send(messages)
        if self._job is None:
            self._job = replica.background()
            if self._job is not None:
                self._job_there.set()

    async def run_background(self) -> None:
        """Run the replica's background jobs, one after another, each in a thread."""
        while True:
            await self._job_there.wait()
            self._job_there = trio.Event()
            job = self._job
            assert job is not None
            async with self.aside:
                await trio.to_thread.run_sync(job.run)
            self._job = None
            broker = self._broker
            assert broker is not None
            broker.resolve(self._replica.background_done(job))
            self.pump()
            # A peer's snapshot may have put another state in place, with nothing left to apply.
            self._tell()

    async def run_read_ahead(self) -> None:
        """Read what queues will want from beyond the hot window before they do, one job after another."""
        replica = self._replica
        while True:
            job = replica.read_ahead()
            if job is None:
                self._thirst = trio.Event()
                await self._thirst.wait()
                continue
            await trio.to_thread.run_sync(job.run)
            replica.read_ahead_done(job)
            self.wake()

    # --- turns ----------------------------------------------------------------------------------------------
    def wake(self) -> None:
        """There is something to write."""
        if not (self._writing or self._held):
            self._stirred.set()

    def nudge(self) -> None:
        """There may be something to send, or to answer."""
        self._nudged = True
        if not self._held:
            self._stirred.set()

    def hold(self) -> None:
        """Until `go` is called, proposals gather."""
        self._held = True

    def go(self) -> None:
        """Begin a turn, unless one is under way or there is nothing to write."""
        self._held = False
        if self._nudged:
            self._nudged = False
            self.pump()
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
                while self._writing and self._failed is None and self._full is None:
                    await self.wait_for_turn()

    async def _look_after(self, broker: Broker) -> None:
        """Begin what nobody else has begun; settle a log that has become idle; raise what went wrong."""
        if self._failed is not None:
            self._failed.unwrap()
        if self._full is not None:
            await self._write_again(broker)
            return
        if self._nudged:
            self._nudged = False
            self.pump()
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
            async with self.aside:
                await self.persister.call(self._storage.settle)
        if self.turns == turns and not self._writing:
            self._asleep = True
            await self._stirred.wait()
            self._asleep = False

    async def _write_again(self, broker: Broker) -> None:
        """The disk had no room for what must be written: wait for some, and hear what peers say meanwhile."""
        batch = self._full
        assert batch is not None
        if not self._told_full:
            self._told_full = True
            log.warning("disk_full nothing can be written, not even into what is held back for this: waiting for space")
        with trio.move_on_after(WRITE_AGAIN_S):
            while True:
                self._stirred = trio.Event()
                await self._stirred.wait()
                if self._nudged:
                    self._nudged = False
                    self.pump()
        self._full = None
        if self._inline and not self.persister.busy:
            self._written(broker, batch, outcome.capture(self._replica.persist, batch))
        else:
            self.persister.hand_over(self._replica.persist, (batch,), partial(self._written, broker, batch))

    async def turn(self, broker: Broker) -> bool:
        """Write one entry, if there is something to write and nobody else is writing, and answer what it decided."""
        self._broker = broker
        before = self.turns
        if self.persister.running or self._inline:
            self._begin(broker)
            while self._writing and self._failed is None and self._full is None:
                await self.wait_for_turn()
            if self._failed is not None:
                self._failed.unwrap()
            return self.turns != before
        batch = self._replica.take_batch(self._clock.read())
        if batch is None:
            return False
        self._writing = True
        self._send_out()
        # What was taken is written, also when the node ends just now: the end waits for it.
        with trio.CancelScope(shield=True):
            await self.persister.call(self._replica.persist, batch)
        self._conclude(broker, batch)
        return True

    def _begin(self, broker: Broker) -> None:
        replica = self._replica
        batch = replica.take_batch(self._clock.read())
        if batch is None:
            return
        self._writing = True
        if self.on_written is not None:
            self._taken_s = self._clock.monotonic_s()
        if self._send is not None:
            self._send_out()
        if self._inline and not self.persister.busy:
            self._written(broker, batch, outcome.capture(replica.persist, batch))
        else:
            self.persister.hand_over(replica.persist, (batch,), partial(self._written, broker, batch))

    def _written(self, broker: Broker, batch: Batch, result: outcome.Outcome[None]) -> None:
        """A persist has ended: answer, and go on. What goes wrong is raised by the task."""
        if isinstance(result, outcome.Error) and isinstance(result.error, DiskFull):
            # Others have it by now: it is written as soon as there is room, and nothing is acknowledged before.
            self._full = batch
            self._stirred.set()
            self._tell()
            return
        ended = outcome.capture(self._go_on, broker, batch, result)
        if isinstance(ended, outcome.Error):
            self._failed = ended
            self._stirred.set()
            self._tell()

    def _go_on(self, broker: Broker, batch: Batch, result: outcome.Outcome[None]) -> None:
        result.unwrap()
        self._told_full = False
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
        if self.on_written is not None:
            self.on_written(self._clock.monotonic_s() - self._taken_s)
        if self._send is not None:
            self._send_out()
        self._tell()

    def _tell(self) -> None:
        if self._thirst is not None and self._replica.is_thirsty:
            self._thirst.set()
            self._thirst = None
        for each in list(self.on_turn):
            each()

    async def run_interval(self, interval_ms: int) -> None:
        """Sync every `interval_ms` what the policy `interval:MS` left unsynced; nothing while nothing is."""
        synced = 0
        while True:
            await trio.sleep(interval_ms / 1000)
            if self.turns == synced:
                await self.wait_for_turn()
            synced = self.turns
            async with self.aside:
                await self.persister.call(self._storage.sync)

    async def wait_written(self) -> None:
        """Return when nothing waits to be written, nor is being written."""
        while self._replica.has_work or self._writing:
            await self.wait_for_turn()

    @property
    def is_writing(self) -> bool:
        """A batch is being persisted."""
        return self._writing

    async def wait_for_turn(self) -> None:
        """Return when a turn is over."""
        written = trio.Event()
        self.on_turn.append(written.set)
        try:
            await written.wait()
        finally:
            self.on_turn.remove(written.set)
