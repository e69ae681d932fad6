"""Whom a node shares its decisions with, as its disk must know it without the log.

A log that lost its end may have lost the entry that made another node a voter, and what that node acknowledged: what is
left names too few to ask. So before a list of members is stored in the log, the marks of all who vote by any list there
are stored beside term and vote, each with the newest entry that names it: of a damaged log those matter whom an entry
behind its end named. Marks, not names: thirty-two names of 255 bytes would not fit into one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from walrq.raft.core import Raft
from walrq.raft.membership import Configuration, Membership, mark_of
from walrq.storage.hard_state import HardState


def only(node: str, configuration: Configuration) -> bool:
    """Whether that node is a majority by itself."""
    return list(configuration.voters) == [node]


_INDEX_BYTES: Final = 8


def named_behind(voters: Iterable[bytes], last_index: int) -> frozenset[bytes]:
    """The marks of those whom an entry behind `last_index` named: it was lost."""
    end = last_index.to_bytes(_INDEX_BYTES, "big")
    return frozenset(each[_INDEX_BYTES:] for each in voters if each[:_INDEX_BYTES] > end)


@attrs.frozen
class Company:
    """See the module.

    Attributes:
        group: others vote as well, or will.
        voters: for each of them and this node the newest entry that names it, 8 bytes, big-endian, and its mark;
            ascending; empty without a group.
    """

    group: bool = False
    voters: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, node: str, membership: Membership, kept: Iterable[bytes] = ()) -> Company:
        """By all lists that are in the log, and those that were `kept` of a log that is damaged."""
        newest = {each[_INDEX_BYTES:]: each[:_INDEX_BYTES] for each in kept}
        for index, configuration in membership.history:
            named_at = index.to_bytes(_INDEX_BYTES, "big")
            for voter in configuration.voters:
                mark = mark_of(voter)
                newest[mark] = max(named_at, newest.get(mark, b""))
        is_alone = only(node, membership.current)
        if is_alone and newest.keys() <= {mark_of(node)}:
            return cls()
        return cls(not is_alone, tuple(sorted(named_at + mark for mark, named_at in newest.items())))

    def is_news(self, known: HardState | None) -> bool:
        """Whether a disk that knows so much has to be told before anything else is stored."""
        if known is None or known.group != self.group:
            return True
        return self.voters != known.voters and not frozenset(known.voters).issuperset(self.voters)


def group_of(raft: Raft, heard: Mapping[str, int]) -> dict[str, Any]:
    """The group as one of its nodes sees it, in plain values; what a follower does not know is None.

    Args:
        heard: the tick at which something last came from a node.
    """
    lead, configuration = raft.lead, raft.membership.current
    members: dict[str, Any] = {}
    for node in configuration.nodes:
        voter = configuration.voters.get(node)
        member = voter or configuration.learners[node]
        progress = lead.progress.get(node) if lead is not None else None
        match, state = None, None
        if node == raft.node_id:
            match = raft.durable_index
        elif progress is not None:
            match, state = progress.match, progress.state.value
        members[node] = {
            "voter": voter is not None,
            "address": member.address,
            "disk_uuid": member.disk_uuid.hex(),
            "match_index": match,
            "state": state,
            "recovering": progress is not None and progress.recovering,
            "heard_ticks": raft.ticks - heard[node] if node in heard else None,
        }
    return {
        "node": raft.node_id,
        "cluster": raft.cluster,
        "role": raft.role.value,
        "status": raft.status.value,
        "leader": raft.leader,
        "term": raft.term,
        "commit_index": raft.commit_index,
        "last_index": raft.last_index,
        "configuration_index": raft.membership.index,
        "members": members,
    }
