"""The consensus object of one node.

    follower --time-out--> pre-candidate --majority would vote--> candidate --majority of durable votes--> leader
    any role --higher term, or a leader of this term--> follower           (TRANSITIONS is the whole truth)

What only a leader knows is in `leader.Leader`, there while this node leads. Positions and terms of entries live here,
bodies with the caller. Invariants, kept by every method:

    applied (the caller's) <= commit_index <= last_index                  inv: CommitLeLog
    durable_index <= last_index
    term and commit_index never go back                                   inv: TermMonotonic, CommitMonotonic
    one vote a term, durable before it is told                            inv: ElectionSafety, VoteDurableBeforeSent
    only an entry of the leader's own term is committed by counting       inv: LeaderCompleteness
    entries are cut on a conflict only, and never at or below a commit    inv: CommitStable
    a leader cuts nothing                                                 inv: LeaderAppendOnly
    nothing is acknowledged before `persisted` reported it                inv: AckedDurable
"""

from __future__ import annotations

from collections.abc import Collection

from walrq.errors import NotLeader, Overloaded, RemoteProtocolError
from walrq.limits import RAFT_READS_MAX
from walrq.raft.election import Ballot, Outcome, up_to_date
from walrq.raft.entries import HardState, Kind
from walrq.raft.leader import Leader, SnapshotMark
from walrq.raft.membership import Configuration, mark_of
from walrq.raft.messages import (
    Append,
    AppendReply,
    EndReply,
    EndRequest,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadReply,
    ReadRequest,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotReply,
    SnapshotStatus,
    TimeoutNow,
    Vote,
    VoteReply,
)
from walrq.raft.node import Node
from walrq.raft.reads import ReadState, Waiting
from walrq.raft.roles import Role
from walrq.raft.snapshots import Chunk, ChunkWanted
from walrq.raft.unstable import Ready

# The core's own question, among the callers'.
REPAIR_TICKET = (1 << 64) - 1


class Raft(Node):
    """See the package for how it is driven, and `node.Node` for its attributes."""

    # --- durability -----------------------------------------------------------------------------------------
    def take_ready(self) -> Ready:
        """What must become durable now; each thing is handed out once. An empty one need not be persisted."""
        ready = self._unstable.take(HardState(self.term, self.vote), self.ticks)
        if self._trace is not None and ready:
            self._note("TakeReady", number=ready.number)
        return ready

    @property
    def has_ready(self) -> bool:
        """Whether something must become durable that was not handed out yet."""
        return self._unstable.has_ready

    def persisted(self, ready: Ready) -> None:
        """A ready is durable here: what it holds counts, and what waited for it may leave."""
        state = ready.hard_state
        if state is not None:
            self.durable_state = state
        standing = self._unstable.persisted(ready)
        self._outbox += self._unstable.release(self.term)
        # A stale pair names entries that a newer leader has replaced.
        if standing is not None and standing[1] > self.durable_index and self.log.matches(standing[1], standing[0]):
            self.durable_index = standing[1]
            if self.lead is not None:
                # inv: AckedDurable
                self.lead.match[self.node_id] = standing[1]
                self._advance_commit()
        if state is not None and self.role is Role.CANDIDATE and state == HardState(self.term, self.node_id):
            # A vote that a crash can undo elects nobody. inv: VoteDurableBeforeSent
            self._count_vote(self.node_id, True)
        if self._trace is not None:
            self._note("Persisted", number=ready.number)

    def take_messages(self) -> list[Message]:
        """What may leave now, also while a ready is being persisted. Appends are to be filled before anything else.

        What depends on a ready comes out of here once `persisted` reported it, and not before.
        """
        if self.lead is not None:
            self._outbox += self.lead.gather(self.commit_index)
        messages, self._outbox = self._outbox, []
        if self._trace is not None:
            for message in messages:
                self._note(f"Send{type(message).__name__}", message)
        return messages

    def withdraw(self, ready: Ready) -> None:
        """The entries of a ready were refused by a full disk and written nowhere: they never were.

        Only right while nobody else was sent them, so for a single node.
        """
        assert self.membership.current.nodes == (self.node_id,)
        assert self._unstable.is_empty
        if ready.positions:
            first = ready.positions[0][1]
            assert first > self.commit_index and first > self.durable_index, ready
            self.log.truncate(first)
            self.membership.truncate(first)
        self._unstable.withdraw(ready)

    @property
    def is_stalled(self) -> bool:
        """Whether the oldest ready has been waiting for its disk for more ticks than a leader may take."""
        tick = self._unstable.oldest_tick()
        return tick is not None and self.ticks - tick > self.timing.stall

    # --- time -----------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """One tick passed."""
        self.ticks += 1
        for ticket in self._forwarded.overdue(self.ticks):
            self._read_decided(ticket, None)
        if self._repair.active:
            self._go_on_with_repair()
        lead = self.lead
        if lead is not None:
            if not lead.tick():
                self._step_down("QuorumLost")
            elif self.is_stalled and not lead.is_alone:
                self._step_down("Stalled", hand_over=True)
            elif self.recovering:
                self._step_down("Recovering", hand_over=True)
            elif not self.electable:
                self._step_down("NotElectable", hand_over=True)
        elif self._countdown.tick():
            self._time_out()

    def _time_out(self) -> None:
        self._countdown.restart()
        self._set_leader(None)
        if self._may_stand:
            self._ask()
        else:
            self._note("Doubt")

    @property
    def _may_stand(self) -> bool:
        return (
            self.membership.may_lead(self.node_id, self.commit_index)
            and not self.recovering
            and self.electable
            and not self.is_stalled
            and not self._intake.installing
        )

    def _ask(self) -> None:
        """Find out whether an election would be won; an election that is lost disturbs everybody."""
        if not self._pre_vote:
            self.campaign()
            return
        self._become(Role.PRE_CANDIDATE)
        self._round += 1
        self._ballot = Ballot(True, self._round)
        self._note("AskPreVotes", round=self._round)
        for node in self.membership.current.voters:
            if node != self.node_id:
                self._tell(PreVote, node, self.last_index, self.last_term, self._round)
        self._count_vote(self.node_id, True)

    def campaign(self, *, transfer: bool = False) -> None:
        """Stand for election in a new term, with the own vote.

        A majority's word is needed; `transfer` tells them that the leader wants it.
        """
        self._become(Role.CANDIDATE)
        self._set_leader(None)
        self.term += 1
        self.vote = self.node_id
        self._unstable.state_changed()
        self._ballot = Ballot(False, 0)
        self._countdown.restart()
        self._note("Campaign")
        for node in self.membership.current.voters:
            if node != self.node_id:
                # Asked with a term that a crash can undo, the votes would be for another log of this node.
                self._tell(Vote, node, self.last_index, self.last_term, transfer)

    def _count_vote(self, voter: str, granted: bool) -> None:
        ballot = self._ballot
        assert ballot is not None
        match ballot.count(voter, granted, self.membership.current.voters):
            case Outcome.WON if ballot.pre:
                self.campaign()
            case Outcome.WON:
                self._take_office(ballot)
            case Outcome.LOST:
                self._ballot = None
                self._become(Role.FOLLOWER)

    def _take_office(self, ballot: Ballot) -> None:
        self._become(Role.LEADER)
        self._ballot = None
        self.office_walls = ballot.walls
        self._set_leader(self.node_id)
        self.lead = Leader(
            cluster=self.cluster,
            node_id=self.node_id,
            term=self.term,
            log=self.log,
            membership=self.membership,
            timing=self.timing,
            bounds=self._bounds,
            size_of=self._size_of,
            durable_index=self.durable_index,
            snapshot=self.snapshot,
        )
        # The no-op lets entries of earlier terms be committed (thesis 3.6.2, 6.4).
        self.append(Kind.NOOP)
        self._note("BecomeLeader", voted=sorted(ballot.granted))

    def _step_down(self, why: str, *, hand_over: bool = False) -> None:
        """End the office, in the same term or on the way to another."""
        lead = self.lead
        assert lead is not None
        successor = lead.successor() if hand_over else None
        self._become(Role.FOLLOWER)
        self.lead = None
        self._set_leader(None)
        self._countdown.restart()
        for read in lead.reads.drain():
            self._answer_read(read, None)
        if successor is not None:
            self._tell(TimeoutNow, successor)
        self._note("StepDown", why=why, successor=successor)

    def _set_leader(self, leader: str | None) -> None:
        if leader != self.leader:
            self.leader = leader
            for ticket in self._forwarded.drain():
                self._read_decided(ticket, None)

    def _adopt(self, term: int) -> None:
        """A higher term was seen: this node follows in it, and has voted for nobody yet. inv: StaleLeaderSteps"""
        # inv: TermMonotonic
        assert term > self.term
        self.term = term
        self.vote = None
        self._unstable.state_changed()
        self._ballot = None
        if self.lead is not None:
            self._step_down("HigherTerm")
        elif self.role is not Role.FOLLOWER:
            self._become(Role.FOLLOWER)
        self._set_leader(None)
        self._intake.abandon()

    def link_lost(self, peer: str) -> None:
        """The link to a peer broke. Not owed: two heartbeats find out as well, this finds out at once."""
        if self.lead is not None and peer in self.lead.progress:
            self.lead.progress[peer].lost()

    # --- proposals ------------------------------------------------------------------------------------------
    def _advance_commit(self) -> None:
        lead = self.lead
        assert lead is not None
        index = lead.quorum_index()
        if index >= lead.term_start and index > self.commit_index:
            self._commit_to(index)
            self._serve_reads()
            if self.node_id not in self.membership.current.voters and self.membership.index <= index:
                # The entry that removed this node is committed: its successor is elected without it.
                self._step_down("Removed", hand_over=True)

    def _commit_to(self, index: int) -> None:
        if index > self.commit_index:
            # inv: CommitMonotonic, CommitLeLog
            assert index <= self.last_index, (index, self.last_index)
            self.commit_index = index
            self._note("AdvanceCommit")

    # --- reads ----------------------------------------------------------------------------------------------
    def read(self, ticket: int) -> None:
        """Ask from which index on a read may be answered; `take_reads` says so later.

        Tickets are the caller's, below 2^64 - 1.

        Raises:
            NotLeader: no leader is known.
            Overloaded: too many reads wait.
        """
        lead = self.lead
        if (len(lead.reads) if lead is not None else len(self._forwarded)) >= RAFT_READS_MAX:
            raise Overloaded(f"{RAFT_READS_MAX} reads wait for confirmation, which is the limit", limit=RAFT_READS_MAX)
        if lead is not None:
            lead.reads.add(self.node_id, ticket, self._life)
            self._serve_reads()
        elif self.leader is not None:
            self._ask_leader(ticket, self.leader)
        else:
            raise NotLeader("no leader is known", leader=None)

    def _ask_leader(self, ticket: int, leader: str) -> None:
        self._forwarded.add(ticket, self.ticks + self.timing.election)
        self._tell(ReadRequest, leader, ticket, self._life, self.recovering)

    def take_reads(self) -> list[ReadState]:
        """Reads that are decided, each once."""
        states, self._read_states = self._read_states, []
        return states

    def _read_decided(self, ticket: int, index: int | None) -> None:
        if ticket == REPAIR_TICKET:
            self._repair.target = index
        else:
            self._read_states.append(ReadState(ticket, index))

    # --- repair ---------------------------------------------------------------------------------------------
    def begin_repair(self, claimed: tuple[int, int] | None = None, voters: Collection[bytes] = ()) -> None:
        """This node's stored log lost entries that it may have acknowledged; what it started from is what is left.

        From here on it is `recovering` (`repair.py`): it does not stand, and what it acknowledged does not count. Its
        leader forgets that and says up to where all is committed; once that much is durable here, it is normal.

        Args:
            claimed: (term, index) that the log did not reach beyond before; None: not known.
            voters: marks of those who voted by a list in what was lost.
        """
        self.recovering = True
        self._repair.begin(claimed, self.ticks, frozenset(voters) - {mark_of(self.node_id)})
        self._note("BeginRepair")

    def _go_on_with_repair(self) -> None:
        repair = self._repair
        if repair.target is not None:
            if min(self.commit_index, self.durable_index) >= repair.target:
                self._end_repair("Repaired")
        elif self.leader is not None:
            if self.lead is None and REPAIR_TICKET not in self._forwarded:
                self._ask_leader(REPAIR_TICKET, self.leader)
        elif self.node_id in self.membership.current.voters and repair.may_ask(self.ticks, self.timing.election):
            self._round = repair.round = self._round + 1
            for node in self._other_voters():
                self._tell(EndRequest, node, repair.round)

    def _end_repair(self, how: str) -> None:
        self._repair.end()
        self.recovering = False
        self._note(how)

    def _other_voters(self) -> list[str]:
        return [node for node in self.membership.current.voters if node != self.node_id]

    def _on_end(self, message: EndRequest | EndReply) -> None:
        repair = self._repair
        if isinstance(message, EndRequest):
            self._tell(EndReply, message.sender, message.round, self.last_index, self.last_term)
        elif repair.active and message.round == repair.round and self.leader is None:
            end, own = (message.last_term, message.last_index), (self.last_term, self.last_index)
            if repair.answered(message.sender, end, self._other_voters(), own):
                self.is_all_there_is = True
                self._end_repair("NobodyHasMore")

    def _would_elect(self, last_term: int, last_index: int) -> bool:
        """Whether a log that ends there lacks nothing that may be committed."""
        own: tuple[int, int] | None = self.last_term, self.last_index
        if self.recovering:
            own = self._repair.own_end(self.last_term, self.last_index)
        return own is not None and up_to_date(last_term, last_index, *own)

    def _serve_reads(self) -> None:
        lead = self.lead
        assert lead is not None
        if self.commit_index < lead.term_start or not len(lead.reads):
            return
        if lead.reads.begin(self.commit_index, lead.round + 1):
            if lead.is_alone:
                lead.round += 1
            else:
                lead.beat_due = True
        for read in lead.confirmed_reads():
            self._answer_read(read, read.index)

    def _answer_read(self, read: Waiting, index: int | None) -> None:
        if read.node == self.node_id:
            self._read_decided(read.ticket, index)
        else:
            self._tell(ReadReply, read.node, read.ticket, read.life, index)

    # --- messages -------------------------------------------------------------------------------------------
    def receive(self, message: Message) -> int:
        """Take a peer's message.

        Returns:
            The first index of an append's entries that were taken over; their bodies are the caller's to keep until
            they are written. 0 for none.

        Raises:
            RemoteProtocolError: it contradicts what no correct peer contradicts; nothing but the term was changed.
        """
        if message.cluster != self.cluster or message.receiver != self.node_id or message.sender == self.node_id:
            self.dropped += 1
            return 0
        taken = self._receive(message)
        if self._trace is not None:
            self._note(f"Recv{type(message).__name__}", message)
        return taken

    def _receive(self, message: Message) -> int:
        kind = type(message)
        if isinstance(message, EndRequest | EndReply):
            # Questions about a log, in any term and by anybody.
            self._on_end(message)
            return 0
        if message.term > self.term and kind is not PreVote:
            if isinstance(message, Vote) and self._sticks and not message.transfer:
                # A node that cannot hear the leader must not depose it (thesis 4.2.3).
                return 0
            self._adopt(message.term)
        elif message.term < self.term and kind is not PreVote and kind is not PreVoteReply:
            self._answer_stale(message)
            return 0
        match message:
            case Append():
                return self._on_append(message)
            case AppendReply():
                if self.lead is not None:
                    self.lead.on_append_reply(message)
                    self._advance_commit()
            case Heartbeat():
                self._on_heartbeat(message)
            case HeartbeatReply():
                if self.lead is not None:
                    self.lead.on_heartbeat_reply(message)
                    self._serve_reads()
            case PreVote():
                self._on_pre_vote(message)
            case PreVoteReply():
                ballot = self._ballot
                if self.role is Role.PRE_CANDIDATE and ballot is not None and ballot.round == message.round:
                    self._count_vote(message.sender, message.granted)
            case Vote():
                self._on_vote(message)
            case VoteReply():
                if self.role is Role.CANDIDATE and self._ballot is not None:
                    if message.granted and message.wall_ms is not None:
                        self._ballot.walls.setdefault(message.sender, message.wall_ms)
                    self._count_vote(message.sender, message.granted)
            case TimeoutNow():
                if message.sender == self.leader and self._may_stand:
                    self.campaign(transfer=True)
            case ReadRequest():
                self._on_read_request(message)
            case ReadReply():
                if message.life == self._life and self._forwarded.answered(message.ticket):
                    self._read_decided(message.ticket, message.index)
            case SnapshotOffer():
                self._follow(message.sender)
                answer = self._intake.offered(message, self.commit_index)
                self._answer_stream(message.sender, message.stream, answer)
            case SnapshotChunk():
                self._follow(message.sender)
                self._intake.received(message)
            case SnapshotReply():
                if self.lead is not None:
                    self.lead.on_snapshot_reply(message)
                    self._advance_commit()
        return 0

    def _answer_stale(self, message: Message) -> None:
        """Let the sender of an older term learn of this one."""
        sender = message.sender
        match message:
            case Append():
                self._tell(AppendReply, sender, False, message.prev_index)
            case Heartbeat():
                self._tell(HeartbeatReply, sender, message.round)
            case Vote():
                self._tell(VoteReply, sender, False)
            case ReadRequest():
                self._tell(ReadReply, sender, message.ticket, message.life, None)
            case SnapshotOffer() | SnapshotChunk():
                self._tell(SnapshotReply, sender, message.stream, SnapshotStatus.REFUSED, 0)
            # All else answers what this node asked in a term that is over.

    @property
    def _sticks(self) -> bool:
        """Whether a live leader is known, so that no election is wanted."""
        return self.leader is not None and (self.lead is not None or self._countdown.elapsed < self.timing.election)

    def _follow(self, leader: str) -> None:
        """A message that only the leader of this term sends."""
        if self.lead is not None or self.leader not in (None, leader):
            raise RemoteProtocolError(
                f"ElectionSafety: both {self.leader!r} and {leader!r} claim to lead in term {self.term}"
            )
        if self.role is not Role.FOLLOWER:
            self._ballot = None
            self._become(Role.FOLLOWER)
        self._set_leader(leader)
        # Also by what is refused below: a node that is catching up has a leader.
        self._countdown.elapsed = 0

    # --- votes ----------------------------------------------------------------------------------------------
    def _on_pre_vote(self, message: PreVote) -> None:
        granted = (
            message.term + 1 > self.term
            and not self._sticks
            and self._would_elect(message.last_term, message.last_index)
        )
        self._tell(PreVoteReply, message.sender, message.round, granted)

    def _on_vote(self, message: Vote) -> None:
        granted = (
            self.vote in (None, message.sender)
            and self.leader is None
            and self._would_elect(message.last_term, message.last_index)
        )
        if granted:
            if self.vote is None:
                self.vote = message.sender
                self._unstable.state_changed()
            self._countdown.restart()
        self._tell(VoteReply, message.sender, granted)

    # --- following ------------------------------------------------------------------------------------------
    def _on_append(self, message: Append) -> int:
        configurations = {
            message.prev_index + 1 + number: Configuration.decode(entry.body)
            for number, entry in enumerate(message.entries)
            if entry.kind is Kind.CONFIGURATION
        }
        self._follow(message.sender)
        if self._intake.installing:
            # The caller is putting a snapshot in the log's place.
            return 0
        log = self.log
        prev = message.prev_index
        if prev > self.commit_index and not log.matches(prev, message.prev_term):
            hint_index, hint_term = log.last_at_or_below(min(prev, log.last_index), message.prev_term)
            fields = (False, prev, hint_index, hint_term, self.recovering, message.session)
            self._tell(AppendReply, message.sender, *fields)
            return 0
        taken = 0
        for index, entry in enumerate(message.entries, prev + 1):
            if not taken:
                if index <= self.commit_index or log.matches(index, entry.term):
                    continue
                if index <= log.last_index:
                    self._cut_log(index)
                taken = index
            log.append(entry.term)
            self._unstable.append((entry.term, index, entry.kind))
            if index in configurations:
                self.membership.append(index, configurations[index])
        # What lies behind the entries of this append may be another leader's.
        self._commit_to(min(message.commit, message.last_index))
        # inv: AckedDurable
        fields = (True, message.last_index, 0, 0, self.recovering, message.session)
        self._tell(AppendReply, message.sender, *fields, after=self._unstable.log_in)
        return taken

    def _cut_log(self, from_index: int) -> None:
        """Another leader's entries stand where this one's belong."""
        # inv: CommitStable
        assert from_index > self.commit_index, (from_index, self.commit_index)
        self.log.truncate(from_index)
        self.membership.truncate(from_index)
        self._unstable.cut(from_index)
        self.durable_index = min(self.durable_index, from_index - 1)

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._follow(message.sender)
        if not self._intake.installing:
            # inv: CommitMonotonic: what is put in the log's place must not be behind what is applied by then.
            self._commit_to(min(message.commit, self.last_index))
            if message.commit > self.last_index and not self.recovering:
                # inv: AckedOnQuorum: it names no more than this node acknowledged in this term, and that is gone.
                self.begin_repair()
        # Never behind a write of entries: the leader asks whether this node lives, not how fast its disk is.
        self._tell(HeartbeatReply, message.sender, message.round)

    def _on_read_request(self, message: ReadRequest) -> None:
        lead = self.lead
        if lead is None or len(lead.reads) >= RAFT_READS_MAX:
            self._answer_read(Waiting(message.sender, message.ticket, message.life), None)
            return
        if message.recovering:
            lead.exclude(message.sender, message.life)
        lead.reads.add(message.sender, message.ticket, message.life)
        self._serve_reads()

    # --- snapshots: the leader's side -----------------------------------------------------------------------
    def snapshot_taken(self, index: int, first_kept: int | None = None) -> None:
        """A snapshot of all entries up to `index` is durable here.

        Entries before `first_kept` (before `index + 1` by default) can no longer be sent from the log.
        """
        # inv: SnapLeCommit, SnapLeDurable
        assert index <= min(self.commit_index, self.durable_index), (index, self.commit_index, self.durable_index)
        term = self.log.term_at(index)
        if term is None or (self.snapshot is not None and index < self.snapshot.index):
            return
        self.snapshot = SnapshotMark(index, term, self.membership.at(index))
        base = index if first_kept is None else min(index, first_kept - 1)
        self.log.compact(base)
        self.membership.compact(base)
        if self.lead is not None:
            self.lead.snapshot = self.snapshot

    @property
    def snapshot_wanted(self) -> bool:
        """Whether a follower cannot be helped before the caller takes a snapshot."""
        return self.lead is not None and self.lead.needs_snapshot

    def wanted_chunks(self) -> list[ChunkWanted]:
        """Bytes of snapshots to read and `supply`; each is asked for once."""
        return self.lead.wanted_chunks() if self.lead is not None else []

    def supply(self, receiver: str, stream: int, offset: int, data: bytes, is_last: bool) -> bool:
        """Bytes of a snapshot as they were wanted. False when nobody wants them any more."""
        outgoing = self.lead.outgoing(receiver, stream) if self.lead is not None else None
        if outgoing is None or not outgoing.reading or outgoing.sent != offset:
            return False
        outgoing.supplied(len(data), is_last)
        outgoing.moved = True
        self._tell(SnapshotChunk, receiver, stream, offset, is_last, data)
        return True

    def snapshot_gone(self, receiver: str, stream: int) -> None:
        """The snapshot behind a stream can no longer be read: begin again with what there is."""
        if self.lead is not None and self.lead.outgoing(receiver, stream) is not None:
            self.lead.progress[receiver].failed()

    # --- snapshots: the follower's side ---------------------------------------------------------------------
    def _answer_stream(self, receiver: str, stream: int, answer: tuple[SnapshotStatus, int] | None) -> None:
        if answer is not None:
            status, offset = answer
            after = self._unstable.log_in if status is SnapshotStatus.DONE else 0
            self._tell(SnapshotReply, receiver, stream, status, offset, after=after)

    @property
    def has_chunks(self) -> bool:
        """Whether `take_chunks` would give some."""
        return self._intake.has_chunks

    def take_chunks(self) -> list[Chunk]:
        """Received bytes of a snapshot, in order, each once: store them, then report `chunk_stored`."""
        return self._intake.take()

    def chunk_stored(self, chunk: Chunk) -> bool:
        """A chunk is stored; there is room for more.

        True when that was the last one: now validate and install the snapshot, with `holds` asked before, and report
        `installed` or `refuse_snapshot`. Until then appends are not taken.
        """
        answer = self._intake.stored(chunk, self.commit_index)
        self._answer_stream(chunk.sender, chunk.stream, answer)
        return answer is not None and self._intake.installing

    def holds(self, index: int, term: int) -> bool:
        """Whether this log has that entry: then what lies behind it stays when a snapshot of it is installed."""
        return self.log.matches(index, term)

    def installed(self, chunk: Chunk) -> None:
        """The snapshot that ended with `chunk` is durable here and is the state up to its index.

        The caller kept its stored log if `holds` said so, and dropped all of it otherwise. It does that when nothing
        is being written and `take_ready` holds no entries any more: none are taken since the last chunk.
        """
        assert self._intake.installing and self._intake.is_current(chunk), chunk
        assert self._unstable.is_written
        index, term = chunk.index, chunk.snapshot_term
        assert index > self.commit_index
        if self.log.matches(index, term):
            self.log.compact(index)
            later = [pair for pair in self.membership.history if pair[0] > index]
        else:
            # inv: LogMatching: what conflicts with the snapshot is gone, its configurations as well.
            self.log.reset(index, term)
            later = []
            self._unstable.start_over(index)
            self.durable_index = index
        self.membership.reset(index, chunk.configuration)
        for pair in later:
            self.membership.append(*pair)
        self.snapshot = SnapshotMark(index, term, chunk.configuration)
        self._commit_to(index)
        self._note("Installed")
        self._finish_install(chunk, SnapshotStatus.DONE)

    def refuse_snapshot(self, chunk: Chunk) -> None:
        """What came is not usable: the leader begins again."""
        if self._intake.is_current(chunk):
            self._finish_install(chunk, SnapshotStatus.REFUSED)

    def _finish_install(self, chunk: Chunk, status: SnapshotStatus) -> None:
        self._intake.finished()
        # A new leader, if there is one by now, finds out by itself.
        if self.term == chunk.term:
            self._answer_stream(chunk.sender, chunk.stream, (status, 0))
