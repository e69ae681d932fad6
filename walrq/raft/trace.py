"""One line for each step, complete enough to walk a specification along it.

A line is a flat dictionary of plain values, ready for JSON: what happened (`event`, and every field of the message
that was received or sent), and the state afterwards. Bodies are left out, everything that decides is in. Without a
sink nothing is computed.

Source: etcd-io/raft state_trace.go; a checker needs minutes for traces that do not say which message was received,
and seconds for those that do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from walrq.raft.membership import Configuration
from walrq.raft.messages import Append, Message, SnapshotChunk

if TYPE_CHECKING:
    from walrq.raft.node import Node

Sink: TypeAlias = Callable[[dict[str, Any]], None]


def _plain(value: Any) -> Any:
    if isinstance(value, Configuration):
        return {"voters": sorted(value.voters), "learners": sorted(value.learners)}
    return value


def message_fields(message: Message) -> dict[str, Any]:
    """What a message says, without bodies. Fields that would hide the state's own are prefixed with `m_`."""
    fields = {
        f"m_{name}": _plain(value)
        for name, value in attrs.asdict(message, recurse=False).items()
        if name not in ("entries", "data", "sender", "receiver")
    }
    fields |= {"message": type(message).__name__, "sender": message.sender, "receiver": message.receiver}
    if isinstance(message, Append):
        fields["m_entries"] = [[entry.term, int(entry.kind)] for entry in message.entries]
    if isinstance(message, SnapshotChunk):
        fields["m_bytes"] = len(message.data)
    return fields


def state_fields(raft: Node) -> dict[str, Any]:
    """A node's state as a specification sees it."""
    configuration = raft.membership.current
    fields: dict[str, Any] = {
        "node": raft.node_id,
        "tick": raft.ticks,
        "role": raft.role.value,
        "term": raft.term,
        "vote": raft.vote,
        "leader": raft.leader,
        "index": raft.last_index,
        "last_term": raft.last_term,
        "runs": [list(run) for run in raft.log.runs],
        "base": [raft.log.base_index, raft.log.base_term],
        "commit": raft.commit_index,
        "durable": raft.durable_index,
        "durable_term": raft.durable_state.term,
        "durable_vote": raft.durable_state.vote,
        "voters": sorted(configuration.voters),
        "learners": sorted(configuration.learners),
        "config_index": raft.membership.index,
        "votes": sorted(raft.votes),
        "match": {},
        "next": {},
    }
    if raft.lead is not None:
        fields["match"] = {node: raft.lead.progress[node].match for node in sorted(raft.lead.progress)}
        fields["next"] = {node: raft.lead.progress[node].next for node in sorted(raft.lead.progress)}
    return fields


def line(raft: Node, event: str, message: Message | None = None, **extra: Any) -> dict[str, Any]:
    """The line of one step."""
    fields = {"event": event} | state_fields(raft) | extra
    return fields | message_fields(message) if message is not None else fields
