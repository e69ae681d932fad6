"""One node: the process on a machine, which drives a replica exactly as the daemon does.

    request, message, tick -> propose, receive, tick -> advance, messages leave -> take_batch -> persist, complete

A persist takes simulated time, in which all else goes on. Every `_later` belongs to one life of the process: what comes
after its end is dropped; what comes while it is paused waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from walrq import api
from walrq.errors import Code, DiskFull, NotLeader, Overloaded, Reclaimed, StorageError
from walrq.limits import SLOT_SETTLE_MS
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.raft.core import Raft
from walrq.raft.election import Timing
from walrq.raft.entries import Kind
from walrq.raft.leader import Bounds
from walrq.raft.membership import Configuration
from walrq.raft.messages import Append, Message, decode
from walrq.raft.roles import Status
from walrq.replica import Batch, Done, Job, ReadAhead, Replica, ReplicaConfig, SnapshotJob, Sweep
from walrq.replica.waiting import FarWork
from walrq.simulator.chores import Chores
from walrq.simulator.clock import MS
from walrq.simulator.compacting import Compacting
from walrq.simulator.consensus import Stored
from walrq.simulator.hardware import Hardware
from walrq.simulator.history import BOUNDS as STATE_BOUNDS
from walrq.simulator.processes import Request
from walrq.simulator.promises import Broken, payloads, promise
from walrq.storage.config import FsyncPolicy, StorageConfig
from walrq.storage.findings import Verdict
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import PowerOff

if TYPE_CHECKING:
    from walrq.simulator.cluster import Cluster

TICK_US: Final = 10 * MS
TIMING: Final = Timing(election=6, spread=6, heartbeat=2, stall=15)
# Small, so that there are many appends on the way and several chunks of a snapshot.
BOUNDS: Final = Bounds(append_entries=12, in_flight_appends=6, chunk_bytes=2_000, snapshot_window_bytes=6_000)
# Findings that a power loss alone may never cause.
ROT: Final = frozenset({Verdict.DAMAGED, Verdict.METADATA, Verdict.MISSING})


class Node(Chores):
    """See the module.

    Attributes:
        stored: what its disk holds, whoever looks.
        configuration: the group as this node saw it last.
        gone: its disk was lost; the name never comes back.
        damaged: its files were damaged, and it is not known to be repaired.
        down_for_good: stays down until somebody calls `revive`.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        hardware: Hardware,
        first: Configuration | None,
        fsync: FsyncPolicy,
    ) -> None:
        self.name = name
        self.hardware = hardware
        self.replica: Replica | None = None
        self.storage: Storage | None = None
        self.stored = Stored()
        self.configuration = first if first is not None else Configuration.of((name,))
        self.gone = self.damaged = self.down_for_good = False
        self._first = first
        self._cluster = cluster
        self._fsync: FsyncPolicy = fsync
        self._draw = cluster.draw(f"disk/{name}")
        self._crash_draw = cluster.draw(f"crash/{name}")
        self._elections = cluster.draw(f"elections/{name}")
        self._life = 0
        self._paused_until_us = 0
        # Fields of one life.
        self._waiting: dict[int, Request] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._reads: dict[int, int] = {}
        self._read_ticket = 0
        self._recent: dict[int, Record] = {}
        # Appends by receiver that wait for the log to be read.
        self._unsent: dict[str, list[Append]] = {}
        self._applied = 0
        self._persisting: Batch | None = None
        self._job: SnapshotJob | None = None
        self._chore: Job | None = None
        self._compacting: Compacting | None = None
        self._ahead: ReadAhead | Sweep | None = None
        self._looked: dict[int, c.Cancel | c.Reschedule] = {}
        self._turn_comes = False
        self._reaper_at: int | None = None
        # Entries that this leader stamped by itself, and did not take yet.
        self._stamped: set[int] = set()
        # The fetcher: when it looks again; what it reads; the end of the log when it proposed.
        self._fetcher_at: int | None = None
        self._fetching: FarWork | None = None
        self._fetch_beyond: int | None = None
        self._deadlines_changed = True
        self._turns = 0
        self._settles = False
        self._unfinished: tuple[int, int] | None = None
        # From where a persist replaces entries that has not come back: what it replaces may be gone or not.
        self._cutting: int | None = None
        self._lost_power = False
        self._was_damaged = False
        # Faults still happen.
        self.restless = cluster.options.faults

    # --- what it is -----------------------------------------------------------------------------------------
    @property
    def is_up(self) -> bool:
        """A process runs."""
        return self.replica is not None

    @property
    def is_weak(self) -> bool:
        """Acknowledged work may be lost with the machine, not with the process."""
        return self._fsync != "always"

    @property
    def is_intact(self) -> bool:
        """Nothing of what it promised is missing on its disk."""
        return not self.gone and not self.damaged

    @property
    def is_certain(self) -> bool:
        """It is intact, and no power loss leaves that to be seen at the next start."""
        return self.is_intact and not self._lost_power

    @property
    def raft(self) -> Raft:
        """The core, for those who check it."""
        assert self.replica is not None
        return self.replica._raft

    def reading(self) -> Reading:
        """This machine's clocks now."""
        return self.hardware.clock.read(self._cluster.now_us)

    # --- life -----------------------------------------------------------------------------------------------
    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        life = self._life

        def run() -> None:
            if life == self._life:
                self._guarded(action)

        self._cluster.at(delay_us, run)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Whatever touches the disk may lose power, or meet an error that ends the process."""
        left_us = self._paused_until_us - self._cluster.now_us
        if left_us > 0:
            self._later(left_us, action)
            return
        try:
            action()
        except PowerOff as event:
            self._cluster.mark("power lost between disk operations")
            self.lose_power(str(event))
        except (StorageError, DiskFull) as error:
            self._cluster.mark("disk operation failed")
            # What a failed sync did not cover may be gone, without a power loss.
            self._end(f"exits: {error}", lossy=not self.is_weak)

    def start(self) -> None:
        """Boot the process, as the daemon does."""
        if self.is_up or self.gone or self.down_for_good:
            return
        self._life += 1
        self.hardware.clock.boot()
        if self.restless and self._crash_draw.random() < 0.1:
            self.hardware.arm_power_loss(60)
        if Compacting.was_cut_short(self):
            self._cluster.mark("rewrite cut short")
        try:
            storage = Storage.open(self.hardware.disk, self._storage_config())
            replica = Replica.open(storage, self._replica_config(), self.reading())
        except PowerOff as event:
            self._cluster.mark("power lost while starting")
            self.lose_power(str(event))
            return
        except (StorageError, DiskFull) as error:
            self._does_not_start(error)
            return
        self.storage, self.replica = storage, replica
        self._compacting = Compacting(self, self._later, self._draw.randrange, self._cluster.mark)
        self._lost_power = False
        self._check_recovered(storage)
        self._applied = self.stored.covered
        # Under a weak policy a tail that was torn by the end of the process may have been acknowledged too.
        self.damaged = self.damaged or replica.status is Status.RECOVERING
        self._cluster.say(
            f"{self.name} starts in term {replica.term}, log to {storage.last_index}, applied {replica.applied_index}"
        )
        self._later(self._draw.randrange(TICK_US), self._tick)
        self._guarded(self._after)
        self._cluster.network.changed()

    def _does_not_start(self, error: Exception) -> None:
        self._cluster.say(f"{self.name} does not start: {error}")
        if self.damaged:
            # What a person does then: give the machine a new disk and a new name.
            self._end("is given up", lossy=False)
            self._cluster.replace(self)
        else:
            self._end("exits while starting", lossy=False)

    def _storage_config(self) -> StorageConfig:
        return StorageConfig(
            data_dir="data",
            fsync=self._fsync,
            segment_bytes=20 * 1024,
            reserve_segments=1,
            reserve_snapshot_bytes=8 * 1024,
            pool_segments_max=2,
            member=self._first is not None,
        )

    def _replica_config(self) -> ReplicaConfig:
        return ReplicaConfig(
            node_id=self.name,
            cluster_id="simulated",
            secret=b"s" * 16,
            disk_uuid=self.hardware.uuid,
            snapshot_log_bytes=40 * 1024,
            snapshot_commands=80,
            body_cache_bytes=4 * 1024,
            configuration=self._first,
            address=f"{self.name}.example:1",
            timing=TIMING,
            draw=self._elections.randrange,
            raft_bounds=BOUNDS,
            recent_bytes=6 * 1024,
            bounds=STATE_BOUNDS,
            trace_to=self._cluster.options.trace_to,
            hot_messages=self._cluster.window,
            keeps_window=self._cluster.window is None,
        )

    def _check_recovered(self, storage: Storage) -> None:
        """A disk has what it was told to keep, unless it was damaged; and its damage is seen."""
        suspect = False
        for finding in storage.recovered.report:
            found = self.damaged or finding.verdict not in ROT
            promise("NoRefuseWithoutRot", found, "power loss taken for damage", self.name, finding)
            if finding.verdict is Verdict.SUSPECT:
                self._cluster.mark("suspect tail cut")
                self._cluster.say(f"{self.name}: {finding}")
                # It may have been acknowledged: with peers the node is not whole before it has heard of them.
                suspect = len(self.configuration.voters) > 1
        harmed = self.damaged
        self._was_damaged = self._was_damaged or harmed or suspect
        self.damaged = harmed or suspect
        old = self.stored
        if self._cutting is not None:
            old.cut(self._cutting)
            self._cutting = None
        new = Stored(lost=old.lost)
        new.covered = storage.snapshot.index if storage.snapshot is not None else 0
        new.terms = {record.index: record.term for record in storage.entries(1)}
        missing = {pair for pair in old.terms.items() if pair[0] > new.covered and new.terms.get(pair[0]) != pair[1]}
        hard = storage.hard_state
        if hard is not None:
            new.state = (hard.term, hard.vote)
        if harmed:
            new.lost |= missing
        elif not self.is_weak:
            promise("NoSilentLoss", not missing and new.covered >= old.covered, self.name, missing, old.covered)
        promise("VoteDurableBeforeSent", new.state[0] >= old.state[0], self.name, old.state, new.state)
        if self._unfinished is not None:
            kept = new.terms.get(self._unfinished[0]) == self._unfinished[1]
            self._cluster.mark("unfinished entry kept" if kept else "unfinished entry lost")
            self._unfinished = None
        if new.covered:
            self._cluster.mark("started from a snapshot")
        self.stored = new

    def lose_power(self, why: str) -> None:
        """What was not synced is kept, dropped, torn or garbage.

        Under a weak policy acknowledged work may go with it, so that a minority may lose power at a time; the process
        of another one ends, and its machine stays up.
        """
        if not self.is_weak:
            self._cluster.mark("power lost")
            self._end(f"loses power: {why}", lossy=True)
        elif self.is_intact and self._cluster.nemesis.may_impair(self.name):
            self._cluster.mark("power lost under a weak policy")
            self.damaged = True
            self._end(f"loses power, and perhaps acknowledged work: {why}", lossy=True)
        else:
            self._end(f"ends: {why}", lossy=False)

    def kill(self) -> None:
        """The process ends, the machine goes on: all that was written is there."""
        self._cluster.mark("process killed")
        self._end("is killed", lossy=False)

    def stop(self) -> None:
        """An orderly end, when nothing is being written."""
        if self._persisting is None and self._job is None and self._chore is None and self._ahead is None:
            self._guarded(self._close)

    def _close(self) -> None:
        if self.replica is not None:
            self.replica.close()
            self._cluster.mark("clean stop")
            self._end("stops", lossy=False)

    def pause(self, for_us: int) -> None:
        """The process stands still, as after SIGSTOP; time does not."""
        self._cluster.mark("process paused")
        self._cluster.say(f"{self.name} stands still for {for_us // MS} ms")
        self._paused_until_us = self._cluster.now_us + for_us

    def wake(self) -> None:
        """It goes on."""
        self._paused_until_us = 0

    def revive(self) -> None:
        """It may come up again."""
        self.down_for_good = False
        self.start()

    def _end(self, text: str, *, lossy: bool) -> None:
        self._cluster.say(f"{self.name} {text}")
        if self._persisting is not None and self._persisting.records:
            last = self._persisting.records[-1]
            self._unfinished = (last.index, last.term)
        if self.storage is not None:
            self._cluster.mark("segment recycled", self.storage.stats().recycled)
        if self.replica is not None:
            self._cluster.history.consensus.forget(self)
        self._life += 1
        self.replica = self.storage = self._persisting = self._job = self._chore = self._ahead = None
        self._compacting = None
        self._waiting.clear()
        self._looked.clear()
        self._places.clear()
        self._reads.clear()
        self._recent.clear()
        self._unsent.clear()
        self._turn_comes = False
        self._stamped.clear()
        self._reaper_at = self._fetcher_at = None
        self._fetching = self._fetch_beyond = None
        self._deadlines_changed = True
        self._settles = False
        self._paused_until_us = 0
        self._lost_power = lossy
        self.hardware.end_process(lossy=lossy)
        long = len(self._cluster.nodes) > 1 and self.restless and self._crash_draw.random() < 0.3
        self._cluster.at(self._crash_draw.randrange(1 * MS, (800 if long else 150) * MS), self.start)
        self._cluster.network.changed()

    # --- inputs ---------------------------------------------------------------------------------------------
    def receive(self, request: Request) -> None:
        """A client's request arrived: through the door, into the next entry."""
        if self.is_up:
            self._guarded(lambda: self._receive(request))

    def _receive(self, request: Request) -> None:
        replica, storage = self.replica, self.storage
        if replica is None or storage is None:
            return
        tagged = request.process.tagged(request)
        if not replica.accepts:
            self._cluster.redirect(request, replica.leader)
            return
        if isinstance(tagged.command, c.Push) and not replica.pushes_allowed:
            if storage.space.pushes_allowed:
                self._cluster.mark("push refused for others' full disks")
            failed = api.Failed(Code.DISK_FULL, "the disk is full")
            self._cluster.mark("push refused on a full disk")
            self._cluster.reply(self, request, failed)
            return
        if isinstance(poll := tagged.command, c.Lease):
            arrived_ms = replica.stamp_now(self.reading()).lease_ms
            lease = c.Lease(poll.queues, poll.max_messages, poll.visibility_ms, arrived_ms, poll.worker)
            tagged = c.Tagged(lease, tagged.session, tagged.sequence, tagged.lowest)
        self._waiting[replica.propose(tagged)] = request
        self._wake()

    def hear(self, data: bytes) -> None:
        """A peer's message arrived."""
        message = decode(data)
        self._guarded(lambda: self._hear(message))

    def _hear(self, message: Message) -> None:
        replica = self.replica
        if replica is None:
            return
        if self._cluster.options.verbose:
            self._cluster.say(f"    {message.sender} -> {self.name} {message}")
        replica.receive(message, self.reading())
        if isinstance(message, Append) and message.entries:
            term_at = self.raft.log.term_at
            for index, entry in enumerate(message.entries, message.prev_index + 1):
                if index > self._applied and term_at(index) == entry.term:
                    self._recent[index] = Record(index, entry.term, entry.kind, entry.body)
        self._after()

    def _tick(self) -> None:
        replica = self.replica
        assert replica is not None
        self._later(TICK_US + self._draw.randrange(-MS, MS + 1), self._tick)
        if len(self.configuration.nodes) > 1 or self.name not in self.configuration.voters:
            before = replica.last_index
            replica.tick(self.reading())
            if replica.is_leader:
                # The replica's own commands are stamped here, and taken later.
                for index in range(before + 1, replica.last_index + 1):
                    self._stamped.add(index)
                    self._cluster.history.taken(index, replica.term)
            self._after()
            if self._job is None and replica.snapshot_due():
                self._begin_snapshot()

    def link_up(self, peer: str) -> None:
        """The transport reached a peer."""
        other = self._cluster.nodes[peer]
        self._guarded(
            lambda: self._link(lambda r: r.link_up(peer, other.hardware.uuid, f"{peer}.example:1", c.VERSION_MAX))
        )

    def link_lost(self, peer: str) -> None:
        """The transport lost a peer."""
        self._guarded(lambda: self._link(lambda r: r.link_lost(peer)))

    def _link(self, call: Callable[[Replica], None]) -> None:
        if self.replica is not None:
            call(self.replica)
            self._after()

    def operate(self, call: Callable[[Replica], object]) -> None:
        """What an operator asks of a leader: changes of the group, a handover."""
        assert self.replica is not None
        call(self.replica)
        # At once, also while the process stands still: a change of the group is in effect when it is appended.
        self.configuration = self.replica.configuration
        self._guarded(self._after)

    def ask_read(self) -> None:
        """A client wants to see everything that was decided before it asked."""
        replica = self.replica
        if replica is None:
            return
        self._read_ticket += 1
        try:
            replica.read(self._read_ticket)
        except (NotLeader, Overloaded):
            return
        self._reads[self._read_ticket] = self._cluster.history.index
        self._guarded(self._after)

    # --- what follows an input ------------------------------------------------------------------------------
    def _after(self) -> None:
        replica = self.replica
        if replica is None:
            return
        self._done(replica.advance())
        self._send()
        self._cluster.history.consensus.check(self, self.raft)
        if replica.has_work:
            self._wake()
        if self._chore is None:
            self._begin_chore()
        if self._ahead is None:
            self._read_ahead()
        if self._fetch_beyond is not None and (replica.applied_index > self._fetch_beyond or not replica.accepts):
            self._fetch_beyond = self._fetching = None
            self._deadlines_changed = True
        if self._deadlines_changed:
            self._deadlines_changed = False
            self._look_ahead()
            self._look_farther()

    def _done(self, done: Done) -> None:
        """What was applied is what everybody applies, and what is answered is what the shadow answered."""
        replica = self.replica
        assert replica is not None
        history = self._cluster.history
        if replica.applied_index > self._applied:
            self._check_applied(replica)
            self._deadlines_changed = True
        elif done.office_changed:
            self._deadlines_changed = True
        for finding in done.findings:
            self._cluster.say(f"{self.name}: {finding}")
            promise("StateMachineSafety", not finding.startswith("state_diverged"), finding)
            lost = finding.startswith("bodies_lost")
            promise("EveryLiveReadable", not lost or self._was_damaged, "a false alarm", finding)
        for ticket, result in done.results:
            place = self._places.pop(ticket, None)
            if place is not None:
                history.answered(*place, result)
            request = self._waiting.pop(ticket, None)
            if request is not None and isinstance(result, effects.LookFar):
                self._look_up(request, ticket, result)
            elif request is not None:
                self._cluster.reply(self, request, result)
        for tickets, lost in ((done.lost, True), (done.refused, False)):
            for ticket in tickets:
                self._cluster.mark("ticket lost" if lost else "ticket refused")
                self._places.pop(ticket, None)
                request = self._waiting.pop(ticket, None)
                if request is not None:
                    self._cluster.redirect(request, replica.leader, lost=lost)
        for ticket, ok in done.reads:
            least = self._reads.pop(ticket)
            if ok:
                promise("AppliedBeforeAnswered", replica.applied_index >= least, self.name, least)
                self._cluster.mark("consistent read answered")
                if not replica.is_leader:
                    self._cluster.mark("consistent read on a follower")
        self.configuration = replica.configuration
        if self.damaged and replica.status is not Status.RECOVERING:
            self.damaged = False
            self._cluster.mark("damaged node repaired")
            self._cluster.say(f"{self.name} is whole again")

    def _check_applied(self, replica: Replica) -> None:
        history, storage = self._cluster.history, self.storage
        assert storage is not None
        snapshot = storage.snapshot
        if snapshot is not None and snapshot.index > self._applied:
            promise("SnapLeCommit", snapshot.index <= history.index, self.name, snapshot.index, history.index)
            self._applied = self.stored.covered = snapshot.index
            for index in [index for index in self._recent if index <= snapshot.index]:
                del self._recent[index]
        raft = self.raft
        for index in range(self._applied + 1, replica.applied_index + 1):
            history.entry(self, raft, self._record(index, raft, storage))
        self._applied = replica.applied_index
        history.compare(self.name, replica, self.read_page)

    def _record(self, index: int, raft: Raft, storage: Storage) -> Record:
        record = self._recent.pop(index, None)
        term = raft.log.term_at(index)
        if record is not None and (term is None or record.term == term):
            return record
        if index <= storage.last_index:
            return storage.read(index)
        # Committed by the disks of others before this one's was even asked: they have it.
        promise("NoPhantom", term is not None, self.name, "applied what is in no log", index)
        assert term is not None
        known = self._cluster.history.consensus.entry(index, term)
        promise("NoPhantom", known is not None, self.name, "applied what nobody wrote", index, term)
        assert known is not None
        return known

    def _send(self) -> None:
        replica = self.replica
        assert replica is not None
        for message in replica.take_messages(self.reading()):
            self._cluster.history.consensus.said(self, self.raft, message)
            queue = self._unsent.get(message.receiver)
            if queue is not None and isinstance(message, Append):
                # Appends to one node leave in order.
                queue.append(message)
            elif isinstance(message, Append) and not message.is_filled:
                self._unsent[message.receiver] = [message]
                self._later(self._draw.randrange(20, 600), lambda receiver=message.receiver: self._fill(receiver))  # type: ignore[misc]
            else:
                self._cluster.network.send(message)

    def _fill(self, receiver: str) -> None:
        """A thread reads the bodies of an append from the log; then it leaves, and what waited behind it."""
        replica = self.replica
        assert replica is not None
        queue = self._unsent.pop(receiver)
        while queue:
            append: Append | None = queue.pop(0)
            assert append is not None
            if not append.is_filled:
                append = replica.fill(append)
                if append is None:
                    replica.link_lost(receiver)
                    self._after()
                    return
                self._cluster.mark("append filled from the log")
            self._cluster.network.send(append)

    # --- the driver -----------------------------------------------------------------------------------------
    def _wake(self) -> None:
        if not self._turn_comes and self._persisting is None:
            self._turn_comes = True
            self._later(self._draw.randrange(300), self._turn)

    def _turn(self) -> None:
        """take_batch; the disk gets it somewhere within the time that the persist takes."""
        self._turn_comes = False
        replica = self.replica
        if replica is None or self._persisting is not None:
            return
        batch = replica.take_batch(self.reading())
        if batch is None:
            return
        self._persisting = batch
        self._taken(batch, replica)
        self._send()
        duration_us = self._draw.randrange(200, 6 * MS)
        if self.hardware.is_slow:
            duration_us = self._draw.randrange(30 * MS, 120 * MS)
        written_us = int(duration_us * self._draw.random())
        self._later(written_us, lambda: self._persist(batch, duration_us - written_us))
        if self._draw.random() < 0.3:
            self._later(int(duration_us * self._draw.random()), self._advance)

    def _taken(self, batch: Batch, replica: Replica) -> None:
        history = self._cluster.history
        history.consensus.appended(self, self.raft, batch.records, batch.ready.cut_from)
        if batch.ready.cut_from is not None:
            for index in [index for index in self._recent if index >= batch.ready.cut_from]:
                if self.raft.log.term_at(index) != self._recent[index].term:
                    del self._recent[index]
        for record in batch.records:
            if record.index > self._applied:
                self._recent[record.index] = record
        if batch.tickets:
            entry = next(record for record in reversed(batch.records) if record.kind == Kind.COMMANDS)
            for position, ticket in enumerate(batch.tickets):
                self._places[ticket] = (entry.index, position)
        if replica.is_leader:
            for record in batch.records:
                if record.term == replica.term and record.index not in self._stamped:
                    history.taken(record.index, record.term)
        self._stamped.clear()

    def _persist(self, batch: Batch, left_us: int) -> None:
        if self.hardware.stuck:
            self._later(5 * MS, lambda: self._persist(batch, left_us))
            return
        assert self.replica is not None
        self._cutting = batch.ready.cut_from
        try:
            self.replica.persist(batch)
        except DiskFull:
            self._cluster.mark("write waits for room")
            self._later(20 * MS, lambda: self._persist(batch, left_us))
            return
        self._cutting = None
        if not batch.refused:
            stored, ready = self.stored, batch.ready
            if ready.hard_state is not None:
                stored.state = (ready.hard_state.term, ready.hard_state.vote)
            if ready.cut_from is not None:
                stored.cut(ready.cut_from)
            for record in batch.records:
                stored.terms[record.index] = record.term
        self._later(left_us, lambda: self._complete(batch))

    def _advance(self) -> None:
        """Called while a persist runs."""
        if self._persisting is not None:
            self._cluster.mark("advanced during a persist")
            self._after()

    def _complete(self, batch: Batch) -> None:
        assert self.replica is not None and self.storage is not None
        done = self.replica.complete(batch)
        self._persisting = None
        self._turns += 1
        if batch.refused:
            self._cluster.say(f"{self.name} has no room for entry {batch.records[-1].index}")
            self._cluster.history.consensus.withdrawn(self, self.raft)
            for ticket in batch.tickets:
                self._places.pop(ticket, None)
        self._done(done)
        self._after()
        self._after_turn()

    def _after_turn(self) -> None:
        replica, storage = self.replica, self.storage
        if replica is None or storage is None:
            return
        if not replica.has_work:
            self._await_idleness()
        if replica.snapshot_due() and self._job is None:
            self._begin_snapshot()
        if not storage.space.pushes_allowed:
            self._later(50 * MS, self._replenish)

    def _await_idleness(self) -> None:
        """Look again when the log may have been idle for a while: then its second slot is written."""
        if not self._settles:
            self._settles = True
            turns = self._turns
            self._later(SLOT_SETTLE_MS * MS, lambda: self._settle(turns))

    def _settle(self, turns: int) -> None:
        self._settles = False
        if self._persisting is not None or turns != self._turns:
            self._await_idleness()
        elif self.storage is not None and not self.hardware.stuck:
            self.storage.settle()

    def _look_ahead(self) -> None:
        """The reaper: come back when the next thing falls due."""
        replica = self.replica
        if replica is None or not replica.accepts:
            return
        deadline_ms = replica.next_deadline(self.reading())
        if deadline_ms is None:
            return
        now_us = self._cluster.now_us
        at_us = now_us + self.hardware.clock.until_us(deadline_ms, now_us)
        if self._reaper_at is None or at_us < self._reaper_at:
            self._reaper_at = at_us
            self._later(at_us - now_us, lambda: self._reap(at_us))

    def _reap(self, at_us: int) -> None:
        if self._reaper_at != at_us or self.replica is None:
            return
        self._reaper_at = None
        reading = self.reading()
        deadline_ms = self.replica.next_deadline(reading)
        if self.replica.accepts and deadline_ms is not None and deadline_ms <= reading.monotonic_ms:
            self.replica.propose_expiry()
            self._wake()
        else:
            self._look_ahead()

    # --- bodies ---------------------------------------------------------------------------------------------
    def bodies(self, index: int, ordinal: int) -> list[bytes]:
        """All payloads at an address, through cache or log."""
        assert self.replica is not None
        try:
            return payloads(self.replica.load_body(index, ordinal))
        except Reclaimed as error:
            raise Broken(f"EveryLiveReadable: {self.name} {index}/{ordinal} {error}") from error

    def read(self, run: effects.Grant) -> list[bytes]:
        """The payloads of a leased run."""
        return self.bodies(run.index, run.ordinal)[run.first : run.first + run.count]
