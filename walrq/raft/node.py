"""What a node of a group is: its log, its place in its term, what it has to send; and how a leader changes the group.

The base of `core.Raft`, which adds time, messages, votes, following and durability.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from walrq.errors import InvalidArgument, NotLeader, NotReady
from walrq.limits import RAFT_PROMOTE_LAG_ENTRIES_MAX
from walrq.raft import trace
from walrq.raft.election import Ballot, Countdown, Timing
from walrq.raft.entries import HardState, Kind, Position, Tail
from walrq.raft.intake import Intake
from walrq.raft.leader import DEFAULT_BOUNDS, Bounds, Leader, SnapshotMark, Transfer
from walrq.raft.log import Log
from walrq.raft.membership import Configuration, Member, Membership
from walrq.raft.messages import Message
from walrq.raft.reads import ForwardedReads, ReadState
from walrq.raft.repair import Repair
from walrq.raft.roles import TRANSITIONS, Role, Status
from walrq.raft.unstable import Unstable


def _always_zero(_: int) -> int:
    return 0


class Node:
    """See the package for how it is driven.

    Attributes:
        role, term, vote, leader: as of now, durable or not.
        commit_index: entries up to here may be applied.
        durable_index: entries up to here are on this node's disk.
        recovering: this node's log is being repaired (`begin_repair`), or the caller set it for reasons of its own.
        is_all_there_is: a repair ended because no other voter's log reaches further than this node's.
        electable: the caller's: without it this node votes and counts, but never leads.
        ticks: how often `tick` was called.
        dropped: messages that were not for this node, or of another cluster.
    """

    def __init__(
        self,
        node_id: str,
        voters: Collection[str],
        hard_state: HardState,
        tail: Tail,
        *,
        cluster: str = "",
        configurations: Collection[tuple[int, Configuration]] = (),
        timing: Timing | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        draw: Callable[[int], int] = _always_zero,
        size_of: Callable[[int], int] = _always_zero,
        pre_vote: bool = True,
        trace_to: trace.Sink | None = None,
    ) -> None:
        """A node as its disk left it; a follower, whatever it was.

        Args:
            node_id: this node.
            voters: the first configuration, if none is found in the log or a snapshot.
            hard_state, tail: as stored.
            cluster: messages of another one are dropped.
            configurations: (index, configuration) from the newest snapshot and the entries behind it, ascending.
            draw: an integer from 0 to one below its argument, from a generator the caller seeded.
            size_of: bytes of an entry's body; asked for entries that are about to be sent.
            pre_vote: ask before standing; without it only for showing what it is good for.
            trace_to: gets a line for each step.
        """
        self.node_id = node_id
        self.cluster = cluster
        self.timing = timing or Timing()
        self._bounds = bounds
        self._draw = draw
        self._size_of = size_of
        self._pre_vote = pre_vote
        self._trace = trace_to
        self.role = Role.FOLLOWER
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader: str | None = None
        self.log = Log.of(tail.last_index, tail.last_term, tail.runs, tail.base_term)
        found = list(configurations) or [(0, Configuration.of(voters))]
        self.membership = Membership(*found[0])
        for index, configuration in found[1:]:
            self.membership.append(index, configuration)
        self.durable_index = tail.last_index
        self.commit_index = tail.commit_index
        self.recovering = False
        self.electable = True
        self.is_all_there_is = False
        self.lead: Leader | None = None
        self.snapshot: SnapshotMark | None = None
        if tail.commit_index:
            term = self.log.term_at(tail.commit_index)
            if term is not None:
                self.snapshot = SnapshotMark(tail.commit_index, term, self.membership.at(tail.commit_index))
        self.durable_state = hard_state
        self._countdown = Countdown(self.timing, draw)
        self._ballot: Ballot | None = None
        self._round = draw(1 << 30)
        # Wall clocks (ms) that came with the votes of the last election won, by voter.
        self.office_walls: dict[str, int] = {}
        self.ticks = 0
        self.dropped = 0
        self._outbox: list[Message] = []
        self._unstable = Unstable(tail.last_index)
        # Reads that are decided; reads that the leader was asked about.
        self._read_states: list[ReadState] = []
        self._forwarded = ForwardedReads()
        self._life = draw(1 << 62)
        self._repair = Repair()
        self._intake = Intake()
        self._note("Start")

    # --- what it is -----------------------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        """Whether this node leads."""
        return self.role is Role.LEADER

    @property
    def accepts(self) -> bool:
        """Whether entries may be appended: it leads and is not handing over."""
        return self.lead is not None and self.lead.transfer is None

    @property
    def successor(self) -> str | None:
        """Whom this leader would best hand over to (`transfer`); None without anybody, or when it does not lead."""
        return self.lead.successor() if self.lead is not None else None

    @property
    def status(self) -> Status:
        """See `Status`."""
        if self.recovering:
            return Status.RECOVERING
        return Status.NORMAL if self.node_id in self.membership.current.voters else Status.LEARNER

    @property
    def last_index(self) -> int:
        """The end of the log, durable or not."""
        return self.log.last_index

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self.log.last_term

    @property
    def votes(self) -> frozenset[str]:
        """Who voted for this node in its present asking."""
        return frozenset(self._ballot.granted) if self._ballot is not None else frozenset()

    def _become(self, role: Role) -> None:
        assert (self.role, role) in TRANSITIONS, (self.role, role)
        self.role = role

    def _note(self, event: str, message: Message | None = None, **extra: Any) -> None:
        if self._trace is not None:
            self._trace(trace.line(self, event, message, **extra))

    # --- what it says ---------------------------------------------------------------------------------------
    def _tell(self, kind: Callable[..., Message], receiver: str, *fields: Any, after: int = 0) -> None:
        """Send a message once this node's term and vote are durable, and the ready of number `after` is.

        inv: VoteDurableBeforeSent
        """
        message = kind(self.cluster, self.node_id, receiver, self.term, *fields)
        after = max(after, self._unstable.state_in)
        if after <= self._unstable.done:
            self._outbox.append(message)
        else:
            self._unstable.wait(after, message)

    # --- its own entries ------------------------------------------------------------------------------------
    def append(self, kind: Kind) -> Position:
        """Append an entry to the own log.

        Raises:
            NotLeader: this node does not lead, or is handing over.
        """
        lead = self.lead
        if lead is None:
            raise NotLeader("this node does not lead", leader=self.leader)
        if lead.transfer is not None:
            raise NotLeader(f"leadership is being handed to {lead.transfer.target!r}", leader=lead.transfer.target)
        position = (self.term, self.log.append(self.term), kind)
        self._unstable.append(position)
        if self._trace is not None:
            self._note("Propose", kind=int(kind))
        return position

    # --- membership -----------------------------------------------------------------------------------------
    def add_learner(self, member: Member, known: Collection[Member] = ()) -> tuple[Position, bytes]:
        """Let a node join: it receives the log and does not count yet. Returns the entry and its body.

        Args:
            known: what is known by now of nodes that are there, as for `bind`.

        Raises:
            InvalidArgument: it is there already, or the group is full.
            NotLeader, NotReady: see `_change`.
        """
        return self._change(self.membership.current.bound(known).with_learner(member))

    def bind(self, members: Collection[Member]) -> tuple[Position, bytes]:
        """Note where nodes of the group are reached and which disks they have. Returns the entry and its body.

        Any number at once: nobody's vote changes.

        Raises:
            NotLeader, NotReady: see `_change`.
        """
        return self._change(self.membership.current.bound(members))

    def promote(self, node: str) -> tuple[Position, bytes]:
        """Make a learner a voter. Returns the entry and its body.

        Raises:
            InvalidArgument: it is no learner.
            NotReady: it has not caught up yet, or was not heard of lately (a vote of a dead node only makes the
                majority larger), or see `_change`.
            NotLeader: see `_change`.
        """
        configuration = self.membership.current.promoted(node)
        # A leader may be a learner itself, by an entry that is not committed: then no change is allowed yet.
        if self.lead is not None and node in self.lead.progress:
            progress = self.lead.progress[node]
            lag = self.last_index - progress.match
            if lag > RAFT_PROMOTE_LAG_ENTRIES_MAX or progress.recovering or not progress.match:
                raise NotReady(
                    f"node {node!r} lacks {lag} entries; a learner is promoted once it lacks at most "
                    f"{RAFT_PROMOTE_LAG_ENTRIES_MAX}",
                    limit=RAFT_PROMOTE_LAG_ENTRIES_MAX,
                )
            if not (progress.active or progress.was_active):
                raise NotReady(f"node {node!r} was not heard of lately; a learner is promoted while it answers")
        return self._change(configuration)

    def remove(self, node: str) -> tuple[Position, bytes]:
        """Let a node go; also this one, which steps down when that is committed. Returns the entry and its body.

        Raises:
            InvalidArgument: it is not in the group, or the last voter.
            NotLeader, NotReady: see `_change`.
        """
        return self._change(self.membership.current.without(node))

    def _change(self, configuration: Configuration) -> tuple[Position, bytes]:
        """Append a configuration; it is in effect at once.

        Raises:
            NotLeader: this node does not lead, or is handing over.
            NotReady: the last change is not committed yet, or no entry of this term is. Without either rule two
                majorities could come to share nobody. inv: QuorumOverlap
        """
        if self.lead is not None and self.commit_index < self.lead.term_start:
            raise NotReady("no entry of this leader's term is committed yet; change the group a little later")
        if self.lead is not None and self.membership.index > self.commit_index:
            raise NotReady("the last change of the group is not committed yet; one at a time")
        position = self.append(Kind.CONFIGURATION)
        self.membership.append(position[1], configuration)
        assert self.lead is not None
        self.lead.reconfigure()
        return position, configuration.encode()

    def transfer(self, target: str) -> None:
        """Hand leadership over. Proposals are refused until another leads, or an election time-out has passed.

        Raises:
            NotLeader: this node does not lead, or is handing over already.
            InvalidArgument: the target is no other voter.
        """
        lead = self.lead
        if lead is None:
            raise NotLeader("this node does not lead", leader=self.leader)
        if lead.transfer is not None:
            raise NotLeader(f"leadership is being handed to {lead.transfer.target!r}", leader=lead.transfer.target)
        if target == self.node_id or target not in self.membership.current.voters:
            others = ", ".join(node for node in self.membership.current.voters if node != self.node_id) or "none"
            raise InvalidArgument(
                f"node {target!r} is not another voter; those beside the leader, {self.node_id}, are: {others}",
                field="target",
            )
        lead.transfer = Transfer(target)
        self._note("TransferLeader", target=target)
