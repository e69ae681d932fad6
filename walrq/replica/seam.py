"""From proposals and messages to applied entries: the calls that a driver makes in a loop."""

from __future__ import annotations

from walrq import api
from walrq.errors import Code, DiskFull, NotLeader, NotReady, StorageError
from walrq.queues.clocks import LeaderClock, Reading
from walrq.queues.commands import (
    SINCE,
    Bootstrap,
    Push,
    RaiseVersion,
    Tagged,
    decode_entry,
    encode_entry,
    stamp_of,
)
from walrq.queues.effects import Effects, Result
from walrq.raft.core import Raft
from walrq.raft.entries import Entry, Kind
from walrq.raft.leader import Leader
from walrq.raft.membership import Configuration, Member
from walrq.raft.messages import (
    Append,
    Heartbeat,
    HeartbeatReply,
    Message,
    RecordsReply,
    RecordsRequest,
    VoteReply,
)
from walrq.raft.roles import Role, Status
from walrq.raft.snapshots import Chunk
from walrq.raft.unstable import Ready
from walrq.replica.batch import NO_STAMP, Batch, Done, Pending, how_many
from walrq.replica.bodies import Bodies
from walrq.replica.company import Company, named_behind
from walrq.replica.config import ReplicaConfig
from walrq.replica.images import Images, encode_point, root_of
from walrq.replica.jobs import Job, Loaded
from walrq.replica.office import Times
from walrq.replica.opening import Found
from walrq.replica.restoring import Restoring
from walrq.replica.transfer import Receiving, Sending
from walrq.storage import hard_state as stored
from walrq.storage.findings import Finding, Verdict
from walrq.storage.record import Record
from walrq.storage.storage import Storage


class Seam:
    """What `Replica` is made of; see there, and the package.

    Attributes:
        machine: the state.
        applied_index: it stands at this entry.
    """

    def __init__(self, storage: Storage, config: ReplicaConfig, found: Found) -> None:
        """Use `open`."""
        self.config = config
        self.machine = found.machine
        self._storage = storage
        self._recent = found.recent
        self._raft = Raft(
            config.node_id,
            (),
            found.hard_state,
            found.tail(storage),
            cluster=found.cluster_id,
            configurations=found.configurations,
            timing=config.timing,
            bounds=config.raft_bounds,
            draw=config.draw,
            size_of=self._recent.size_of,
            trace_to=config.trace_to,
        )
        self.applied_index = found.applied
        self._images = Images(storage, config, found.machine, found.pages, found.snapshot_index)
        self._images.log_bytes, self._images.commands = found.log_bytes, found.commands
        if found.snapshot_index and self._raft.membership.current.nodes != (config.node_id,):
            self._images.roots.add(self._images.roots.own, found.snapshot_index, root_of(found.pages))
        # --- proposals
        self._ticket = 0
        self._gathered: list[Tagged] = []
        self._gathered_tickets: list[int] = []
        self._stamp_wanted = False
        self._persisting: Batch | None = None
        # Own entries taken but not applied, by index; of these, those of an office that ended.
        self._pending: dict[int, Pending] = {}
        self._orphans: list[tuple[int, Pending]] = []
        self._refused: list[int] = []
        # --- what was seen of consensus the last time
        self._office: Leader | None = None
        self._leader: str | None = None
        self._noted = self._raft.last_index
        self._configuration = self._raft.membership.current
        self._alone = self._configuration.nodes == (config.node_id,)
        # Whose voices a damaged log may have forgotten.
        self._kept = found.voters if found.damaged else ()
        self._company = Company.of(config.node_id, self._raft.membership, self._kept)
        self._office_changed = False
        self._members_changed = False
        # --- time
        self._times = Times(found.stamps)
        self._reading: Reading | None = None  # the last one; an office begins with it, never before its log's end
        # --- peers
        self._heard: dict[str, int] = {}
        self._links: dict[str, Member] = {}
        # The newest version of the state machine that others can be, as each told last.
        self._versions: dict[str, int] = {}
        self._raised_at = 0
        # Reads that were asked for and are not decided; (index, ticket) of those that wait for an entry.
        self._reads_asked = 0
        self._reads: list[tuple[int, int]] = []
        # --- the background
        self._background: Job | None = None
        self._loaded: dict[int, Loaded] = {}
        self._bodies = Bodies(storage, self._recent, config.body_cache_bytes)
        # --- snapshots
        # The last point that this leader proposed.
        self._point_proposed = 0
        # Lost entries: under repair; there again, and not noted yet.
        self._damaged = found.damaged
        self._repaired_due = False
        # A loss that the leader told of, and that is not noted on the disk yet.
        self._hurt_due = False
        self._opened_at = self._raft.last_index
        # What was found damaged when old records were looked through last.
        self._losses_seen = -1
        self._restoring = Restoring(storage, config.node_id)
        if found.damaged:
            self._raft.begin_repair(found.claimed, named_behind(found.voters, self._opened_at))
        self._findings: list[str] = []
        self._has_diverged = False
        # Entries that cannot be read for a follower, in this office. Replaced, never changed: threads add to it.
        self._unreadable: frozenset[int] = frozenset()
        self._led_at = 0
        self._unreadable_told = 0
        self._entries = 0
        self._sending = Sending(storage)
        self._send_at_tick = 0
        self._send_failure = ""
        self._refused_why = ""
        # The snapshot that was found damaged last.
        self._renewed_at = 0
        self._receiving = Receiving(storage)
        # The last chunk of a snapshot that is whole and not in place yet.
        self._whole: Chunk | None = None

    # --- what it is -----------------------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self._raft.is_leader

    @property
    def accepts(self) -> bool:
        """Whether this node takes proposals: it leads, is not handing over, and its cluster has been born."""
        return self._raft.accepts and bool(self.machine.cluster)

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
    def last_index(self) -> int:
        """The end of the log, durable or not."""
        return self._raft.last_index

    @property
    def role(self) -> Role:
        """What this node is in its term."""
        return self._raft.role

    @property
    def status(self) -> Status:
        """Which part it takes in decisions."""
        return self._raft.status

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group, by the last configuration in the log, committed or not."""
        return self._raft.membership.current

    @property
    def configuration_index(self) -> int:
        """The entry of that configuration; committed once `commit_index` has reached it."""
        return self._raft.membership.index

    @property
    def successor(self) -> str | None:
        """Whom this leader would best hand over to; None without anybody, or when it does not lead."""
        return self._raft.successor

    @property
    def cluster_id(self) -> str:
        """The cluster that this node's messages belong to."""
        return self._raft.cluster

    @property
    def disk_uuid(self) -> bytes:
        """The mark of this node's data directory, which its name is bound to in the group."""
        return self._storage.disk_uuid

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
        if SINCE and SINCE.get(type(command.command), 1) > self.machine.version:
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
            f"{kind.__name__} needs version {SINCE[kind]} of the state machine, and the cluster is at"
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

        A full disk refuses the batch of a node that is alone (`complete` answers with `DiskFull`); any other error is
        final.
        """
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
        if batch.records:
            try:
                self._storage.append_batch(batch.records, may_use_reserve=batch.may_use_reserve)
            except DiskFull:
                if not batch.alone:
                    raise
                batch.refused = True

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
                self._bodies.remember(index, commands)
            elif not self._apply_other(index):
                break
            self.applied_index = index
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
            self._bodies.remember(index, commands)
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

    # --- what consensus did ---------------------------------------------------------------------------------
    def _look(self) -> None:
        """Notice what a call changed. After every call that may change role, leader, log or configuration."""
        raft = self._raft
        if raft.lead is not self._office:
            self._change_office()
        if raft.leader != self._leader:
            self._leader = raft.leader
            self._office_changed = True
        if raft.log.last_index != self._noted:
            # Nothing but the first entry of an office comes from the core itself.
            for index in range(self._noted + 1, raft.last_index + 1):
                self._recent.put(index, Entry(raft.term, Kind.NOOP, b""))
            self._noted = raft.last_index
        if raft.membership.current is not self._configuration:
            self._configuration = configuration = raft.membership.current
            self._alone = configuration.nodes == (self.config.node_id,)
            self._company = Company.of(self.config.node_id, raft.membership, self._kept)
            self._times.keep(configuration.voters)
            self._members_changed = True

    def _change_office(self) -> None:
        """An office began or ended, or both."""
        self._office_changed = True
        if self._office is not None:
            self._orphans += [(index, pending) for index, pending in self._pending.items() if pending.tickets]
            self._refused += filter(None, self._gathered_tickets)
            self._gathered = []
            self._gathered_tickets = []
            self._stamp_wanted = False
        self._office = lead = self._raft.lead
        before = self._raft.log.term_at(lead.term_start - 1) if lead is not None else 0
        self._times.office(before if before is not None else self._raft.term)
        self._point_proposed = 0
        self._raised_at = 0
        self._unreadable = frozenset()
        if lead is not None and self._reading is not None:
            self._clock(self._reading)

    def _append(self, kind: Kind, body: bytes) -> None:
        """Append an entry of the replica's own."""
        term, index, _ = self._raft.append(kind)
        self._recent.put(index, Entry(term, kind, body))
        self._noted = index

    # --- peers ----------------------------------------------------------------------------------------------
    def receive(self, message: Message, reading: Reading) -> None:
        """Take a peer's message. Then `advance`, `take_messages`.

        Raises:
            RemoteProtocolError: it contradicts what no correct peer contradicts: drop the link.
        """
        raft = self._raft
        self._reading = reading
        self._heard[message.sender] = raft.ticks
        if isinstance(message, RecordsRequest | RecordsReply):
            if message.cluster == raft.cluster and message.sender in self._configuration.nodes:
                self._restoring.receive(message)
            return
        if message.cluster == raft.cluster:
            if type(message) is HeartbeatReply and message.wall_ms is not None and raft.lead is not None:
                if message.sender in self._configuration.voters:
                    self._times.tell_wall(message.sender, message.wall_ms, reading)
            elif type(message) is Heartbeat and message.lease_ms is not None and message.term >= raft.term:
                self._times.tell_lease(message.term, message.lease_ms)
        try:
            first = raft.receive(message)
            if first:
                assert isinstance(message, Append)
                self._take_over(message, first)
            if raft.recovering and not self._damaged:
                self._note_loss()
        finally:
            self._look()

    def _take_over(self, message: Append, first: int) -> None:
        """Entries of an append, from `first` on, are in the log now."""
        if self._raft.lead is not self._office:
            # It ended this node's office as well: who waits for what is cut now must be told.
            self._change_office()
        recent = self._recent
        if first <= self._noted:
            self._forget_from(first)
        entries = message.entries[first - message.prev_index - 1 :]
        for index, entry in enumerate(entries, first):
            recent.put(index, entry)
            if entry.kind is Kind.COMMANDS:
                self._times.stamps.append((index, stamp_of(entry.body)))
        self._noted = message.last_index

    def _forget_from(self, first: int) -> None:
        """The log was cut there."""
        self._recent.cut(first)
        self._times.cut(first)
        for index in [index for index in self._pending if index >= first]:
            self._pending.pop(index).cut = True

    def tick(self, reading: Reading) -> None:
        """Time passed: every TICK_MS while there are peers. Then `advance`, `take_messages`."""
        if self._alone:
            # No election to time and no heartbeat to send.
            return
        self._reading = reading
        self._raft.tick()
        self._look()
        if self._damaged:
            self._mend()
        if self._losses_seen != self._storage.losses and self.applied_index >= self._opened_at:
            self._note_lost_bodies()
        if self._restoring.lost:
            self._restore()
        if self._unreadable and self._raft.is_leader:
            self._send_a_snapshot_instead()
        if self._links and self._raft.accepts:
            self._bind()
        if self.machine.version < self.config.version_max:
            self._agree_on_version(reading)

    def _agree_on_version(self, reading: Reading) -> None:
        """Let a leader raise the version of the state machine to what every member can be.

        inv: StateMachineSafety: a member that is not there, or said nothing, may be an older one.
        """
        raft, lead = self._raft, self._raft.lead
        if lead is None or not self.accepts or self.applied_index < max(lead.term_start, self._raised_at):
            return
        agreed = self.config.version_max
        for node in self._configuration.nodes:
            if node != self.config.node_id:
                heard = self._heard.get(node)
                is_there = heard is not None and raft.ticks - heard <= self.config.timing.election
                agreed = min(agreed, self._versions.get(node, 1) if is_there else 1)
        if agreed > self.machine.version:
            self._raise_version(agreed, reading)

    def _raise_version(self, version: int, reading: Reading) -> None:
        clock = self._times.current or self._clock(reading)
        stamp = clock.stamp(reading if self._alone else self._times.agreed(reading))
        commands = [Tagged(RaiseVersion(version))]
        self._append(Kind.COMMANDS, encode_entry(stamp, commands))
        self._raised_at = self._raft.last_index
        self._pending[self._raised_at] = Pending(stamp, commands, [])

    def _note_loss(self) -> None:
        """The leader heard this node acknowledge more than it has, though no byte of it is damaged."""
        self._damaged = self._hurt_due = True
        self._repaired_due = False
        self._findings.append(
            f"acknowledged_lost: node {self.config.node_id!r} ends at entry {self._raft.last_index} and had more: its"
            " data directory is an older copy, or its disk forgot what it had written; it is mended by the others"
            " before it votes again"
        )

    def _mend(self) -> None:
        """See whether what was lost is here again."""
        if self._raft.recovering:
            return
        self._damaged = False
        self._repaired_due = True
        if self._raft.is_all_there_is:
            self._findings.append(
                f"repair_ended: no node has more than {self.config.node_id!r}, whose log was cut at its start: if"
                " anything acknowledged was behind that, it is lost"
            )

    def _send_a_snapshot_instead(self) -> None:
        """Followers that need an entry of the log that is not readable here get a snapshot, which needs no dead one."""
        index = max(self._unreadable)
        if index <= self._raft.log.base_index:
            return
        if index > self._unreadable_told:
            self._unreadable_told = index
            self._findings.append(
                f"log_unreadable: node {self.config.node_id!r} cannot read entry {index}: who lacks it gets a snapshot"
            )
            if index > self._images.index:
                self._images.renew()
        if index <= self._images.index:
            self._raft.snapshot_taken(self._images.index, index + 1)
            self._recent.compact(self._raft.log.base_index)

    def _note_lost_bodies(self) -> None:
        """Live messages whose records are gone or damaged here: another node is the better leader.

        Looked for once all is applied that was in the log at the start (what is not alive any more may have been given
        back), and again when reading finds more.
        """
        restoring = self._restoring
        self._losses_seen = self._storage.losses
        known = set(restoring.lost)
        restoring.look(self.machine, self._lost_through)
        news = [index for index in restoring.lost if index not in known]
        if news:
            self._raft.electable = False
            text = "live messages have lost their bodies here; the other nodes are asked for them"
            first, last = news[0], news[-1]
            self._storage.note(Finding(Verdict.MISSING, "wal", text, first_index=first, last_index=last))
            self._findings.append(
                f"bodies_lost: node {self.config.node_id!r} lost records of live messages between entries {first} and"
                f" {last}; it will not lead until it has them again from another node"
            )

    @property
    def _lost_through(self) -> int:
        """Entries up to here are applied, and on the own disk: those of a leader may not be yet."""
        return min(self.applied_index, self._raft.durable_index)

    def _restore(self) -> None:
        raft = self._raft
        others = [node for node in self._configuration.nodes if node != self.config.node_id]
        # The leader first: it has what it answers with.
        others.sort(key=lambda node: node != raft.leader)
        every = 2 * self.config.timing.election
        restoring, through = self._restoring, self._lost_through
        restoring.tick(raft.ticks, every, raft.cluster, raft.term, others, self.machine, through)
        if not restoring.lost:
            # It died meanwhile.
            self._restored()
        elif raft.leader is not None:
            self._led_at = raft.ticks
        elif raft.ticks - self._led_at > 10 * every:
            # Nobody else can lead either: rather with what is left than not at all.
            self._raft.electable = not self._has_diverged

    def _restored(self) -> None:
        """Records are here again, or nobody has them."""
        restoring = self._restoring
        lost = len(restoring.lost)
        if lost and not restoring.is_all_there_is:
            return
        self._raft.electable = not self._has_diverged
        if not lost:
            self._findings.append(
                f"bodies_restored: node {self.config.node_id!r} has the records of all live messages again"
            )
        else:
            self._findings.append(
                f"bodies_gone: no other voter has {lost} entries between {restoring.lost[0]} and {restoring.lost[-1]}"
                f" with live messages that node {self.config.node_id!r} lost: they are delivered as lost"
            )
            restoring.lost = []

    def take_messages(self, reading: Reading) -> list[Message]:
        """What is to be sent now; after every call that may have made some.

        An append whose entries are not in memory is not filled (`is_filled`): `fill` does it.
        """
        self._reading = reading
        messages = self._raft.take_messages()
        if self._restoring.outbox:
            messages += self._restoring.outbox
            self._restoring.outbox = []
        if self._unreadable:
            messages = [message for message in messages if not self._cannot_be_filled(message)]
        if not messages:
            return messages
        self._look()
        lease_ms: int | None = None
        for position, message in enumerate(messages):
            kind = type(message)
            if kind is Append:
                assert isinstance(message, Append)
                entries = self._entries_in_memory(message)
                if entries:
                    messages[position] = message.filled(entries)
            elif kind is Heartbeat:
                assert isinstance(message, Heartbeat)
                if lease_ms is None and self._raft.lead is not None:
                    lease_ms = self._clock(reading).peek(reading).lease_ms
                messages[position] = Heartbeat(
                    message.cluster,
                    message.sender,
                    message.receiver,
                    message.term,
                    message.commit,
                    message.round,
                    lease_ms,
                )
            elif kind is HeartbeatReply:
                assert isinstance(message, HeartbeatReply)
                messages[position] = HeartbeatReply(
                    message.cluster, message.sender, message.receiver, message.term, message.round, reading.wall_ms
                )
            elif kind is VoteReply:
                assert isinstance(message, VoteReply)
                messages[position] = VoteReply(
                    message.cluster, message.sender, message.receiver, message.term, message.granted, reading.wall_ms
                )
        return messages

    def _cannot_be_filled(self, message: Message) -> bool:
        """Not tried again and again: the answer to a heartbeat asks for it anew."""
        ends = (message.prev_index, message.last_index) if isinstance(message, Append) else (0, 0)
        return any(ends[0] < index <= ends[1] for index in self._unreadable)

    def _entries_in_memory(self, append: Append) -> list[Entry]:
        """All entries of an append, or none."""
        get = self._recent.get
        entries = []
        for index in range(append.prev_index + 1, append.last_index + 1):
            entry = get(index)
            if entry is None:
                return []
            entries.append(entry)
        return entries

    def fill(self, append: Append) -> Append | None:
        """An append with its entries, from the log; None: they are no longer there (`link_lost`). Blocking; any thread.

        A leader never changes its own log: what is read is right if this office still lasts afterwards.
        """
        entries = []
        for index in range(append.prev_index + 1, append.last_index + 1):
            entry = self._recent.get(index)
            if entry is None:
                try:
                    record = self._storage.read(index)
                except StorageError:
                    if self._raft.term == append.term:
                        self._unreadable |= {index}
                    return None
                entry = Entry(record.term, Kind(record.kind), record.body)
            entries.append(entry)
        raft = self._raft
        # inv: LeaderAppendOnly
        if raft.lead is None or raft.term != append.term:
            return None
        return append.filled(entries)

    def link_up(self, node: str, disk_uuid: bytes, address: str, version: int = 1) -> None:
        """A peer is there: under this name, with this disk, reached at this address, of this version at most.

        While this node leads, what is new about a member goes into the configuration. A member that comes with another
        disk than the one its name is bound to is not that member any more, and is not noted.
        """
        self._links[node] = Member(node, address, disk_uuid)
        self._versions[node] = version
        self._restoring.is_there(node)
        if self._raft.accepts:
            self._bind()

    def link_lost(self, node: str) -> None:
        """The link to a peer broke, or something sent to it was dropped."""
        self._links.pop(node, None)
        self._raft.link_lost(node)

    def _bind(self) -> None:
        news = self._news()
        if news:
            try:
                position, body = self._raft.bind(news)
            except NotReady:
                # Tried again with the next tick.
                return
            self._changed_group(position[1], body)

    def _news(self) -> list[Member]:
        """Members as they are known now, where that differs from the configuration."""
        own = Member(self.config.node_id, self.config.address, self._storage.disk_uuid)
        news = []
        for link in (own, *self._links.values()):
            node = link.node
            member = self._configuration.voters.get(node) or self._configuration.learners.get(node)
            if member is None or (member.disk_uuid and member.disk_uuid != link.disk_uuid):
                continue
            known = Member(node, link.address or member.address, link.disk_uuid)
            if known != member:
                news.append(known)
        return news

    def _changed_group(self, index: int, body: bytes) -> None:
        self._recent.put(index, Entry(self._raft.term, Kind.CONFIGURATION, body))
        self._noted = index
        self._look()

    def _clock(self, reading: Reading) -> LeaderClock:
        """The clock of this office."""
        return self._times.clock(reading, self.machine.last_stamp, self._pending, self._raft.office_walls.values())

    def _diverged(self, index: int) -> None:
        """This node's state is not its leader's. It goes on following and voting, so that nothing stands still."""
        self._raft.electable = False
        self._has_diverged = True
        self._findings.append(
            f"state_diverged: the state of node {self.config.node_id!r} at entry {index} differs from its leader's;"
            " it will not lead; compare both, then remove this node and let it join again with an empty directory"
        )
