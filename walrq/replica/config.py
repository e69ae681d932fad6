"""What a replica needs to know before it starts."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from walrq.limits import BODY_CACHE_BYTES, REPLICA_RECENT_BYTES, SNAPSHOT_COMMANDS, SNAPSHOT_LOG_BYTES
from walrq.queues.commands import VERSION_MAX
from walrq.queues.machine import Bounds
from walrq.raft import leader, trace
from walrq.raft.election import Timing
from walrq.raft.membership import Configuration


def _always_zero(_: int) -> int:
    return 0


@attrs.frozen(kw_only=True)
class ReplicaConfig:
    """What a replica needs to know.

    Attributes:
        node_id: this node's name; the stored one must agree.
        cluster_id: given to a new cluster; an existing one keeps its own.
        secret: keys the receipts of a new cluster, 16 random bytes; an existing one keeps its own.
        disk_uuid: 16 random bytes that a new data directory is marked with.
        configuration: what a first start begins with. None: this node alone, the only voter. Voters: a new cluster, of
            which every member starts with the same list. Empty: this node joins; it is no member of anything and waits
            to be sent a log. Whatever is stored already is stronger.
        address: where peers reach this node; empty when they cannot.
        timing: of elections and heartbeats, in ticks.
        draw: an integer from 0 to one below its argument, from a generator that the caller seeded.
        raft_bounds: of what travels between peers.
        trace_to: gets a line for each step of consensus.
        snapshot_log_bytes, snapshot_commands: what forces a snapshot, counted since the last one.
        body_cache_bytes: payload bytes kept in memory.
        recent_bytes: entries kept in memory for followers. A node that is alone keeps none.
        bounds: of the replicated state.
        version_max: the newest version of the state machine that this node can be.
        hot_messages, hot_bytes: the hot window that this node agrees on with the others when it leads; None = no bound.
        keeps_window: it leaves the window as it finds it.
    """

    node_id: str
    cluster_id: str
    secret: bytes
    disk_uuid: bytes = b""
    configuration: Configuration | None = None
    address: str = ""
    timing: Timing = attrs.field(factory=Timing)
    draw: Callable[[int], int] = _always_zero
    raft_bounds: leader.Bounds = leader.DEFAULT_BOUNDS
    trace_to: trace.Sink | None = None
    snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES
    snapshot_commands: int = SNAPSHOT_COMMANDS
    body_cache_bytes: int = BODY_CACHE_BYTES
    recent_bytes: int = REPLICA_RECENT_BYTES
    bounds: Bounds = attrs.field(factory=Bounds)
    version_max: int = VERSION_MAX
    hot_messages: int | None = None
    hot_bytes: int | None = None
    keeps_window: bool = True
