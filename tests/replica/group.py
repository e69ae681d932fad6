"""Several replicas over a network in memory, driven by hand: nothing happens unless a test says so.

Messages travel as bytes. `settle` lets everything happen that can without time passing; `ticks` lets time pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tests.replica.story import columns, storage_config
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.queues.image import full_pages
from walrq.raft.election import Timing
from walrq.raft.leader import Bounds
from walrq.raft.membership import Configuration, Member
from walrq.raft.messages import Append, Message, decode, encode
from walrq.replica import Batch, Replica, ReplicaConfig
from walrq.storage.config import FsyncPolicy
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

NAMES = ("a", "b", "c")
TIMING = Timing(election=5, spread=5, heartbeat=2, stall=12)
# Small, so that a few entries fill a window and a small image is several chunks.
BOUNDS = Bounds(append_entries=8, append_bytes=4_000, in_flight_appends=4, chunk_bytes=300, snapshot_window_bytes=900)
TICK_MS = 50
START_MS = 1_700_000_000_000


def members(*names: str) -> Configuration:
    """A new cluster's list."""
    return Configuration({name: Member(name, f"{name}:1") for name in names})


class Node:
    """One replica, its disk, its clocks, and what came of what was asked."""

    def __init__(self, group: Group, name: str, configuration: Configuration | None, **changes: Any) -> None:
        self.group = group
        self.name = name
        self.configuration = configuration
        self.changes = changes
        self.fsync: FsyncPolicy = "always"
        # Storage is told that others have what it loses.
        self.member = True
        self.disk = SimDisk(seed=sum(name.encode()))
        # What its clocks show beyond the true time, ms.
        self.wall_off_ms = 0
        self.monotonic_off_ms = 1_000 * sum(name.encode())
        self.up = False
        self.results: dict[int, effects.Result] = {}
        self.lost: list[int] = []
        self.refused: list[int] = []
        self.reads: dict[int, bool] = {}
        self.findings: list[str] = []
        self.batch: Batch | None = None
        # A persist or a job is begun and does not end.
        self.stuck = False
        self.lives = 0
        self.loads = 0
        self.installs = 0
        self.start()

    def reading(self) -> Reading:
        """Both clocks."""
        now_ms = self.group.now_ms
        return Reading(now_ms + self.monotonic_off_ms, START_MS + now_ms + self.wall_off_ms)

    def start(self) -> None:
        """A new life from what the disk has."""
        self.lives += 1
        config = ReplicaConfig(
            node_id=self.name,
            cluster_id="cluster",
            secret=self.name.encode() * 16,
            disk_uuid=self.name.encode() * 16,
            configuration=self.configuration,
            address=f"{self.name}:1",
            timing=TIMING,
            draw=random.Random(self.lives * 1_000 + sum(self.name.encode())).randrange,
            raft_bounds=BOUNDS,
        )
        self.storage = Storage.open(self.disk, attrs.evolve(storage_config(self.fsync), member=self.member))
        self.replica = Replica.open(self.storage, attrs.evolve(config, **self.changes), self.reading())
        self.up = True
        self.batch = None
        self.results = {}
        self.lost, self.refused, self.reads = [], [], {}

    def stop(self) -> None:
        """A process that ends at once; the machine does not."""
        self.storage.close(clean=False)
        self.disk = self.disk.keep_all()
        self.up = False

    def crash(self, seed: int = 1) -> None:
        """Power loss."""
        self.disk = self.disk.crash(seed)
        self.up = False

    def restart(self) -> None:
        """Stop and start."""
        if self.up:
            self.stop()
        self.start()

    def take(self, done: Any) -> None:
        """Note what a call told."""
        for ticket, result in done.results:
            assert ticket not in self.results
            self.results[ticket] = result
        self.lost += done.lost
        self.refused += done.refused
        self.reads.update(done.reads)
        self.findings += done.findings
        self.installs += done.installed

    def work(self) -> bool:
        """One round of what a driver does. Whether there was anything to do."""
        replica = self.replica
        self.take(replica.advance())
        sent = self.group.send(self, replica.take_messages(self.reading()))
        busy = bool(sent)
        if self.batch is None and replica.has_work:
            self.batch = replica.take_batch(self.reading())
            self.group.send(self, replica.take_messages(self.reading()))
        if self.batch is not None and not self.stuck:
            batch, self.batch = self.batch, None
            replica.persist(batch)
            self.take(replica.complete(batch))
            busy = True
        job = replica.background() if not self.stuck else None
        if job is not None:
            self.loads += 1
            job.run()
            self.take(replica.background_done(job))
            busy = True
        if replica.snapshot_due():
            self.snapshot()
            busy = True
        return busy

    def snapshot(self) -> None:
        """A whole snapshot, and the space it frees."""
        job = self.replica.begin_snapshot()
        assert job is not None
        while job.step():
            job.write()
        job.write()
        job.finish()
        self.replica.snapshot_done(job)
        self.replica.reclaim()

    def image(self) -> dict[bytes, bytes]:
        """The state as pages."""
        return full_pages(self.replica.machine)

    def ask(self, *given: c.Command, tagged: tuple[int, int, int] | None = None) -> list[int]:
        """Propose; the tickets."""
        return [self.replica.propose(c.Tagged(command, *(tagged or (None, 0, 0)))) for command in given]

    def do(self, *given: c.Command, tagged: tuple[int, int, int] | None = None) -> list[effects.Result]:
        """Propose and let the group decide; the results."""
        tickets = self.ask(*given, tagged=tagged)
        self.group.settle()
        return [self.results[ticket] for ticket in tickets]

    def read(self, ticket: int) -> bool | None:
        """A consistent read: whether it may be answered here; None: it is not decided."""
        self.replica.read(ticket)
        self.group.settle()
        return self.reads.get(ticket)


class Group:
    """See the module."""

    def __init__(self, names: Sequence[str] = NAMES, **changes: Any) -> None:
        self.now_ms = 0
        # (sender, receiver) pairs that nothing passes.
        self.cut: set[tuple[str, str]] = set()
        self.wires: list[bytes] = []
        self.drops: Callable[[Message], bool] = lambda _message: False
        self.nodes = {name: Node(self, name, members(*names), **changes) for name in names}

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def alive(self) -> list[Node]:
        """Nodes that run."""
        return [node for node in self.nodes.values() if node.up]

    def add(self, name: str, configuration: Configuration | None = None, **changes: Any) -> Node:
        """Another node, which joins unless told otherwise."""
        node = Node(self, name, Configuration() if configuration is None else configuration, **changes)
        self.nodes[name] = node
        return node

    # --- the network ----------------------------------------------------------------------------------------
    def send(self, node: Node, messages: Sequence[Message]) -> int:
        """Put messages on their way; how many."""
        for message in messages:
            filled: Message | None = message
            if isinstance(message, Append) and not message.is_filled:
                node.loads += 1
                filled = node.replica.fill(message)
                if filled is None:
                    node.replica.link_lost(message.receiver)
                    continue
            assert filled is not None
            if (node.name, message.receiver) not in self.cut and not self.drops(filled):
                self.wires.append(encode(filled))
        return len(messages)

    def isolate(self, name: str) -> None:
        """Nothing reaches a node, and nothing from it."""
        for other in self.nodes:
            self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        """Everything passes."""
        self.cut.clear()

    def connect(self) -> None:
        """Transports tell who is there."""
        for node in self.alive:
            for peer in self.alive:
                if peer is not node:
                    replica = peer.replica
                    node.replica.link_up(peer.name, replica.disk_uuid, f"{peer.name}:1", replica.config.version_max)

    # --- what happens ---------------------------------------------------------------------------------------
    def deliver(self) -> bool:
        """Everything that is on its way arrives. Whether there was anything."""
        wires, self.wires = self.wires, []
        for data in wires:
            message = decode(data)
            node = self.nodes.get(message.receiver)
            if node is not None and node.up:
                node.replica.receive(message, node.reading())
        return bool(wires)

    def settle(self, rounds: int = 2_000) -> None:
        """Let everything happen that can."""
        for _ in range(rounds):
            busy = [node.work() for node in self.alive]
            if not self.deliver() and not any(busy):
                return
        raise AssertionError("it does not come to rest")

    def ticks(self, number: int) -> None:
        """Time passes."""
        for _ in range(number):
            self.now_ms += TICK_MS
            for node in self.alive:
                node.replica.tick(node.reading())
            self.settle()

    def leader(self) -> Node:
        """The one that leads, waited for."""
        for _ in range(200):
            leading = [node for node in self.alive if node.replica.accepts]
            if leading:
                newest = max(leading, key=lambda node: node.replica.term)
                others = [node for node in self.alive if node.replica.leader == newest.name]
                if len(others) * 2 > len(newest.replica.configuration.voters):
                    return newest
            self.ticks(1)
        raise AssertionError("nobody leads")

    def elect(self, name: str) -> Node:
        """Let this node lead."""
        for _ in range(20):
            leader = self.leader()
            if leader.name == name:
                return leader
            leader.replica.transfer(name)
            self.settle()
            self.ticks(1)
        raise AssertionError(f"{name} does not come to lead")

    def others(self, node: Node) -> list[Node]:
        """All but one."""
        return [other for other in self.nodes.values() if other is not node]

    def converge(self, ticks: int = 6) -> None:
        """Everybody who runs learns of every commit, and all states are the same."""
        self.ticks(ticks)
        first, *rest = self.alive
        for other in rest:
            assert other.replica.applied_index == first.replica.applied_index, (other.name, first.name)
            mine, theirs = first.image(), other.image()
            differing = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
            assert not differing, (first.name, other.name, differing)


def push(*payloads: bytes, queue: str = "q", **more: Any) -> c.Push:
    """A push."""
    return c.Push(queue, columns(*payloads), **more)


def lease(number: int = 10, visibility_ms: int = 30_000, queue: str = "q") -> c.Lease:
    """A poll."""
    return c.Lease((queue,), number, visibility_ms, 0, None)
