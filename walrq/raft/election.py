"""When to stand, whom to vote for, and how votes are counted.

Sources: Raft thesis 3.4, 3.6.1 (up to date), 6.4 and 9.6 (pre-vote); etcd-io/raft (stickiness with check-quorum);
openraft#1220 (a vote seen is not a vote granted), canonical/raft#203 (pre-vote holds up no transfer).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection

import attrs

from walrq.limits import (
    RAFT_ELECTION_SPREAD_TICKS,
    RAFT_ELECTION_TICKS,
    RAFT_HEARTBEAT_TICKS,
    RAFT_STALL_TICKS,
)
from walrq.raft.quorum import has_majority, is_lost


@attrs.frozen(kw_only=True)
class Timing:
    """Ticks; how long one takes is the driver's.

    Attributes:
        election: a follower doubts a leader that is silent for longer; a leader without a majority steps down.
        spread: 1 to this many are added, drawn anew each time.
        heartbeat: between two heartbeats of a leader.
        stall: a leader whose own write takes longer steps down.
    """

    election: int = RAFT_ELECTION_TICKS
    spread: int = RAFT_ELECTION_SPREAD_TICKS
    heartbeat: int = RAFT_HEARTBEAT_TICKS
    stall: int = RAFT_STALL_TICKS

    def __attrs_post_init__(self) -> None:
        # Without spread two candidates meet for ever; without a margin a live leader is doubted.
        assert self.spread >= 1 and 1 <= self.heartbeat < self.election and self.stall >= 1, self


class Countdown:
    """Ticks since a leader was heard of, or since the last try.

    Invariant: election < timeout <= election + spread. So whoever gives up on a leader finds the others no longer
    holding on to it (a time-out equal to the base would meet their stickiness).
    """

    def __init__(self, timing: Timing, draw: Callable[[int], int]) -> None:
        self._timing = timing
        self._draw = draw
        self.elapsed = 0
        self.timeout = 0
        self.restart()

    def restart(self) -> None:
        """Begin anew with another time-out."""
        self.elapsed = 0
        self.timeout = self._timing.election + 1 + self._draw(self._timing.spread)

    def tick(self) -> bool:
        """Time passed; whether the time-out is over."""
        self.elapsed += 1
        return self.elapsed >= self.timeout


class Outcome(enum.Enum):
    """What the votes say so far."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


@attrs.define(eq=False)
class Ballot:
    """The votes of one asking. A voter counts once, whatever it says later.

    Attributes:
        pre: only asking whether an election would be won.
        round: tells one asking from another; replies to another are not counted.
        walls: the wall clocks that came with granted votes, ms.
    """

    pre: bool
    round: int
    granted: set[str] = attrs.field(factory=set)
    refused: set[str] = attrs.field(factory=set)
    walls: dict[str, int] = attrs.field(factory=dict)

    def count(self, voter: str, granted: bool, voters: Collection[str]) -> Outcome:
        """Count one answer; decided as early as it can be."""
        if voter not in self.granted and voter not in self.refused:
            (self.granted if granted else self.refused).add(voter)
        if has_majority(voters, self.granted):
            return Outcome.WON
        return Outcome.LOST if is_lost(voters, self.refused) else Outcome.OPEN


def up_to_date(last_term: int, last_index: int, own_term: int, own_index: int) -> bool:
    """Whether a log that ends there lacks nothing that may be committed in one that ends at the own position.

    inv: LeaderCompleteness. The term decides; the length only among equals.
    """
    return (last_term, last_index) >= (own_term, own_index)
