"""One life of a replica in little, on a simulated disk, with an account of what was answered.

The account keeps the bytes of every entry that was attempted. What a replica must hold after a crash follows from
them alone: the state that a fresh machine reaches by applying the acknowledged ones, and perhaps the one whose end
nobody saw.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

import attrs

from walrq import api
from walrq.errors import Code, DiskFull
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.queues.image import full_pages
from walrq.queues.machine import Machine
from walrq.replica import Batch, Done, Replica, ReplicaConfig, SnapshotJob
from walrq.storage.config import FsyncPolicy, StorageConfig
from walrq.storage.findings import Verdict
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

SEGMENT_BYTES = 16 * 1024
# A refused batch comes again once, without its pushes.
TURNS_MAX = 4
ROT = frozenset({Verdict.DAMAGED, Verdict.METADATA, Verdict.MISSING})
CONFIG = ReplicaConfig(
    node_id="n1", cluster_id="cluster", secret=b"s" * 16, disk_uuid=b"d" * 16, body_cache_bytes=2_000
)
Image = dict[bytes, bytes]


def storage_config(fsync: FsyncPolicy = "always") -> StorageConfig:
    """Small segments, so that a short story rotates and recycles."""
    return StorageConfig(
        data_dir="data",
        fsync=fsync,
        segment_bytes=SEGMENT_BYTES,
        reserve_segments=1,
        reserve_snapshot_bytes=4096,
        pool_segments_max=3,
    )


def columns(*payloads: bytes, groups: tuple[str | None, ...] | None = None) -> api.Columns:
    """A body with these payloads."""
    ends = [sum(map(len, payloads[: k + 1])) for k in range(len(payloads))]
    return api.Columns(b"".join(payloads), struct.pack(f"<{len(ends)}I", *ends), groups=groups)


@attrs.define
class Account:
    """Entry bodies by index: answered, and being written. `images` caches states by the chain of bodies."""

    acknowledged: dict[int, bytes] = attrs.field(factory=dict)
    in_flight: tuple[int, bytes] | None = None
    snapshots: int = 0

    def histories(self) -> list[list[tuple[int, bytes]]]:
        """What a replica may have applied after a crash."""
        known = sorted(self.acknowledged.items())
        return [known, [*known, self.in_flight]] if self.in_flight is not None else [known]


_images: dict[bytes, Image] = {}


def image_of(history: Sequence[tuple[int, bytes]]) -> Image:
    """The state that a fresh machine reaches, as pages."""
    digest = hashlib.blake2b(digest_size=16)
    for index, body in history:
        digest.update(struct.pack("<QI", index, len(body)) + body)
    key = digest.digest()
    if key not in _images:
        machine = Machine()
        # A start raises it before anything else.
        machine.version = CONFIG.version_max
        for index, body in history:
            stamp, tagged = c.decode_entry(body)
            machine.apply(index, stamp, tagged)
        _images[key] = full_pages(machine)
    return _images[key]


class Desk:
    """Drives one replica; every entry is noted before it is written and confirmed when it was answered."""

    def __init__(self, disk: SimDisk, account: Account | None = None, fsync: FsyncPolicy = "always") -> None:
        self.account = Account() if account is None else account
        self.now_ms = 1_000
        self.storage = Storage.open(disk, storage_config(fsync))
        # Only a replica that starts in an empty directory writes more than a no-op, always the same bytes.
        self.replica = Replica.open(self.storage, CONFIG, self.reading())
        self.session: int | None = None
        self.sequence = 0
        self.held: list[effects.Grant] = []
        if not self.account.acknowledged:
            self.account.acknowledged[2] = self.storage.read(2).body

    def reading(self) -> Reading:
        """Both clocks, a little later each time."""
        self.now_ms += 3
        return Reading(self.now_ms, 1_700_000_000_000 + self.now_ms)

    def take(self) -> Batch:
        """The next entry, noted."""
        batch = self.replica.take_batch(self.reading())
        assert batch is not None
        self.account.in_flight = (batch.records[-1].index, batch.records[-1].body)
        return batch

    def complete(self, batch: Batch) -> Done:
        """Its end, noted."""
        assert self.account.in_flight is not None
        index, body = self.account.in_flight
        self.account.in_flight = None
        if not batch.refused:
            self.account.acknowledged[index] = body
        return self.replica.complete(batch)

    def do(self, *given: c.Command) -> list[effects.Result]:
        """Execute commands in one entry; on a full disk some of them come again in the next one."""
        tickets = []
        for command in given:
            self.sequence += 1
            if self.session is None:
                tickets.append(self.replica.propose(c.Tagged(command)))
            else:
                tickets.append(self.replica.propose(c.Tagged(command, self.session, self.sequence, self.sequence)))
        answers: dict[int, effects.Result] = {}
        for _ in range(TURNS_MAX):
            if not self.replica.has_work:
                break
            batch = self.take()
            self.replica.persist(batch)
            answers |= dict(self.complete(batch).results)
        assert not self.replica.has_work, "something comes again for ever"
        return [answers[ticket] for ticket in tickets]

    # --- steps ----------------------------------------------------------------------------------------------
    def open_session(self) -> None:
        """Requests are tagged from here on, unless the disk was full."""
        (opened,) = self.do(c.OpenSession())
        if isinstance(opened, api.SessionOpened):
            self.session = opened.session

    def push(self, *sizes: int) -> None:
        """One batch."""
        self.do(c.Push("q", columns(*(bytes([size % 251]) * size for size in sizes))))

    def lease(self, number: int, visibility_ms: int = 60_000) -> None:
        """Hold some messages."""
        (granted,) = self.do(c.Lease(("q",), number, visibility_ms, 0, "w"))
        if isinstance(granted, effects.Granted):
            self.held += granted.runs

    def settle(self, kind: api.SettleKind, number: int, ranges: tuple[api.Range, ...] | None = None) -> None:
        """Give held runs back."""
        targets = tuple(c.Target(run.uid, run.lease, ranges) for run in self.held[:number])
        del self.held[:number]
        if targets:
            self.do(c.Settle("q", kind, targets))

    def drain(self) -> None:
        """Ack all there is: only then is a block of 64 log indexes, and so a segment of a short story, dead."""
        self.settle(api.SettleKind.ACK, len(self.held))
        self.wait(70_000)
        self.lease(50)
        self.settle(api.SettleKind.ACK, len(self.held))

    def mixed(self) -> None:
        """A push, a poll and an ack that gathered into one entry."""
        targets = tuple(c.Target(run.uid, run.lease) for run in self.held[:1])
        del self.held[:1]
        _, granted, _ = self.do(
            c.Push("q", columns(b"mixed", b"entry", groups=("g", None))),
            c.Lease(("q",), 2, 60_000, 0, None),
            c.Settle("q", api.SettleKind.ACK, targets),
        )
        if isinstance(granted, effects.Granted):
            self.held += granted.runs

    def wait(self, milliseconds: int) -> None:
        """Time passes, and an empty entry expires what is due."""
        self.now_ms += milliseconds
        self.replica.propose_expiry()
        self.do()

    def snapshot(self, between: Callable[[], None] = lambda: None) -> None:
        """A snapshot, with something else going on between its steps."""
        job = self.replica.begin_snapshot()
        if job is None:
            return
        try:
            self._write(job, between)
        except DiskFull:
            job.abort()
            self.replica.snapshot_failed(job)
            return
        self.replica.snapshot_done(job)
        self.account.snapshots += 1

    def _write(self, job: SnapshotJob, between: Callable[[], None]) -> None:
        between()
        while job.step():
            between()
            job.write()
        job.write()
        job.finish()

    def reclaim(self) -> None:
        """Give dead segments back."""
        self.replica.reclaim()

    def settle_log(self) -> None:
        """The log was idle."""
        self.storage.settle()


def short_story(desk: Desk) -> None:
    """Push, lease, ack, fail, expiry, snapshot, reclaim and reuse of segments."""
    ack, fail, release = api.SettleKind.ACK, api.SettleKind.FAIL, api.SettleKind.RELEASE
    steps: list[Callable[[], None]] = [
        lambda: desk.push(10, 0, 7),
        lambda: desk.lease(2),
        lambda: desk.settle(ack, 1, ((0, 0),)),
        desk.open_session,
        lambda: desk.push(1500, 900),
        desk.settle_log,
        lambda: desk.lease(1, 40),
        desk.mixed,
        lambda: desk.push(1400),
        lambda: desk.wait(60),
        lambda: desk.snapshot(between=lambda: desk.push(30)),
        lambda: desk.lease(10),
        lambda: desk.settle(ack, 3),
        lambda: desk.settle(fail, 1),
        lambda: desk.settle(release, 1),
        lambda: desk.push(3000),
        lambda: desk.push(2900),
        desk.drain,
        desk.snapshot,
        desk.reclaim,
        lambda: desk.push(2800, 2),
        lambda: desk.push(3100),
        lambda: desk.lease(1),
        desk.mixed,
        desk.drain,
        desk.snapshot,
        desk.reclaim,
        lambda: desk.push(3000),
        lambda: desk.push(3000, 20),
        lambda: desk.push(20),
    ]
    for step in steps:
        step()


def check_after_crash(disk: SimDisk, account: Account, what: str) -> None:
    """Start again: what was answered is there, nothing else is, every live body is readable, work goes on."""
    storage = Storage.open(disk, storage_config())
    try:
        for finding in storage.recovered.report:
            assert finding.verdict not in ROT, (what, finding)
        replica = Replica.open(storage, CONFIG, Reading(5, 1_800_000_000_000))
        image = full_pages(replica.machine)
        histories = account.histories()
        if not account.acknowledged:
            # Nobody was told of anything yet; at most the bootstrap was there.
            assert not replica.machine.queues, what
        else:
            images = [image_of(history) for history in histories]
            assert image in images, (what, _difference(image, images))
        _read_all(replica, what)
        _goes_on(replica, what)
    finally:
        storage.close(clean=False)


def _difference(image: Image, images: Sequence[Image]) -> list[list[bytes]]:
    return [[key for key in image.keys() | one.keys() if image.get(key) != one.get(key)] for one in images]


def _read_all(replica: Replica, what: str) -> None:
    for queue in replica.machine.queues.values():
        for batch in queue.batches():
            body = replica.load_body(batch.index, batch.ordinal)
            assert body.count == batch.total, (what, batch.index)


def _goes_on(replica: Replica, what: str) -> None:
    """A push and its delivery work after the start."""
    replica.propose(c.Tagged(c.Push("after", columns(b"the crash"))))
    replica.propose(c.Tagged(c.Lease(("after",), 1, 1_000, 0, None)))
    batch = replica.take_batch(Reading(10, 1_800_000_000_000))
    assert batch is not None
    replica.persist(batch)
    _, (_, granted) = replica.complete(batch).results
    assert isinstance(granted, effects.Granted) and len(granted.runs) == 1, (what, granted)


def is_disk_full(result: effects.Result) -> bool:
    """A refusal because of the disk."""
    return isinstance(result, api.Failed) and result.code == Code.DISK_FULL
