"""What is worth saying about a cluster: who leads, who is behind, who is away.

Never: asks a server.
"""

from __future__ import annotations

from typing import Any, Final

from walrq import api

# What a node calls a member that it does not hear.
UNREACHABLE: Final = "unreachable"
NORMAL: Final = "normal"


def lag(state: api.ClusterState, member: api.MemberState) -> int | None:
    """Entries that are decided and that the member is not known to have; None when the node that answered cannot tell.

    Only the leader knows it of others.
    """
    if member.node == state.node:
        return max(0, state.commit_index - (member.match_index or state.commit_index))
    return None if member.match_index is None else max(0, state.commit_index - member.match_index)


def away(state: api.ClusterState) -> list[str]:
    """The members that the answering node does not hear."""
    return [member.node for member in state.members if member.status == UNREACHABLE]


def value(state: api.ClusterState) -> dict[str, Any]:
    """The cluster for JSON."""
    return {
        "node": state.node,
        "cluster": state.cluster,
        "leader": state.leader,
        "term": state.term,
        "commit_index": state.commit_index,
        "applied_index": state.applied_index,
        "members": [
            {
                "node": member.node,
                "role": member.role,
                "address": member.address,
                "endpoint": member.endpoint,
                "status": member.status,
                "match_index": member.match_index,
                "lag": lag(state, member),
                "heard_ms": member.heard_ms,
            }
            for member in state.members
        ],
    }


def words(state: api.ClusterState, member: api.MemberState) -> str:
    """A member in a few words: "n1 leads", "n2 3 behind", "n3 unreachable"."""
    if member.status not in (NORMAL, ""):
        return f"{member.node} {member.status}"
    if member.node == state.leader:
        return f"{member.node} leads"
    behind = lag(state, member)
    return f"{member.node} {'follows' if behind is None else 'in step' if behind == 0 else f'{behind} behind'}"
