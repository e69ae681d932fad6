"""The consensus object of one node.

Roles:  follower --campaign--> candidate --majority of durable votes--> leader
        any role --higher term seen--> follower                          (TRANSITIONS is the whole truth)

Positions of entries live here, bodies with the caller. Invariants, kept by every method:

    applied (the caller's) <= commit_index <= last_index
    durable_index <= last_index
    commit_index never goes back                                          inv: CommitMonotonic
    only an entry of the leader's own term is committed by counting       inv: LeaderCompleteness
    the own disk counts only what `persisted` reported                    inv: AckedDurable
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final

import attrs

from walrq.errors import NotLeader
from walrq.raft.entries import HardState, Kind, Position, Tail
from walrq.raft.quorum import has_majority, quorum_index


class Role(enum.Enum):
    """What a node is in its term."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: Final = frozenset(
    {
        (Role.FOLLOWER, Role.CANDIDATE),
        (Role.CANDIDATE, Role.CANDIDATE),
        (Role.CANDIDATE, Role.LEADER),
        (Role.CANDIDATE, Role.FOLLOWER),
        (Role.LEADER, Role.FOLLOWER),
    }
)


@attrs.frozen
class Ready:
    """What the caller does next, top to bottom.

    Attributes:
        hard_state: to be made durable before anything below, None when unchanged.
        positions: entries to be appended and synced, in order.
    """

    hard_state: HardState | None
    positions: tuple[Position, ...]

    def __bool__(self) -> bool:
        return self.hard_state is not None or bool(self.positions)


class Raft:
    """See the module."""

    def __init__(self, node_id: str, voters: Collection[str], hard_state: HardState, tail: Tail) -> None:
        self.node_id = node_id
        self.voters = frozenset(voters)
        self.role = Role.FOLLOWER
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader: str | None = None
        self.last_index = tail.last_index
        self.last_term = tail.last_term
        self.durable_index = tail.last_index
        self.commit_index = 0
        # Durable votes of this term, and each voter's durable index as far as known.
        self._votes: set[str] = set()
        self._match: dict[str, int] = {}
        # First index of the own term as leader: what lies below is committed only along with it (thesis 3.6.2).
        self._term_start = 0
        self._durable_state = hard_state
        self._unsent: list[Position] = []

    @property
    def is_leader(self) -> bool:
        """Whether entries may be appended."""
        return self.role is Role.LEADER

    def _become(self, role: Role) -> None:
        assert (self.role, role) in TRANSITIONS, (self.role, role)
        self.role = role

    def campaign(self) -> None:
        """Stand for election in a new term, with the own vote."""
        self._become(Role.CANDIDATE)
        self.term += 1
        self.vote = self.node_id
        self.leader = None
        self._votes = set()

    def append(self, kind: Kind) -> Position:
        """Append an entry to the own log.

        Raises:
            NotLeader: this node does not lead.
        """
        if self.role is not Role.LEADER:
            raise NotLeader("this node does not lead", leader=self.leader)
        self.last_index += 1
        self.last_term = self.term
        position = (self.term, self.last_index, kind)
        self._unsent.append(position)
        return position

    def take_ready(self) -> Ready:
        """What must become durable now; each thing is handed out once."""
        state = HardState(self.term, self.vote)
        ready = Ready(state if state != self._durable_state else None, tuple(self._unsent))
        self._unsent.clear()
        return ready

    def withdraw(self, ready: Ready) -> None:
        """The entries of a ready were refused by a full disk and written nowhere: they never were.

        Only right while nobody else was sent them, so for a single voter.
        """
        assert self.voters == {self.node_id}
        assert not self._unsent
        if ready.positions:
            first = ready.positions[0][1]
            assert first > self.commit_index and first > self.durable_index, ready
            self.last_index = first - 1

    def persisted(self, ready: Ready) -> None:
        """A ready is durable here."""
        if ready.hard_state is not None:
            self._durable_state = ready.hard_state
            if (
                self.role is Role.CANDIDATE
                and ready.hard_state.term == self.term
                and ready.hard_state.vote == self.node_id
            ):
                self._votes.add(self.node_id)
                self._count_votes()
        if ready.positions:
            term, index, _ = ready.positions[-1]
            # A stale pair names entries that a newer leader may have replaced.
            if term == self.term and index <= self.last_index:
                self.durable_index = max(self.durable_index, index)
                if self.role is Role.LEADER:
                    self._match[self.node_id] = self.durable_index
                    self._advance_commit()

    def _count_votes(self) -> None:
        if has_majority(self.voters, self._votes):
            self._become(Role.LEADER)
            self.leader = self.node_id
            self._match = {self.node_id: self.durable_index}
            # The no-op lets entries of earlier terms be committed (thesis 3.6.2, 6.4).
            _, self._term_start, _ = self.append(Kind.NOOP)

    def _advance_commit(self) -> None:
        index = quorum_index(self.voters, self._match)
        if index >= self._term_start and index > self.commit_index:
            self.commit_index = index
