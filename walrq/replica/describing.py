"""The group as one of its nodes sees it, in plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walrq.raft.core import Raft


def group_of(raft: Raft, heard: Mapping[str, int]) -> dict[str, Any]:
    """Who belongs to it, and what is known of each; what a follower does not know is None.

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
