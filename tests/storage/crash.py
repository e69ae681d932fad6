"""A workload over one storage, with a plain account of what was promised, and the check after a crash.

The account knows: what was acknowledged (must be there), what was ever attempted (nothing else may be there),
and what may be gone because it was given back or cut.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from walrq.errors import Reclaimed
from walrq.storage.config import FsyncPolicy, StorageConfig
from walrq.storage.findings import Verdict
from walrq.storage.hard_state import HardState
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

SEGMENT_BYTES = 16 * 1024
# Findings that a mere power loss may never cause: nothing durable was touched by it.
ROT = frozenset({Verdict.DAMAGED, Verdict.METADATA, Verdict.MISSING})


def config(fsync: FsyncPolicy = "always", *, member: bool = False, **changes: int) -> StorageConfig:
    """Small segments, so that a short test rotates and recycles."""
    settings: dict[str, int] = {
        "segment_bytes": SEGMENT_BYTES,
        "reserve_segments": 1,
        "reserve_snapshot_bytes": 4096,
        "pool_segments_max": 3,
        **changes,
    }
    return StorageConfig(data_dir="data", fsync=fsync, member=member, **settings)


Image = tuple[int, tuple[tuple[bytes, bytes], ...]]


@attrs.define
class Account:
    """What the storage owes."""

    acknowledged: dict[int, Record] = attrs.field(factory=dict)
    attempted: dict[int, list[Record]] = attrs.field(factory=dict)
    given_back_through: int = 0
    hard_states: list[HardState | None] = attrs.field(factory=lambda: [None])
    hard_state_in_flight: HardState | None = None
    snapshots: list[Image | None] = attrs.field(factory=lambda: [None])
    snapshot_in_flight: Image | None = None
    next_index: int = 1
    term: int = 1


@attrs.define
class Workload:
    """Drives a storage step by step; every step is noted before it starts and confirmed after."""

    storage: Storage
    account: Account
    draw: random.Random
    pages: dict[bytes, bytes] = attrs.field(factory=dict)
    steps_done: int = 0
    # Written, but not yet called durable by the policy.
    pending: list[Record] = attrs.field(factory=list)

    def append(self, *sizes: int) -> None:
        """One batch of records with such bodies."""
        account = self.account
        records = [
            Record(account.next_index + i, account.term, i % 256, self.draw.randbytes(size))
            for i, size in enumerate(sizes)
        ]
        for record in records:
            account.attempted.setdefault(record.index, []).append(record)
        self.storage.append_batch(records)
        account.next_index += len(records)
        self.pending += records
        self.acknowledge()

    def acknowledge(self) -> None:
        """Take the storage at its word: what it calls durable was promised to somebody."""
        durable = self.storage.durable_index
        for record in self.pending:
            if record.index <= durable:
                self.account.acknowledged[record.index] = record
        self.pending = [record for record in self.pending if record.index > durable]

    def sync(self) -> None:
        """The interval is over."""
        self.storage.sync()
        self.acknowledge()

    def vote(self) -> None:
        """A new term with a vote."""
        account = self.account
        account.term += 1
        state = HardState(
            term=account.term,
            vote=f"node-{account.term}",
            node_id="node-1",
            cluster_id="cluster",
            disk_uuid=self.storage.disk_uuid,
        )
        account.hard_state_in_flight = state
        self.storage.set_hard_state(state)
        account.hard_states.append(state)

    def snapshot(self, *, change: int, drop: int = 0) -> None:
        """A snapshot of everything appended so far, with some pages new, some gone, the rest kept."""
        self.sync()
        index = self.account.next_index - 1
        writer = self.storage.begin_snapshot(index, self.account.term, b"meta")
        for key in sorted(self.pages)[:drop]:
            del self.pages[key]
            writer.drop(key)
        for _ in range(change):
            key = b"page-%d" % self.draw.randrange(12)
            self.pages[key] = self.draw.randbytes(self.draw.randrange(1, 900))
            writer.put(key, self.pages[key])
        self.account.snapshot_in_flight = (index, tuple(sorted(self.pages.items())))
        writer.finish()
        self.account.snapshots.append(self.account.snapshot_in_flight)

    def reclaim(self) -> None:
        """Give back every dead segment; the middle one of three lives on."""
        newest = self.account.snapshots[-1]
        if newest is None:
            return
        live = {index for index in range(1, newest[0] + 1) if index % 7 == 3 and index > newest[0] // 2}
        self.account.given_back_through = newest[0]
        self.storage.reclaim(newest[0], lambda first, last: any(first <= i <= last for i in live))
        for index in live & self.account.acknowledged.keys():
            assert self.storage.read(index) == self.account.acknowledged[index]

    def cut(self, count: int) -> None:
        """Forget the last `count` records, as a follower does at a conflict."""
        account = self.account
        from_index = account.next_index - count
        for index in range(from_index, account.next_index):
            # From here on they may be there or not.
            account.acknowledged.pop(index, None)
        self.pending = [record for record in self.pending if record.index < from_index]
        self.storage.truncate_suffix(from_index)
        account.next_index = from_index
        for index in list(account.attempted):
            if index >= from_index:
                # Once the cut returned, what was cut must never be seen again.
                account.attempted[index] = []
        account.term += 1

    def settle(self) -> None:
        """The log was idle for a moment."""
        self.storage.settle()


def long_story(work: Workload) -> None:
    """Everything a node does in its life, in little."""
    steps: list[Callable[[], None]] = [
        lambda: work.append(10),
        work.vote,
        lambda: work.append(0, 1, 7, 8, 9),
        work.sync,
        work.settle,
        lambda: work.append(1500, 1500),
        lambda: work.append(1800),
        lambda: work.snapshot(change=5),
        lambda: work.append(900),
        lambda: work.cut(1),
        lambda: work.append(900, 30),
        lambda: work.append(2500),
        work.sync,
        work.reclaim,
        lambda: work.append(2000),
        work.vote,
        lambda: work.append(3000),
        lambda: work.snapshot(change=4, drop=2),
        work.reclaim,
        lambda: work.append(3500),
        lambda: work.append(20, 20, 20),
        lambda: work.cut(4),
        lambda: work.append(40),
        lambda: work.append(3900),
        lambda: work.snapshot(change=8, drop=1),
        work.reclaim,
        lambda: work.append(3900),
        lambda: work.append(3900),
        lambda: work.append(3900),
        lambda: work.cut(2),
        lambda: work.append(3900),
        lambda: work.append(1),
    ]
    for step in steps:
        step()
        work.steps_done += 1


def start(disk: SimDisk, seed: int, fsync: FsyncPolicy = "always") -> Workload:
    """A fresh storage with an empty account."""
    return Workload(Storage.open(disk, config(fsync)), Account(), random.Random(seed))


def random_step(work: Workload) -> None:
    """One step of a life that nobody planned."""
    draw = work.draw
    kept = work.account.snapshots[-1]
    above_snapshot = work.account.next_index - 1 - (kept[0] if kept is not None else 0)
    chance = draw.random()
    if chance < 0.6:
        work.append(*[draw.choice((0, 5, 40, 300, 1500, 3900)) for _ in range(draw.randrange(1, 4))])
    elif chance < 0.68:
        work.settle()
    elif chance < 0.74:
        work.sync()
    elif chance < 0.8:
        work.vote()
    elif chance < 0.88:
        work.snapshot(change=draw.randrange(5), drop=draw.randrange(2))
    elif chance < 0.95:
        work.reclaim()
    elif above_snapshot > 0:
        work.cut(draw.randrange(1, above_snapshot + 1))


def resume(storage: Storage, account: Account, seed: int) -> Workload:
    """Go on after a crash: what was found is what is promised from now on."""
    found = {record.index: record for record in storage.entries(1)}
    account.acknowledged = found
    account.attempted = {index: [record] for index, record in found.items()}
    account.next_index = storage.last_index + 1
    account.term += 1
    account.hard_states = [storage.recovered.hard_state]
    account.hard_state_in_flight = storage.recovered.hard_state
    snapshot = storage.recovered.snapshot
    pages = {} if snapshot is None else dict(snapshot.pages())
    image = None if snapshot is None else (snapshot.index, tuple(sorted(pages.items())))
    account.snapshots = [image]
    account.snapshot_in_flight = image
    return Workload(storage, account, random.Random(seed), pages)


def check_after_crash(disk: SimDisk, account: Account, what: str) -> None:
    """Open the disk and hold it to the account; then go on writing, stop and look again."""
    storage = Storage.open(disk, config())
    try:
        check(storage, account, what)
        tail = Record(storage.last_index + 1, account.term + 1, 9, b"written after the crash")
        storage.append_batch([tail])
    finally:
        storage.close(clean=False)
    again = Storage.open(disk.keep_all(), config())
    try:
        assert again.recovered.report == (), (what, again.recovered.report)
        assert again.last_index == tail.index, (what, again.last_index, tail.index)
        assert again.read(tail.index) == tail, what
    finally:
        again.close(clean=False)


def check(storage: Storage, account: Account, what: str) -> None:
    """Hold a storage that was just opened to the account."""
    # inv: NoRefuseWithoutRot
    for finding in storage.recovered.report:
        assert finding.verdict not in ROT, (what, finding)
        assert not [index for index in finding.lost if index in account.acknowledged], (what, finding)
    # inv: NoSilentLoss
    for index, record in account.acknowledged.items():
        try:
            assert storage.read(index) == record, (what, index)
        except Reclaimed:
            assert index <= account.given_back_through, (what, index)
    # inv: NoPhantom
    for record in storage.entries(1):
        assert record in account.attempted.get(record.index, []), (what, "invented", record.index)
    assert storage.recovered.hard_state in (account.hard_states[-1], account.hard_state_in_flight), what
    snapshot = storage.recovered.snapshot
    image = None if snapshot is None else (snapshot.index, tuple(sorted(snapshot.pages())))
    assert image in (account.snapshots[-1], account.snapshot_in_flight), what
    if account.acknowledged:
        assert storage.last_index >= max(account.acknowledged), what
