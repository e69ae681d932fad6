"""What a replica hears from its peers and tells them, and how it mends what it lost."""

from __future__ import annotations

from walrq.errors import NotReady, StorageError
from walrq.queues.clocks import Reading
from walrq.queues.commands import (
    SINCE,
    Command,
    RaiseVersion,
    SetWindow,
    Tagged,
    encode_entry,
    stamp_of,
)
from walrq.raft.entries import Entry, Kind
from walrq.raft.membership import Member
from walrq.raft.messages import (
    Append,
    Heartbeat,
    HeartbeatReply,
    Message,
    RecordsReply,
    RecordsRequest,
    VoteReply,
)
from walrq.raft.quorum import has_majority
from walrq.replica.batch import Pending
from walrq.replica.state import State
from walrq.storage.findings import Finding, Verdict


class Peers(State):
    """See the module. The calls that are made in between those of the seam."""

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
                    self._has_room[message.sender] = message.has_room
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
        elif not self.config.keeps_window and self.accepts:
            self._agree_on_window(reading)

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
        self._append_own(RaiseVersion(version), reading)
        self._raised_at = self._raft.last_index

    def _agree_on_window(self, reading: Reading) -> bool:
        """Let the bounds of the hot window be those of this leader, once nothing of an earlier one is left to apply.

        Whether there is something to write now.
        """
        lead, wanted = self._raft.lead, [self.config.hot_messages, self.config.hot_bytes]
        if lead is None or self.machine.window.fields() == wanted or self.machine.version < SINCE[SetWindow]:
            return False
        if self.applied_index < max(lead.term_start, self._raised_at):
            return False
        self._append_own(SetWindow(*wanted), reading)
        self._raised_at = self._raft.last_index
        return True

    def _append_own(self, command: Command, reading: Reading) -> None:
        """Append an entry with a command of the replica's own."""
        clock = self._times.current or self._clock(reading)
        stamp = clock.stamp(reading if self._alone else self._times.agreed(reading))
        commands = [Tagged(command)]
        self._append(Kind.COMMANDS, encode_entry(stamp, commands))
        self._pending[self._raft.last_index] = Pending(stamp, commands, [])

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
                    message.cluster,
                    message.sender,
                    message.receiver,
                    message.term,
                    message.round,
                    reading.wall_ms,
                    self._storage.space.pushes_allowed,
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

    @property
    def has_own_room(self) -> bool:
        """Whether this node's disk has room for more than what is held back for a full one."""
        return self._storage.space.pushes_allowed

    @property
    def pushes_allowed(self) -> bool:
        """Whether there is room for more: on the own disk, and while this node leads on those of a majority.

        Those who are silent do not count as having room while those who answer are a majority: what was pushed then
        could be written by those only who have none.
        """
        if not self._storage.space.pushes_allowed:
            return False
        if self._alone or self._raft.lead is None or not self._has_room or all(self._has_room.values()):
            return True
        ticks, election = self._raft.ticks, self.config.timing.election
        voters = self._configuration.voters
        there = {self.config.node_id} | {
            node for node in voters if node in self._heard and ticks - self._heard[node] <= election
        }
        roomy = [node for node in there if self._has_room.get(node, True)]
        return has_majority(voters, roomy) or not has_majority(voters, there)

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

    def _diverged(self, index: int) -> None:
        """This node's state is not its leader's. It goes on following and voting, so that nothing stands still."""
        self._raft.electable = False
        self._has_diverged = True
        self._findings.append(
            f"state_diverged: the state of node {self.config.node_id!r} at entry {index} differs from its leader's;"
            " it will not lead; compare both, then remove this node and let it join again with an empty directory"
        )
