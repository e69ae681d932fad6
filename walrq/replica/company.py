"""Whom a node shares its decisions with, as its disk must know it without the log.

A log that lost its end may have lost the entry that made another node a voter, and what that node acknowledged: what is
left names too few to ask. So before any entry that enlarges the group is stored, the marks of all who vote by any list
in the log are, beside term and vote. Marks, not names: thirty-two names of 255 bytes would not fit into one page.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from walrq.raft.membership import Configuration, Membership, mark_of
from walrq.storage.hard_state import HardState


def only(node: str, configuration: Configuration) -> bool:
    """Whether that node is a majority by itself."""
    return list(configuration.voters) == [node]


@attrs.frozen
class Company:
    """See the module.

    Attributes:
        group: others vote as well, or will.
        voters: their marks and this node's, ascending; empty without a group.
    """

    group: bool = False
    voters: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, node: str, membership: Membership, kept: Iterable[bytes] = ()) -> Company:
        """By all lists that are in the log, and those that were `kept` of a log that is damaged."""
        marks = {mark_of(voter) for _, each in membership.history for voter in each.voters}.union(kept)
        if only(node, membership.current) and marks <= {mark_of(node)}:
            return cls()
        return cls(not only(node, membership.current), tuple(sorted(marks)))

    def is_news(self, known: HardState | None) -> bool:
        """Whether a disk that knows so much has to be told before anything else is stored."""
        if known is None or known.group != self.group:
            return True
        return self.voters != known.voters and not frozenset(known.voters).issuperset(self.voters)
