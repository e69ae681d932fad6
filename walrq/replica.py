"""One replica: consensus, queues and storage composed. The daemon and the simulator make the same calls.

    ticket = replica.propose(command)            any time, while leading
    batch  = replica.take_batch(reading)         pure: ONE stamped entry of all that gathered
    replica.persist(batch)                       blocking, storage only; one at a time; a thread may run it
    done   = replica.complete(batch)             pure: what is durable now counts, what committed is applied
    done   = replica.advance()                   pure, any time, also while a persist runs

Group commit needs no component: a batch is what was proposed while the last one was being persisted. Entries, once
applied, are gone from memory; bodies stay in a bounded cache and in the log.

Blocking: `open`, `persist`, `load_body`, `SnapshotJob.write`, `SnapshotJob.finish`, `reclaim`, `close`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import attrs

from walrq import api
from walrq.api import Columns
from walrq.errors import Code, CorruptRecord, DiskFull, NotLeader, StorageError
from walrq.limits import (
    BODY_CACHE_BYTES,
    ENTRY_BYTES_TARGET,
    ENTRY_COMMANDS_MAX,
    SNAPSHOT_COMMANDS,
    SNAPSHOT_LOG_BYTES,
)
from walrq.queues.clocks import LeaderClock, Reading
from walrq.queues.commands import (
    Bootstrap,
    Push,
    Stamp,
    Tagged,
    bodies_of,
    decode_entry,
    encode_entry,
)
from walrq.queues.effects import Effects, Result
from walrq.queues.image import Imager, live_in, load
from walrq.queues.machine import Bounds, Machine
from walrq.queues.reads import lost_messages
from walrq.raft.core import Raft
from walrq.raft.entries import HardState, Kind, Tail
from walrq.raft.unstable import Ready
from walrq.storage import hard_state as stored
from walrq.storage.cache import ByteBoundedCache
from walrq.storage.findings import Finding, Verdict
from walrq.storage.record import Record
from walrq.storage.snapshot import SnapshotWriter
from walrq.storage.storage import Pin, Storage


@attrs.frozen(kw_only=True)
class ReplicaConfig:
    """What a replica needs to know.

    Attributes:
        node_id: this node's name; the stored one must agree.
        cluster_id: given to a new cluster.
        secret: keys the receipts of a new cluster, 16 random bytes; an existing one keeps its own.
        disk_uuid: 16 random bytes that a new data directory is marked with.
        snapshot_log_bytes, snapshot_commands: what forces a snapshot, counted since the last one.
        body_cache_bytes: payload bytes kept in memory.
        bounds: of the replicated state.
    """

    node_id: str
    cluster_id: str
    secret: bytes
    disk_uuid: bytes = b""
    snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES
    snapshot_commands: int = SNAPSHOT_COMMANDS
    body_cache_bytes: int = BODY_CACHE_BYTES
    bounds: Bounds = attrs.field(factory=Bounds)


@attrs.define(eq=False)
class Batch:
    """What one persist writes. `tickets` belong to `commands`, position by position; a ticket of 0 has no waiter."""

    ready: Ready
    records: list[Record]
    stamp: Stamp
    commands: list[Tagged]
    tickets: list[int]
    refused: bool = False

    @property
    def may_use_reserve(self) -> bool:
        """Whether nothing in it adds messages: such entries may use the space kept for a full disk."""
        return not any(type(tagged.command) is Push for tagged in self.commands)


@attrs.frozen
class Done:
    """What became of proposals: (ticket, result), in log order, and what to wake."""

    results: list[tuple[int, Result]]
    effects: Effects


@attrs.define
class _Pending:
    stamp: Stamp
    commands: list[Tagged]
    tickets: list[int]


def _size_of(columns: Columns) -> int:
    # The objects around a short payload weigh more than the payload.
    return columns.size + len(columns.ends) + 400


class SnapshotJob:
    """One snapshot on its way: encoded between turns, written in a thread.

    `while job.step(): write()` then `write(); finish()`. Invariant: `step` and `write` never run at the same time.
    """

    # One page takes about a millisecond.
    PAGES_PER_STEP = 4

    def __init__(self, imager: Imager, writer: SnapshotWriter, index: int, messages: int) -> None:
        self._imager = imager
        self._writer = writer
        self.index = index
        self.messages = messages
        self._taken: list[tuple[bytes, bytes | None]] = []

    def step(self) -> bool:
        """Encode some pages; False when all are encoded. Pure."""
        more = self._imager.step(self.PAGES_PER_STEP)
        self._taken.extend(self._imager.take())
        return more

    def write(self) -> None:
        """Write what was encoded. Blocking."""
        taken, self._taken = self._taken, []
        for key, page in taken:
            if page is None:
                self._writer.drop(key)
            else:
                self._writer.put(key, page)

    def finish(self) -> None:
        """Make the snapshot durable; the log must be durable up to its index. Blocking.

        Raises:
            DiskFull: no room; give it up with `abort` and try later.
        """
        self._writer.finish()

    def abort(self) -> None:
        """Give the snapshot up; the one before stands. Blocking. Then call `Replica.snapshot_failed`."""
        self._writer.abort()


class Replica:
    """See the module."""

    def __init__(
        self, storage: Storage, config: ReplicaConfig, raft: Raft, machine: Machine, imager: Imager, applied: int
    ) -> None:
        self.config = config
        self.machine = machine
        self._storage = storage
        self._raft = raft
        self._imager = imager
        self._clock = LeaderClock(Stamp(0, 0), Reading(0, 0))
        self.applied_index = applied
        self._snapshot_index = applied
        # Messages of every state in the newest snapshot.
        self.snapshot_messages = machine.tally.messages
        self._ticket = 0
        self._gathered: list[Tagged] = []
        self._gathered_tickets: list[int] = []
        self._stamp_wanted = False
        self._persisting: Batch | None = None
        # Entries taken but not applied, by index.
        self._pending: dict[int, _Pending] = {}
        self._cache_lock = threading.Lock()
        self._cache: ByteBoundedCache[tuple[int, int], Columns] = ByteBoundedCache(
            config.body_cache_bytes, size_of=_size_of
        )
        self._log_bytes = 0
        self._commands = 0
        self._job: SnapshotJob | None = None
        self._entries = 0
        self._snapshots = 0

    # --- start ----------------------------------------------------------------------------------------------
    @classmethod
    def open(cls, storage: Storage, config: ReplicaConfig, reading: Reading) -> Replica:
        """Load the snapshot, replay the log behind it, and with a single voter take office.

        Raises:
            StorageError: what is stored belongs to another node, or cannot be read.
        """
        recovered = storage.recovered
        hard = recovered.hard_state
        if hard is not None and hard.node_id != config.node_id:
            raise StorageError(
                f"the data directory belongs to node {hard.node_id!r}, not to {config.node_id!r}; "
                "start with that node id, or with another directory"
            )
        snapshot = recovered.snapshot
        if snapshot is None:
            machine, known, applied = Machine(config.bounds), tuple[bytes, ...](), 0
        else:
            machine, known, applied = load(snapshot.pages(), config.bounds), tuple(snapshot.hashes), snapshot.index
        state = HardState(hard.term, hard.vote) if hard is not None else HardState()
        highest = storage.highest_term
        if state.term < highest or (hard is None and storage.last_index):
            # inv: TermMonotonic  (right for a single voter only: nobody else can have voted or been voted for)
            text = f"it is gone, or older than the log: the term goes on behind {highest}, the highest that is known"
            storage.note(Finding(Verdict.METADATA, "hard-state", text))
            state = HardState(max(state.term, highest))
        raft = Raft(config.node_id, {config.node_id}, state, Tail(storage.last_index, storage.last_term))
        self = cls(storage, config, raft, machine, Imager(machine, known), applied)
        raft.campaign()
        self._persist_now()
        self._replay(raft.last_index - 1)
        for lost in lost_messages(machine, storage.index_ranges(), self.applied_index):
            storage.note(Finding(Verdict.MISSING, "wal", str(lost), first_index=lost.first, last_index=lost.last))
        self._clock = LeaderClock(machine.last_stamp, reading)
        self._persist_now()
        self.advance()
        if not machine.cluster:
            self.propose(Tagged(Bootstrap(config.cluster_id, config.secret)))
            batch = self.take_batch(reading)
            assert batch is not None
            self.persist(batch)
            self.complete(batch)
        return self

    def _persist_now(self) -> None:
        ready = self._raft.take_ready()
        self._write(ready, [Record(index, term, kind, b"") for term, index, kind in ready.positions], True)
        self._raft.persisted(ready)

    def _replay(self, last: int) -> None:
        """Apply the durable log up to `last`: with a single voter all of it is committed."""
        if last <= self.applied_index:
            return
        for record in self._storage.entries(self.applied_index + 1):
            if record.index > last:
                break
            if record.kind == Kind.COMMANDS:
                stamp, tagged = decode_entry(record.body)
                self.machine.apply(record.index, stamp, tagged)
                self._commands += len(tagged)
            elif record.kind != Kind.NOOP:
                raise CorruptRecord(f"entry {record.index} is of kind {record.kind}, unknown to this version")
            self._log_bytes += len(record.body)
            self.applied_index = record.index
        self.machine.take_effects()

    # --- the seam -------------------------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        """Whether this node may propose."""
        return self._raft.is_leader

    @property
    def leader(self) -> str | None:
        """The leader's node id, as far as known."""
        return self._raft.leader

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    @property
    def commit_index(self) -> int:
        """Entries up to here are committed."""
        return self._raft.commit_index

    @property
    def has_work(self) -> bool:
        """Whether `take_batch` would give something to write."""
        return bool(self._gathered) or self._stamp_wanted

    def propose(self, command: Tagged) -> int:
        """Gather a command for the next entry. Returns its ticket.

        Raises:
            NotLeader: this node does not lead.
        """
        if not self._raft.is_leader:
            raise NotLeader("this node does not lead", leader=self._raft.leader)
        self._ticket = ticket = self._ticket + 1
        self._gathered.append(command)
        self._gathered_tickets.append(ticket)
        return ticket

    def propose_expiry(self) -> None:
        """Ask for an entry even if nobody proposes: its stamp expires what is due."""
        self._stamp_wanted = True

    def take_batch(self, reading: Reading) -> Batch | None:
        """Pack what gathered into one stamped entry; None when nothing has."""
        commands = self._gathered
        if not commands and not self._stamp_wanted:
            return None
        assert self._persisting is None, "one persist at a time"
        tickets = self._gathered_tickets
        if len(commands) > 1:
            taken = _how_many(commands)
            self._gathered = commands[taken:]
            self._gathered_tickets = tickets[taken:]
            commands = commands[:taken]
            tickets = tickets[:taken]
        else:
            self._gathered = []
            self._gathered_tickets = []
        self._stamp_wanted = False
        stamp = self._clock.stamp(reading)
        body = encode_entry(stamp, commands)
        term, index, kind = self._raft.append(Kind.COMMANDS)
        ready = self._raft.take_ready()
        batch = Batch(ready, [Record(index, term, kind, body)], stamp, commands, tickets)
        self._pending[index] = _Pending(stamp, commands, tickets)
        self._persisting = batch
        return batch

    def persist(self, batch: Batch) -> None:
        """Write a batch; durable by the fsync policy when this returns. Blocking.

        A full disk refuses the batch (`complete` answers with `DiskFull`); any other error is final.
        """
        self._write(batch.ready, batch.records, batch.may_use_reserve, batch)

    def _write(
        self, ready: Ready, records: Sequence[Record], may_use_reserve: bool, batch: Batch | None = None
    ) -> None:
        if ready.hard_state is not None:
            known = self._storage.hard_state
            cluster_id = known.cluster_id if known is not None else self.machine.cluster or self.config.cluster_id
            self._storage.set_hard_state(
                stored.HardState(
                    term=ready.hard_state.term,
                    vote=ready.hard_state.vote,
                    node_id=self.config.node_id,
                    cluster_id=cluster_id,
                    disk_uuid=known.disk_uuid if known is not None else self.config.disk_uuid,
                )
            )
        if records:
            try:
                self._storage.append_batch(records, may_use_reserve=may_use_reserve)
            except DiskFull:
                if batch is None:
                    raise
                batch.refused = True

    def complete(self, batch: Batch) -> Done:
        """A batch was persisted: count it, apply what committed."""
        assert batch is self._persisting
        self._persisting = None
        if batch.refused:
            return self._refuse(batch)
        self._raft.persisted(batch.ready)
        for record in batch.records:
            self._log_bytes += len(record.body)
        index = batch.records[-1].index
        with self._cache_lock:
            put = self._cache.put
            for ordinal, tagged in enumerate(batch.commands):
                command = tagged.command
                if type(command) is Push:
                    put((index, ordinal), command.columns)
        return self.advance()

    def _refuse(self, batch: Batch) -> Done:
        """The disk is full and nothing of the batch was written: its pushes are refused, the rest comes again."""
        self._raft.withdraw(batch.ready)
        for record in batch.records:
            del self._pending[record.index]
        failed = api.Failed(Code.DISK_FULL, "the disk is full; pushes are refused until there is space")
        # A batch that had the reserve and still found no room would come again for ever: all of it is refused.
        all_of_it = batch.may_use_reserve
        results: list[tuple[int, Result]] = []
        again: list[Tagged] = []
        again_tickets: list[int] = []
        for ticket, tagged in zip(batch.tickets, batch.commands, strict=True):
            if all_of_it or type(tagged.command) is Push:
                results.append((ticket, failed))
            else:
                again.append(tagged)
                again_tickets.append(ticket)
        self._gathered = again + self._gathered
        self._gathered_tickets = again_tickets + self._gathered_tickets
        return Done(results, Effects())

    def advance(self) -> Done:
        """Apply what is committed and not yet applied."""
        results: list[tuple[int, Result]] = []
        commit = self._raft.commit_index
        machine = self.machine
        while self.applied_index < commit:
            index = self.applied_index + 1
            pending = self._pending.pop(index, None)
            if pending is not None:
                answers = machine.apply(index, pending.stamp, pending.commands)
                results.extend(zip(pending.tickets, answers, strict=True))
                self._commands += len(answers)
                self._entries += 1
            self.applied_index = index
        return Done(results, machine.take_effects())

    def tick(self, reading: Reading) -> None:
        """Time passed. A single voter has no election to time and no heartbeat to send."""

    # --- time -----------------------------------------------------------------------------------------------
    def stamp_now(self, reading: Reading) -> Stamp:
        """What an entry taken now would be stamped with."""
        return self._clock.peek(reading)

    def next_deadline(self, reading: Reading) -> int | None:
        """Monotonic ms at which a stamp would make something happen; None when nothing waits."""
        lease_ms = self.machine.next_lease_deadline()
        wall_ms = self.machine.next_wall_deadline()
        first: int | None = None
        if lease_ms is not None:
            first = self._clock.monotonic_of_lease(lease_ms)
        if wall_ms is not None:
            # Looked at again then: the wall clock may have been slewed.
            now = self._clock.peek(reading)
            at = reading.monotonic_ms + max(0, wall_ms - now.wall_ms)
            first = at if first is None else min(first, at)
        return first

    # --- bodies ---------------------------------------------------------------------------------------------
    def body(self, index: int, ordinal: int) -> Columns | None:
        """The columns at an address if they are in memory."""
        with self._cache_lock:
            return self._cache.get((index, ordinal))

    def load_body(self, index: int, ordinal: int) -> Columns:
        """The columns at an address, read from the log if need be. Blocking; any thread.

        Raises:
            CorruptRecord: the record is damaged.
            Reclaimed: the log does not have it: nothing at that address was alive any more, or its segment was lost
                (`holds` and `may_be_live` tell).
        """
        with self._cache_lock:
            cached = self._cache.get((index, ordinal))
        if cached is not None:
            return cached
        bodies = bodies_of(self._storage.read(index).body)
        with self._cache_lock:
            # The neighbours are likely to be asked for next: a backlog is read in log order.
            for number, columns in sorted(bodies.items(), reverse=True):
                if number >= ordinal:
                    self._cache.put((index, number), columns)
        return bodies[ordinal]

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
    def snapshot_due(self) -> bool:
        """Whether the log behind the last snapshot is long enough for another."""
        return self._job is None and (
            self._log_bytes >= self.config.snapshot_log_bytes or self._commands >= self.config.snapshot_commands
        )

    def begin_snapshot(self) -> SnapshotJob | None:
        """Fix the state of now as the next snapshot; None when one is on its way or nothing was applied since."""
        index = self.applied_index
        if self._job is not None or index <= self._snapshot_index:
            return None
        writer = self._storage.begin_snapshot(index, self._storage.term_at(index), b"")
        self._imager.freeze()
        self._job = SnapshotJob(self._imager, writer, index, self.machine.tally.messages)
        self._log_bytes = 0
        self._commands = 0
        return self._job

    def snapshot_done(self, job: SnapshotJob) -> None:
        """A job was finished."""
        assert job is self._job
        self._snapshot_index = job.index
        self.snapshot_messages = job.messages
        self._snapshots += 1
        self._job = None

    def snapshot_failed(self, job: SnapshotJob) -> None:
        """A job was given up: the next snapshot writes every page."""
        assert job is self._job
        self._imager.start_over()
        self._job = None

    def reclaim(self) -> int:
        """Give back segments that the newest snapshot covers and nothing lives in; how many. Blocking."""
        machine = self.machine
        return self._storage.reclaim(self._snapshot_index, lambda first, last: live_in(machine, first, last))

    def leave_out_dead(self, pin: Pin) -> None:
        """Let a pin hold only segments that the next snapshot may need. Blocking; before that snapshot begins."""
        machine = self.machine
        pin.leave_out_dead(lambda first, last: live_in(machine, first, last))

    # --- the rest -------------------------------------------------------------------------------------------
    def stats(self) -> dict[str, Any]:
        """Plain numbers."""
        with self._cache_lock:
            cache_bytes = self._cache.bytes
        return {
            "term": self._raft.term,
            "is_leader": self._raft.is_leader,
            "commit_index": self._raft.commit_index,
            "applied_index": self.applied_index,
            "snapshot_index": self._snapshot_index,
            "snapshots": self._snapshots,
            "entries": self._entries,
            "body_cache_bytes": cache_bytes,
        }

    def close(self, *, clean: bool = True) -> None:
        """Close the storage; `clean` leaves the mark of an orderly stop. Blocking."""
        self._storage.close(clean=clean)


def _how_many(commands: list[Tagged]) -> int:
    """How many of the gathered commands make one entry."""
    size = 0
    for number, tagged in enumerate(commands):
        command = tagged.command
        if type(command) is Push:
            size += command.columns.size
            if size > ENTRY_BYTES_TARGET and number:
                return number
    return min(len(commands), ENTRY_COMMANDS_MAX)
