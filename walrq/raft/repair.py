"""A node that lost a part of its log: what it may still take part in, and when it is whole again.

It does not stand. It votes only for a log that reaches as far as its own ever did: a vote compares two logs, and a
bound of the own one will do in its place (inv: LeaderCompleteness). While somebody leads it asks him up to where all is
committed, and is whole once that much is durable here. While nobody leads it asks all other voters how far their logs
reach: when all have answered, the furthest is the bound, since nobody has more; and if its own reaches as far, nothing
that it lost is left anywhere, and it is as whole as it can be. *All voters* are those by what is left of its log, and
those by any list in what was lost: such an entry may have made a node a voter (inv: QuorumOverlap).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from walrq.raft.membership import mark_of


@attrs.define(eq=False)
class Repair:
    """See the module.

    Attributes:
        active: a repair is under way.
        target: everything up to there must be durable again; None: no leader has said.
        floor: (term, index) that the log did not reach beyond before the loss; None: not known.
        round: of the last question about ends.
    """

    active: bool = False
    target: int | None = None
    floor: tuple[int, int] | None = None
    round: int = 0
    _asked_at: int = 0
    _ends: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    _voters: frozenset[bytes] = frozenset()

    def begin(self, claimed: tuple[int, int] | None, tick: int, voters: frozenset[bytes]) -> None:
        """The node starts from what is left."""
        self.active = True
        self.target = None
        self.floor = claimed
        self._voters = voters
        self._asked_at = tick

    def end(self) -> None:
        """It is whole."""
        self.active = False

    def own_end(self, term: int, index: int) -> tuple[int, int] | None:
        """What a candidate's log must reach, if what is left of the own one ends there; None: nobody's will do."""
        return max((term, index), self.floor) if self.floor is not None else None

    def may_ask(self, tick: int, every: int) -> bool:
        """Whether it is time for another question; then it counts as asked."""
        if tick - self._asked_at < every:
            return False
        self._asked_at = tick
        self._ends.clear()
        return True

    def answered(self, node: str, end: tuple[int, int], others: Sequence[str], own: tuple[int, int]) -> bool:
        """A voter said how far its log reaches. True when all others have, and none of them has more."""
        self._ends[node] = end
        if not others or any(other not in self._ends for other in others):
            return False
        if not self._voters <= {mark_of(each) for each in self._ends}:
            # Who became a voter in what was lost may have acknowledged more, and cannot be asked by name.
            return False
        furthest = max(self._ends[other] for other in others)
        if furthest > own:
            self.floor = furthest
            return False
        return True
