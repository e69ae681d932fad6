"""From proposals and messages to applied entries: the calls that a driver makes in a loop."""

from __future__ import annotations

from walrq import api
from walrq.errors import Code, DiskFull, NotLeader, NotReady, StorageError
from walrq.queues.clocks import Reading
from walrq.queues.commands import (
    VERSION_MAX,
    Bootstrap,
    Push,
    Tagged,
    decode_entry,
    encode_entry,
    since,
)
from walrq.queues.effects import Effects, Result
from walrq.raft.entries import Entry, Kind
from walrq.raft.unstable import Ready
from walrq.replica.batch import NO_STAMP, Batch, Done, Pending, how_many
from walrq.replica.images import encode_point
from walrq.replica.peers import Peers
from walrq.storage import hard_state as stored
from walrq.storage.record import Record


class Seam(Peers):
    """What `Replica` is made of; see there, and the package."""

    # --- the seam -------------------------------------------------------------------------------------------
    @property
    def has_work(self) -> bool:
        """Whether `take_batch` would give something to write."""
        if self._whole is not None and self._background is not None:
            return False
        if (self._gathered or self._stamp_wanted) and self._raft.accepts:
            return True
        return self._raft.has_ready or self._repaired_due or self._hurt_due

    def propose(self, command: Tagged) -> int:
        """Gather a command for the next entry. Returns its ticket.

        Raises:
            NotLeader: this node does not lead, or is handing over.
            NotReady: not every member of the cluster knows such commands yet.
        """
        lead = self._raft.lead
        if lead is None or lead.transfer is not None or not self.machine.cluster:
            raise self._not_leader()
        if self.machine.version < VERSION_MAX and since(command.command) > self.machine.version:
            raise self._too_new(command)
        self._ticket = ticket = self._ticket + 1
        self._gathered.append(command)
        self._gathered_tickets.append(ticket)
        return ticket

    def _not_leader(self) -> NotLeader:
        lead = self._raft.lead
        if lead is None:
            return NotLeader("this node does not lead", leader=self._raft.leader)
        if lead.transfer is not None:
            target = lead.transfer.target
            return NotLeader(f"leadership is being handed to {target!r}", leader=target)
        return NotLeader("this node has just begun to lead; ask again", leader=None)

    def _too_new(self, command: Tagged) -> NotReady:
        kind = type(command.command)
        return NotReady(
            f"{kind.__name__} needs version {since(command.command)} of the state machine, and the cluster is at"
            f" {self.machine.version} until every member is upgraded"
        )

    def propose_expiry(self) -> None:
        """Ask for an entry even if nobody proposes: its stamp expires what is due. Nothing, unless this node leads."""
        self._stamp_wanted = self._raft.lead is not None

    def take_batch(self, reading: Reading) -> Batch | None:
        """What is to be written: what gathered, packed into one stamped entry, and what peers sent; or None."""
        raft = self._raft
        self._reading = reading
        commands = self._gathered
        lead = raft.lead
        if (commands or self._stamp_wanted) and lead is not None and lead.transfer is None:
            assert self._persisting is None, "one persist at a time"
            return self._pack(commands, reading)
        if not self.has_work:
            return None
        assert self._persisting is None, "one persist at a time"
        ready = raft.take_ready()
        batch = Batch(ready, self._records(ready), NO_STAMP, [], [], self._company, alone=False)
        batch.repaired, batch.hurt = self._repaired_due, self._hurt_due
        self._repaired_due = self._hurt_due = False
        self._persisting = batch
        return batch

    def _pack(self, commands: list[Tagged], reading: Reading) -> Batch:
        tickets = self._gathered_tickets
        if len(commands) > 1:
            taken = how_many(commands)
            self._gathered = commands[taken:]
            self._gathered_tickets = tickets[taken:]
            commands = commands[:taken]
            tickets = tickets[:taken]
        else:
            self._gathered = []
            self._gathered_tickets = []
        self._stamp_wanted = False
        raft = self._raft
        times = self._times
        stamp = (times.current or self._clock(reading)).stamp(reading if self._alone else times.agreed(reading))
        body = encode_entry(stamp, commands)
        term, index, kind = raft.append(Kind.COMMANDS)
        self._noted = index
        # Ticket 0 has no waiter, and no company.
        self._pending[index] = Pending(stamp, commands, tickets if tickets and tickets[0] else [])
        alone = self._alone
        if alone:
            self._recent.note(len(body))
        else:
            self._recent.put(index, Entry(term, kind, body))
        ready = raft.take_ready()
        if len(ready.positions) == 1:
            records = [Record(index, term, kind, body)]
        else:
            records = [*self._records(ready, index), Record(index, term, kind, body)]
        self._persisting = batch = Batch(ready, records, stamp, commands, tickets, self._company, alone)
        return batch

    def _records(self, ready: Ready, before: int | None = None) -> list[Record]:
        """The entries of a ready, as far as `before`, with their bodies."""
        records = []
        for term, index, kind in ready.positions:
            if index == before:
                break
            entry = self._recent.get(index)
            assert entry is not None and entry.term == term, (index, term)
            records.append(Record(index, term, kind, entry.body))
        return records

    def persist(self, batch: Batch) -> None:
        """Write a batch; durable by the fsync policy when this returns. Blocking.

        A full disk refuses the batch of a node that is alone (`complete` answers with `DiskFull`). Any other error is
        final, except for:

        Raises:
            DiskFull: not even the reserve has room for what others may have by now: call it again later, until it
                returns. Meanwhile this node acknowledges nothing new; a leader whose persist takes so long steps down.
        """
        if not batch.begun:
            self._begin(batch)
            batch.begun = True
        if batch.records:
            try:
                self._storage.append_batch(batch.records, may_use_reserve=batch.may_use_reserve)
            except DiskFull:
                if not batch.alone:
                    raise
                batch.refused = True

    def _begin(self, batch: Batch) -> None:
        """All of a batch but its records."""
        if batch.repaired:
            self._storage.repaired()
        if batch.hurt:
            self._storage.hurt()
        ready = batch.ready
        state = ready.hard_state
        known = self._storage.hard_state
        if state is not None or batch.company.is_news(known):
            # Before any entry that makes it so is stored.
            latest = state if state is not None or known is None else known
            self._storage.set_hard_state(
                stored.HardState(
                    term=latest.term if latest is not None else 0,
                    vote=latest.vote if latest is not None else None,
                    node_id=self.config.node_id,
                    cluster_id=known.cluster_id if known is not None else self._raft.cluster,
                    disk_uuid=known.disk_uuid if known is not None else self.config.disk_uuid,
                    group=batch.company.group,
                    voters=batch.company.voters,
                )
            )
        if ready.cut_from is not None:
            self._storage.truncate_suffix(ready.cut_from)

    def complete(self, batch: Batch) -> Done:
        """A batch was persisted: count it, apply what committed."""
        assert batch is self._persisting
        self._persisting = None
        if batch.refused:
            return self._refuse(batch)
        images = self._images
        for record in batch.records:
            images.log_bytes += len(record.body)
        self._raft.persisted(batch.ready)
        self._look()
        return self.advance()

    def _refuse(self, batch: Batch) -> Done:
        """The disk is full and nothing of the batch was written: its pushes are refused, the rest comes again."""
        if not self._alone:
            raise StorageError("the disk is full, and an entry that others may have by now could not be written")
        self._raft.withdraw(batch.ready)
        for record in batch.records:
            self._pending.pop(record.index, None)
        first = batch.records[0].index
        self._recent.cut(first)
        self._noted = first - 1
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
        if results:
            self._ahead.applied(results[-1][0])
        return Done(results, Effects())

    def advance(self) -> Done:
        """Apply what is committed and not yet applied; tell what else became known. After each input."""
        results: list[tuple[int, Result]] = []
        commit = self._raft.commit_index
        machine = self.machine
        while self.applied_index < commit:
            index = self.applied_index + 1
            pending = self._pending.pop(index, None)
            if pending is not None:
                commands = pending.commands
                answers = machine.apply(index, pending.stamp, commands)
                results.extend(zip(pending.tickets, answers, strict=False))
                self._images.commands += len(answers)
                self._entries += 1
                self._bodies.remember(index, commands, machine.wall)
            elif not self._apply_other(index):
                break
            self.applied_index = index
        if results:
            self._ahead.applied(results[-1][0])
        done = Done(results, machine.take_effects())
        if self._alone:
            if self._recent.bytes:
                self._recent.trim(self.applied_index, keep=False)
            if not machine.cluster:
                self._be_born()
        else:
            self._advance_group(done)
        if self._reads_asked:
            self._tell_reads(done)
        if self._office_changed or self._members_changed or self._findings:
            self._tell_changes(done)
        return done

    def _apply_other(self, index: int) -> bool:
        """Apply an entry that was not proposed in this office; False if it must be read from the log first."""
        entry = self._recent.get(index)
        if entry is not None:
            kind, body = int(entry.kind), entry.body
            stamp, commands = decode_entry(body) if kind == Kind.COMMANDS else (NO_STAMP, [])
        else:
            loaded = self._loaded.pop(index, None)
            if loaded is None:
                return False
            kind, body, commands = loaded.kind, loaded.body, loaded.commands
            stamp = loaded.stamp or NO_STAMP
        if kind == Kind.COMMANDS:
            self.machine.apply(index, stamp, commands)
            self._images.commands += len(commands)
            self._entries += 1
            self._bodies.remember(index, commands, self.machine.wall)
        elif kind == Kind.SNAPSHOT:
            differs = self._images.at_point(index, body)
            if differs:
                self._diverged(differs)
        return True

    def _advance_group(self, done: Done) -> None:
        """What only a node with peers has to do after entries were applied."""
        raft, applied = self._raft, self.applied_index
        self._times.applied(applied)
        self._recent.trim(min(applied, raft.durable_index), keep=True)
        lead = raft.lead
        if lead is not None and lead.transfer is None and applied >= lead.term_start:
            if not self.machine.cluster:
                self._be_born()
            images = self._images
            if images.is_long and self._point_proposed <= applied and images.is_idle:
                self._append(Kind.SNAPSHOT, encode_point(*images.roots.newest()))
                self._point_proposed = raft.last_index

    def _be_born(self) -> None:
        """Propose the first command of a new cluster, once in an office, when nothing older is left to be applied."""
        lead = self._raft.lead
        if lead is None or self.applied_index < lead.term_start or self._gathered or self._pending:
            return
        self._gathered.append(Tagged(Bootstrap(self.config.cluster_id, self.config.secret)))
        self._gathered_tickets.append(0)

    def _tell_changes(self, done: Done) -> None:
        done.office_changed, self._office_changed = self._office_changed, False
        done.members_changed, self._members_changed = self._members_changed, False
        if self._refused:
            done.refused, self._refused = self._refused, []
        if self._orphans:
            lost: list[int] = []
            for index, pending in self._orphans:
                if self._pending.get(index) is pending or pending.cut:
                    lost += pending.tickets
                    pending.tickets = []
            self._orphans = []
            done.lost = lost
        if self._findings:
            done.findings, self._findings = self._findings, []

    def _tell_reads(self, done: Done) -> None:
        applied = self.applied_index
        decided: list[tuple[int, bool]] = []
        for state in self._raft.take_reads():
            if state.index is None:
                decided.append((state.ticket, False))
            else:
                self._reads.append((state.index, state.ticket))
        decided += [(ticket, True) for index, ticket in self._reads if index <= applied]
        self._reads = [pair for pair in self._reads if pair[0] > applied]
        self._reads_asked -= len(decided)
        done.reads = decided
