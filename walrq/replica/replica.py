"""The object of one node: the seam, and all that goes on beside it. See the package for how it is driven."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from walrq.api import Columns
from walrq.errors import DiskFull, InvalidArgument, NotLeader
from walrq.queues.batch import Batch
from walrq.queues.clocks import Reading
from walrq.queues.commands import Hydrate, Stamp, Tagged
from walrq.queues.horizon import holds
from walrq.queues.image import live_in
from walrq.queues.reads import lost_messages
from walrq.raft.membership import Member
from walrq.raft.snapshots import Chunk
from walrq.replica.ahead import ColdSearch, ReadAhead, Sweep, Wanted
from walrq.replica.batch import Done
from walrq.replica.company import group_of, only
from walrq.replica.config import ReplicaConfig
from walrq.replica.images import SnapshotJob
from walrq.replica.jobs import Job, LoadEntries
from walrq.replica.opening import look
from walrq.replica.restoring import ReadRecords, StoreRecords, cold_of
from walrq.replica.seam import Seam
from walrq.replica.transfer import InstallSnapshot, Read, ReadChunks, StoreChunks
from walrq.replica.waiting import FarWork
from walrq.storage.findings import Finding, Verdict
from walrq.storage.storage import Pin, Storage
from walrq.tiers.timers import Listing, Search, Since

# A record's header and padding.
ENTRY_OVERHEAD_BYTES = 40
# Until a stream that could not be read is begun again.
SEND_AGAIN_TICKS = 4


class Replica(Seam):
    """See the package.

    Attributes:
        machine: the state. Another object after `Done.installed`.
        applied_index: it stands at this entry.
    """

    # --- start ----------------------------------------------------------------------------------------------
    @classmethod
    def open(cls, storage: Storage, config: ReplicaConfig, reading: Reading) -> Replica:
        """Load the snapshot; with a single voter replay the log behind it and take office, otherwise follow. Blocking.

        Raises:
            ConfigError: the list of a new cluster does not name this node.
            StorageError: what is stored belongs to another node, or cannot be read.
        """
        self = cls(storage, config, look(storage, config))
        if only(config.node_id, self._configuration) and not self._damaged:
            self._begin_alone(reading)
        return self

    def _begin_alone(self, reading: Reading) -> None:
        machine = self.machine
        self._raft.campaign()
        # The office begins as soon as its vote is durable, whether or not anybody asks anything of it.
        self._write_now(reading)
        for lost in lost_messages(machine, self._storage.index_ranges(), self.applied_index, cold_of(self._storage)):
            self._storage.note(Finding(Verdict.MISSING, "wal", str(lost), first_index=lost.first, last_index=lost.last))
        while self.has_work:
            # The first entry of the term; the birth of a new cluster.
            self._write_now(reading)
        if self._alone and machine.version < self.config.version_max:
            self._raise_version(self.config.version_max, reading)
            self._write_now(reading)
        if self._alone and not self.config.keeps_window and self._agree_on_window(reading):
            self._write_now(reading)

    def _write_now(self, reading: Reading) -> None:
        batch = self.take_batch(reading)
        assert batch is not None
        self.persist(batch)
        if batch.refused:
            raise DiskFull("the disk is full: the first entry of this start does not fit")
        self.complete(batch)

    # --- the group ------------------------------------------------------------------------------------------
    def add_learner(self, member: Member) -> int:
        """Let a node join. Returns the index of the entry; done once that is committed.

        Raises:
            InvalidArgument, NotLeader, NotReady: see `walrq.raft.core.Raft.add_learner`.
        """
        position, body = self._raft.add_learner(member, self._news())
        self._changed_group(position[1], body)
        return position[1]

    def promote(self, node: str) -> int:
        """Make a learner a voter. As `add_learner`."""
        position, body = self._raft.promote(node)
        self._changed_group(position[1], body)
        return position[1]

    def remove(self, node: str) -> int:
        """Let a node go. As `add_learner`."""
        position, body = self._raft.remove(node)
        self._changed_group(position[1], body)
        return position[1]

    def transfer(self, target: str | None = None) -> str:
        """Hand leadership over; without a target to the best follower. Returns whom.

        Raises:
            NotLeader: this node does not lead, or is handing over already.
            InvalidArgument: the target is no other voter, or there is nobody.
        """
        if target is None:
            target = self._raft.successor
            if target is None and self._raft.is_leader:
                raise InvalidArgument("target: there is no other voter to hand over to", field="target")
        self._raft.transfer(target or "")
        return target or ""

    def read(self, ticket: int) -> None:
        """Ask whether a read may be answered from the state here; `Done.reads` says so, soon after.

        Raises:
            NotLeader: no leader is known.
            Overloaded: too many reads wait.
        """
        self._raft.read(ticket)
        self._reads_asked += 1

    def cluster_state(self) -> dict[str, Any]:
        """Plain values about the group; what a follower does not know is None."""
        return group_of(self._raft, self._heard) | {"applied_index": self.applied_index}

    # --- the background -------------------------------------------------------------------------------------
    def background(self) -> Job | None:
        """Blocking work to be done in a thread; None when there is none, or while one is under way."""
        if self._background is None:
            self._background = self._load() or self._install() or self._mend_bodies() or self._store() or self._send()
            return self._background
        return None

    def _load(self) -> Job | None:
        """Entries to apply that did not come through memory."""
        index, commit = self.applied_index + 1, self._raft.commit_index
        if index > commit or self._loaded or not self._is_stored_only(index):
            return None
        last = index
        while last < commit and self._is_stored_only(last + 1):
            last += 1
        return LoadEntries(self._storage, index, last)

    def _is_stored_only(self, index: int) -> bool:
        return self._recent.get(index) is None and index not in self._pending

    def _install(self) -> Job | None:
        """A snapshot that came whole, once nothing else is being written."""
        chunk = self._whole
        if chunk is None or self._persisting is not None or self._raft.has_ready or self._images.job is not None:
            return None
        holds = self._raft.holds(chunk.index, chunk.snapshot_term)
        return InstallSnapshot(self._receiving, self._storage, chunk, self.config, holds=holds)

    def _mend_bodies(self) -> Job | None:
        """Lost records: this node's, and those that others ask for."""
        return self._restoring.job(self._raft.commit_index)

    def _store(self) -> Job | None:
        if self._restoring.restorer is not None and self._raft.has_chunks:
            # What is received takes the same place: what came of lost records is put in theirs before.
            self._restoring.give_way()
            return self._mend_bodies()
        chunks = self._raft.take_chunks()
        return StoreChunks(self._receiving, chunks) if chunks else None

    def _send(self) -> Job | None:
        lead = self._raft.lead
        if lead is None:
            self._sending.keep({})
            return None
        if not self._sending.is_idle:
            self._sending.keep(
                {node: each.outgoing.stream for node, each in lead.progress.items() if each.outgoing is not None}
            )
        if self._raft.ticks < self._send_at_tick:
            return None
        wanted = self._raft.wanted_chunks()
        return ReadChunks(self._sending, self.machine, wanted) if wanted else None

    def background_done(self, job: Job) -> Done:
        """A job was run. Then `take_messages`."""
        assert job is self._background
        self._background = None
        installed = False
        match job:
            case LoadEntries():
                self._loaded = job.loaded
            case ReadChunks():
                for read in job.chunks:
                    wanted = read.wanted
                    if read.data is None:
                        self._cannot_send(read)
                        self._raft.snapshot_gone(wanted.receiver, wanted.stream)
                    else:
                        self._raft.supply(wanted.receiver, wanted.stream, wanted.offset, read.data, read.is_last)
            case StoreChunks():
                self._stored(job)
            case ReadRecords():
                self._restoring.answered(job, self._raft.cluster, self._raft.term)
            case StoreRecords():
                others = [node for node in self._configuration.voters if node != self.config.node_id]
                if self._restoring.stored(job, self.machine, self._lost_through, self._raft.ticks, others):
                    self._restored()
            case InstallSnapshot():
                installed = self._installed(job)
        self._look()
        done = self.advance()
        done.installed = installed
        return done

    def _cannot_send(self, read: Read) -> None:
        self._send_at_tick = self._raft.ticks + SEND_AGAIN_TICKS
        if read.damaged and read.wanted.index != self._renewed_at:
            # Once: if that one is damaged as well it is the disk.
            self._renewed_at = max(read.wanted.index, self._images.index)
            self._images.renew()
        if read.why and read.why != self._send_failure:
            self._send_failure = read.why
            self._findings.append(
                f"snapshot_unreadable: {read.wanted.receiver!r} cannot be sent a snapshot: {read.why}"
            )

    def _stored(self, job: StoreChunks) -> None:
        for chunk in job.chunks:
            if chunk is job.refused:
                self._refuse_snapshot(chunk, job.why)
                return
            if self._raft.chunk_stored(chunk):
                self._whole = chunk

    def _refuse_snapshot(self, chunk: Chunk, why: str) -> None:
        if why != self._refused_why:
            # Once for a disk that stays full.
            self._refused_why = why
            self._findings.append(f"snapshot_refused: what {chunk.sender!r} sent is not usable: {why}")
        self._raft.refuse_snapshot(chunk)

    def _installed(self, job: InstallSnapshot) -> bool:
        chunk, self._whole = job.chunk, None
        machine = job.machine
        if machine is None:
            self._refuse_snapshot(chunk, job.why)
            return False
        self._refused_why = ""
        index = chunk.index
        self._raft.installed(chunk)
        if self._raft.last_index == index:
            self._forget_from(self._recent.base + 1)
            self._recent.reset(index)
        else:
            self._recent.compact(index)
        self._noted = self._raft.last_index
        # Whatever became of them is in the snapshot, without its answer.
        for each in [each for each in self._pending if each <= index]:
            self._pending.pop(each).cut = True
        self._times.applied(index)
        self._loaded.clear()
        self.machine = machine
        self.applied_index = index
        self._images.replace(machine, job.hashes, index)
        # What it lacks now is another thing.
        self._restoring.lost = []
        self._losses_seen = -1
        self._raft.electable = not self._has_diverged
        return True

    # --- time -----------------------------------------------------------------------------------------------
    def stamp_now(self, reading: Reading) -> Stamp:
        """What an entry taken now would be stamped with; at a follower that of the last entry applied."""
        if self._raft.lead is None:
            return self.machine.last_stamp
        return self._clock(reading).peek(self._times.agreed(reading))

    def next_deadline(self, reading: Reading) -> int | None:
        """Monotonic ms at which a stamp would make something happen; None when nothing waits, or elsewhere."""
        if self._raft.lead is None:
            return None
        clock = self._clock(reading)
        lease_ms = self.machine.next_lease_deadline()
        wall_ms = self.machine.next_wall_deadline()
        first: int | None = None
        if lease_ms is not None:
            first = clock.monotonic_of_lease(lease_ms)
        if wall_ms is not None:
            # Looked at again then: the wall clock may have been slewed.
            now = clock.peek(self._times.agreed(reading))
            at = reading.monotonic_ms + max(0, wall_ms - now.wall_ms)
            first = at if first is None else min(first, at)
        return first

    # --- beyond the window ----------------------------------------------------------------------------------
    @property
    def is_thirsty(self) -> bool:
        """Whether `read_ahead` may have something."""
        machine = self.machine
        if not (machine.thirst or machine.cold_ends) or not self._ahead.is_idle():
            return False
        return self._raft.lead is not None and (bool(machine.thirst) or bool(machine.cold_due()))

    def read_ahead(self) -> ReadAhead | Sweep | None:
        """What queues will want from beyond their windows soon: run it in a thread, then `read_ahead_done`."""
        return self._ahead.work(self.machine) if self.accepts else None

    def read_ahead_done(self, job: ReadAhead | Sweep) -> None:
        """Propose what was read. Ask again when it is applied."""
        commands = self._ahead.done(job)
        if not self.accepts:
            return
        lost = next((each for each in job.wanted if each.why), None)
        if lost is not None and isinstance(job, ReadAhead) and not self._give_way(lost):
            # inv: NoSilentLoss
            commands.append(Hydrate(lost.uid, lost.lane, lost.stretch))
        for command in commands:
            self._ahead.proposed(self.propose(Tagged(command)))

    def _give_way(self, lost: Wanted) -> bool:
        """A stretch cannot be read: say so, and let another node lead, whose disk has it. False: there is none."""
        queue = self.machine.by_uid.get(lost.uid)
        cold = queue.cold.get(lost.lane) if queue is not None else None
        stretch = cold.sealed.get(lost.stretch) if cold is not None else None
        if queue is None or stretch is None:
            return True
        text = f"{stretch.messages} messages of queue {queue.name!r} beyond the hot window cannot be read: {lost.why}"
        successor = self._raft.successor
        if successor is not None:
            self._raft.electable = False
            self._findings.append(f"cold_unreadable: {text}; node {successor!r} is to lead")
            self._raft.transfer(successor)
            return True
        self._storage.note(Finding(Verdict.METADATA, "snapshots", text))
        self._findings.append(f"cold_lost: {text}; they are gone, everything else is served")
        return False

    def search_cold(
        self,
        uid: int,
        wanted: Callable[[Batch], bool],
        *,
        messages_max: int | None = None,
        after: int = 0,
        ids: Sequence[int] | None = None,
    ) -> ColdSearch:
        """A search among what is cold of a queue: run it in a thread."""
        queue = self.machine.by_uid[uid]
        return ColdSearch(self._storage, queue, wanted, messages_max=messages_max, after=after, ids=ids)

    def search_ids(self, name: str, ids: Sequence[int]) -> ColdSearch | None:
        """A search for messages by id, as `search_cold`. None: no such queue."""
        queue = self.machine.queues.get(name)
        if queue is None:
            return None
        return self.search_cold(queue.uid, lambda batch: any(holds(batch, queue.uid, each) for each in ids), ids=ids)

    # --- beyond the horizon ---------------------------------------------------------------------------------
    def far_work(self, reading: Reading) -> FarWork | None:
        """A leader's next piece of work on what waits beyond the horizon, if there is any now: run it in a thread,
        propose its command, and ask again once that is applied.
        """
        if not self.accepts:
            return None
        return self._waiting.work(self.machine, self.stamp_now(reading).wall_ms)

    def far_deadline(self, reading: Reading) -> int | None:
        """Monotonic ms at which `far_work` will have something; None when nothing waits, or elsewhere."""
        wanted_ms = self._waiting.wanted_ms(self.machine) if self.accepts else None
        if wanted_ms is None:
            return None
        return reading.monotonic_ms + max(0, wanted_ms - self.stamp_now(reading).wall_ms)

    def far_lost(self, number: int, why: str) -> str:
        """A page of what waits cannot be read. Returns what an operator must be told.

        A node that is alone gives up what is in it, and nothing else. Another one leaves the office to those who can
        read it, and does not lead again in this life: its next start finds the damage and is mended by the others.
        """
        text = f"delayed_unreadable: page {number} of delayed messages cannot be read on {self.config.node_id!r}: {why}"
        if self._alone:
            self._waiting.is_losing = True
            return text
        self._raft.electable = False
        with contextlib.suppress(NotLeader, InvalidArgument):
            self.transfer()
        return text

    def find_far(self, ids: tuple[int, ...]) -> Search:
        """A search for messages in sealed pages; run it in a thread."""
        return self._waiting.look_up(self.machine.far, ids)

    def list_far(self, uid: int, after: int, rows_max: int) -> Listing:
        """A page of a queue's rows beyond the horizon; run it in a thread."""
        queue = self.machine.by_uid[uid]
        return self._waiting.listing(self.machine.far, uid, queue.far_floor, after, rows_max)

    def far_since(self, uid: int, sequence: int, messages_max: int) -> Since:
        """A queue's rows beyond the horizon from a sequence on; run it in a thread."""
        floor = self.machine.by_uid[uid].far_floor
        return self._waiting.since(self.machine.far, uid, max(floor, sequence), messages_max)

    # --- bodies ---------------------------------------------------------------------------------------------
    def body(self, index: int, ordinal: int) -> Columns | None:
        """The columns at an address if they are in memory."""
        return self._bodies.in_memory(index, ordinal)

    def load_body(self, index: int, ordinal: int) -> Columns:
        """The columns at an address, read from the log if need be. Blocking; any thread.

        Raises:
            CorruptRecord: the record is damaged.
            Reclaimed: the log does not have it: nothing at that address was alive any more, or its segment was lost
                (`holds` and `may_be_live` tell).
        """
        return self._bodies.load(index, ordinal)

    def holds(self, uid: int, lease: int) -> bool:
        """Whether a lease of the queue `uid` is outstanding. Any thread: two look-ups in dictionaries."""
        queue = self.machine.by_uid.get(uid)
        return queue is not None and lease in queue.leases

    def may_be_live(self, index: int) -> bool:
        """Whether a message pushed by the entry at `index` may be there still. Any thread.

        False for all that `reclaim` gave back, unless something was pushed within the same block of indexes since.
        """
        return live_in(self.machine, index, index)

    # --- snapshots ------------------------------------------------------------------------------------------
    @property
    def snapshot_messages(self) -> int:
        """Messages of every state in the newest snapshot."""
        return self._images.messages

    def snapshot_due(self) -> bool:
        """Whether it is time for `begin_snapshot`.

        Alone: the log behind the last snapshot is long enough. With peers: a point has been applied.
        """
        images = self._images
        if images.job is not None or self._whole is not None:
            return False
        if images.point is None:
            return images.is_long and self._alone
        # inv: SnapLeDurable: a follower may have applied what its own disk does not hold yet.
        return images.point[0] <= self._raft.durable_index

    def begin_snapshot(self) -> SnapshotJob | None:
        """The snapshot of the last point, or else of now; None when one is on its way or nothing is new."""
        images = self._images
        if images.job is not None or self._whole is not None:
            return None
        compares = images.point is not None
        if images.point is None:
            if self.applied_index <= images.index or not self._configuration.voters:
                return None
            if self.applied_index > self._raft.durable_index:
                return None
            images.freeze(self.applied_index)
        assert images.point is not None
        index = images.point[0]
        if index > self._raft.durable_index:
            return None
        term = self._raft.log.term_at(index)
        assert term is not None, index
        return images.begin(term, self._raft.membership.at(index).encode(), compares=compares)

    def snapshot_done(self, job: SnapshotJob) -> None:
        """A job was finished."""
        if not self._images.done(job):
            self._diverged(job.index)
        base = self._kept_base()
        self._raft.snapshot_taken(job.index, base + 1)
        self._recent.compact(self._raft.log.base_index)

    def _kept_base(self) -> int:
        """The last entry that need not be sent from the log any more: followers that lack older ones get a snapshot."""
        if self._alone:
            return self._images.index
        index = self._images.index
        return self._recent.first_within(index, self.config.snapshot_log_bytes // 4, ENTRY_OVERHEAD_BYTES) - 1

    def snapshot_failed(self, job: SnapshotJob) -> None:
        """A job was given up: the next snapshot writes every page."""
        self._images.failed(job)

    def reclaim(self) -> int:
        """Give back segments that the newest snapshot covers and nothing lives in; how many. Blocking."""
        machine = self.machine
        return self._storage.reclaim(self.disposable_index, lambda first, last: live_in(machine, first, last))

    @property
    def disposable_index(self) -> int:
        """Entries up to here are kept for the messages in them only: nobody is sent them as a log. Any thread."""
        return min(self._images.index, self._raft.log.base_index)

    def leave_out_dead(self, pin: Pin) -> None:
        """Let a pin hold only segments that the next snapshot may need. Blocking; before that snapshot begins."""
        machine = self.machine
        pin.leave_out_dead(lambda first, last: live_in(machine, first, last))

    # --- the rest -------------------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "term": self._raft.term,
            "is_leader": self._raft.is_leader,
            "role": self._raft.role.value,
            "status": self._raft.status.value,
            "leader": self._raft.leader,
            "commit_index": self._raft.commit_index,
            "applied_index": self.applied_index,
            "snapshot_index": self._images.index,
            "snapshots": self._images.count,
            "entries": self._entries,
            "body_cache_bytes": self._bodies.bytes,
            "recent_bytes": self._recent.bytes,
            "state_version": self.machine.version,
            "hot_messages": self.machine.tally.messages,
            "cold_messages": self.machine.cold_messages,
            "hydrated_messages": self._ahead.messages,
        }

    def close(self, *, clean: bool = True) -> None:
        """Close the storage; `clean` leaves the mark of an orderly stop. Blocking."""
        self._storage.close(clean=clean)
