"""What a seed does not decide, what it reports, and what a batch of seeds owes."""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

from walrq.raft.trace import Sink
from walrq.storage.config import FsyncPolicy

# A batch of seeds that misses one of these does not test what it is meant to test.
MARKS: Final = (
    "power lost",
    "power lost between disk operations",
    "power lost while starting",
    "process killed",
    "clean stop",
    "disk operation failed",
    "disk full",
    "push refused on a full disk",
    "snapshot given up",
    "snapshot written",
    "started from a snapshot",
    "segment reclaimed",
    "segment recycled",
    "segment rewritten",
    "rewrite cut short",
    "unfinished entry kept",
    "unfinished entry lost",
    "suspect tail cut",
    "advanced during a persist",
    "clock jumped",
    "all slept for an hour",
    "reply lost",
    "request arrived twice",
    "session ended",
    "retry answered from the session table",
    "lease expired",
    "lease expired over a failover",
    "lease outlived a failover",
    "lease touched",
    "lease forgotten",
    "late settle refused",
    "message failed",
    "message in a dead-letter queue",
    "dead messages redriven",
    "message cancelled",
    "message ended by its ttl",
    "delayed message fired",
    "cold messages read ahead",
    "far message looked up",
    "far messages fetched",
    "duplicate refused by its id",
)
# The same for batches with clusters in them.
CLUSTER_MARKS: Final = (
    "leader changed",
    "snapshot installed",
    "partition",
    "one-way partition",
    "strobe",
    "message lost",
    "message doubled",
    "message of another cluster",
    "process paused",
    "disk stuck",
    "file damaged",
    "damaged node repaired",
    "power lost under a weak policy",
    "node wiped",
    "learner added",
    "learner promoted",
    "voter removed",
    "leadership transferred",
    "entry cut",
    "ticket lost",
    "ticket refused",
    "request redirected",
    "append filled from the log",
    "consistent read answered",
    "consistent read on a follower",
    "images compared",
    "all lost power",
)
# What takes longer than a seed of several nodes lasts; batches of nodes that are alone owe it.
RARE_TOGETHER: Final = frozenset(
    {
        "rewrite cut short",
        "snapshot given up",
        "segment recycled",
        "all slept for an hour",
        "session ended",
        "push refused on a full disk",
    }
)
# Least percentages of seeds with at least that mark, in a batch with clusters.
SHARES: Final = {
    "leader changed": 30,
    "snapshot installed": 10,
    "segment rewritten": 10,
    "lease outlived a failover": 10,
}
EVENTS_MIN: Final = 500
REQUESTS_MIN: Final = 60


@attrs.frozen(kw_only=True)
class Options:
    """What a seed does not decide.

    Attributes:
        nodes: replicas at the beginning; None: the seed draws 1, 3 (mostly) or 5.
        load_ms: simulated time under load and faults; None: what suits the number of nodes.
        processes: clients.
        pace_ms: mean time between a client's requests.
        faults: whether anything goes wrong.
        fault_ms: mean time between faults; None: what suits the number of nodes.
        fsync: policy; None: the seed draws one. Under a weak one only processes are killed, power stays on.
        check_every: compare whole images every so many entries; None: what suits the number of nodes.
        verbose: every message is in the event log.
        trace_to: gets a line for each step of consensus, of all nodes in the order of what happens.
    """

    nodes: int | None = None
    load_ms: int | None = None
    processes: int = 4
    pace_ms: int = 20
    faults: bool = True
    fault_ms: int | None = None
    fsync: FsyncPolicy | None = None
    check_every: int | None = None
    verbose: bool = False
    trace_to: Sink | None = None


DEFAULTS: Final = Options()


@attrs.define
class Report:
    """What a seed did.

    Attributes:
        requests: sent by clients, copies not counted.
        entries: committed.
    """

    seed: int
    nodes: int
    marks: Counter[str]
    entries: int
    events: int
    requests: int
    now_us: int
    log: list[str]
