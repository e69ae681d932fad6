"""The simulator: real replicas on simulated disks, one event heap, one integer that decides everything.

    python -m walrq.testing.cluster --seed 7         replay one seed and print its event log
    python -m walrq.testing.cluster --seeds 0:200    many seeds; what each mark was worth; the first failure's command

The `Replica` is driven through exactly the seam that the daemon uses; there is no Trio, no thread and no real time
here. A persist takes simulated time, in which others propose and `advance` is called. Power is lost between any two
operations of the disk, and what was not synced is lost, torn or garbage (`SimDisk.crash`); processes are killed;
writes and syncs fail; the disk fills up; clocks drift and jump; replies get lost and requests arrive twice.

After every entry its promises are checked by name (`promises.py`), against a shadow machine that applies the log's
bytes from the first entry on and never restarts. In the end everything is drained and compared with what the
processes were told (`processes.py`). Marks count what a seed exercised; a batch of seeds that misses one fails.

Random streams are salted, one per concern, so that one more draw in one of them does not shift the others.
"""

from __future__ import annotations

import argparse
import errno
import heapq
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from walrq import api
from walrq.errors import Code, ConfigError, DiskFull, NotLeader, Reclaimed, StorageError
from walrq.limits import SLOT_SETTLE_MS
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.queues.image import full_pages
from walrq.queues.machine import Machine
from walrq.raft.entries import Kind
from walrq.replica import Batch, Done, Replica, ReplicaConfig, SnapshotJob
from walrq.storage.config import FsyncPolicy, StorageConfig
from walrq.storage.findings import Verdict
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import PowerOff, SimDisk
from walrq.testing.processes import QUEUES, Account, Drainer, Process, Request
from walrq.testing.promises import Broken, Ledger, check_machine, payloads, promise

# One voter until there are peers to speak to.
NODES_MAX: Final = 1
MS: Final = 1000
WALL_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
# Findings that a power loss alone may never cause.
ROT: Final = frozenset({Verdict.DAMAGED, Verdict.METADATA, Verdict.MISSING})
DRAIN_US_MAX: Final = 600 * 1000 * MS

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
    "lease expired over a restart",
    "lease outlived a restart",
    "lease touched",
    "lease forgotten",
    "late settle refused",
    "message failed",
    "message in a dead-letter queue",
    "dead messages redriven",
    "message cancelled",
    "message ended by its ttl",
    "delayed message fired",
    "duplicate refused by its id",
)


@attrs.frozen(kw_only=True)
class Options:
    """What a seed does not decide.

    Attributes:
        load_ms: simulated time under load and faults.
        processes: clients.
        pace_ms: mean time between a client's requests.
        fault_ms: mean time between faults; None: none.
        fsync: policy; None: the seed draws one. Under a weak one only processes are killed, power stays on.
        check_every: compare whole images every so many entries.
    """

    load_ms: int = 3_000
    processes: int = 4
    pace_ms: int = 20
    fault_ms: int | None = 250
    fsync: FsyncPolicy | None = None
    check_every: int = 20


@attrs.define
class Report:
    """What a seed did."""

    seed: int
    marks: Counter[str]
    entries: int
    events: int
    now_us: int
    hash: int
    log: list[str]


class NodeClock:
    """One machine's two clocks, as functions of true time."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._rate = 1 + draw.uniform(-0.0009, 0.0009)
        self._wall_rate = 1 + draw.uniform(-0.05, 0.05)
        self._base_us = 0
        self._wall_offset_ms = draw.randrange(-5_000, 5_000)
        self.boot()

    def boot(self) -> None:
        """Monotonic time of a process starts anywhere."""
        self._base_us = self._draw.randrange(0, 10**12)

    def jump(self) -> int:
        """The wall clock is set; by how many ms."""
        step_ms = self._draw.choice((-HOUR_MS, HOUR_MS, -4_000, 4_000, -100, 100))
        self._wall_offset_ms += step_ms
        return step_ms

    def read(self, now_us: int) -> Reading:
        """What both clocks show."""
        return Reading(
            int(self._base_us + now_us * self._rate) // MS,
            WALL_MS + int(now_us * self._wall_rate) // MS + self._wall_offset_ms,
        )

    def until_us(self, monotonic_ms: int, now_us: int) -> int:
        """True time from now until the monotonic clock shows that; at least 0, never too early."""
        left_us = (monotonic_ms * MS - self._base_us) / self._rate - now_us
        return max(0, int(left_us) + 2)


class Node:
    """One machine: its disk, its clock, and the process on it while it runs.

    Every `_later` belongs to one life of the process: what comes after its end is dropped.
    """

    def __init__(self, cluster: Cluster, name: str, fsync: FsyncPolicy) -> None:
        self.name = name
        self.disk = SimDisk(seed=cluster.seed)
        self.clock = NodeClock(cluster.draw(f"clock/{name}"))
        self.replica: Replica | None = None
        self.storage: Storage | None = None
        self._cluster = cluster
        self._fsync = fsync
        self._draw = cluster.draw(f"disk/{name}")
        self._crash_draw = cluster.draw(f"crash/{name}")
        self._life = 0
        self._waiting: dict[int, Request] = {}
        self._persisting: Batch | None = None
        self._job: SnapshotJob | None = None
        self._turn_comes = False
        self._reaper_at: int | None = None
        self._turns = 0
        self._slow_until_us = 0
        # Faults still happen.
        self._restless = cluster.options.fault_ms is not None

    # --- life -----------------------------------------------------------------------------------------------
    @property
    def is_up(self) -> bool:
        """A process runs."""
        return self.replica is not None

    @property
    def is_weak(self) -> bool:
        """Acknowledged work may be lost with the machine, not with the process."""
        return self._fsync != "always"

    def reading(self) -> Reading:
        """This machine's clocks now."""
        return self.clock.read(self._cluster.now_us)

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        life = self._life

        def run() -> None:
            if life == self._life:
                self._guarded(action)

        self._cluster.at(delay_us, run)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Whatever touches the disk may lose power, or meet an error that ends the process."""
        try:
            action()
        except PowerOff as event:
            self._cluster.mark("power lost between disk operations")
            self.lose_power(str(event))
        except StorageError as error:
            self._cluster.mark("disk operation failed")
            self._end(f"exits: {error}", lossy=not self.is_weak)

    def start(self) -> None:
        """Boot the process, as the daemon does."""
        if self.is_up:
            return
        self._life += 1
        self.clock.boot()
        if self._restless and self._crash_draw.random() < 0.1:
            self.disk.power_off_at = self.disk.operation_count + self._crash_draw.randrange(60)
        config = StorageConfig(
            data_dir="data",
            fsync=self._fsync,
            segment_bytes=32 * 1024,
            reserve_segments=1,
            reserve_snapshot_bytes=8 * 1024,
            pool_segments_max=3,
        )
        try:
            storage = Storage.open(self.disk, config)
            self._check_recovered(storage)
            replica = Replica.open(storage, self._replica_config(), self.reading())
        except PowerOff as event:
            self._cluster.mark("power lost while starting")
            self.lose_power(str(event))
            return
        except (StorageError, DiskFull) as error:
            self._cluster.say(f"{self.name} does not start: {error}")
            self._end("exits while starting", lossy=False)
            return
        self.storage, self.replica = storage, replica
        if storage.recovered.snapshot is not None:
            self._cluster.mark("started from a snapshot")
        self._cluster.say(f"{self.name} leads term {replica.term}, applied {replica.applied_index}")
        self._cluster.history.recovered(replica, storage)
        self._look_ahead()

    def _replica_config(self) -> ReplicaConfig:
        return ReplicaConfig(
            node_id=self.name,
            cluster_id="simulated",
            secret=b"s" * 16,
            disk_uuid=b"d" * 16,
            snapshot_log_bytes=40 * 1024,
            snapshot_commands=80,
            body_cache_bytes=4 * 1024,
        )

    def _check_recovered(self, storage: Storage) -> None:
        for finding in storage.recovered.report:
            promise("NoRefuseWithoutRot", finding.verdict not in ROT, "power loss taken for damage", finding)
            if finding.verdict is Verdict.SUSPECT:
                self._cluster.mark("suspect tail cut")

    def lose_power(self, why: str) -> None:
        """What was not synced is kept, dropped, torn or garbage."""
        self._cluster.mark("power lost")
        self._end(f"loses power: {why}", lossy=True)

    def kill(self) -> None:
        """The process ends, the machine goes on: all that was written is there."""
        self._cluster.mark("process killed")
        self._end("is killed", lossy=False)

    def stop(self) -> None:
        """An orderly end, when nothing is being written."""
        if self._persisting is None and self._job is None:
            self._guarded(self._close)

    def _close(self) -> None:
        if self.replica is not None:
            self.replica.close()
            self._cluster.mark("clean stop")
            self._end("stops", lossy=False)

    def _end(self, text: str, *, lossy: bool) -> None:
        self._cluster.say(f"{self.name} {text}")
        if self._persisting is not None:
            self._cluster.history.unfinished = self._persisting.records[-1].index
        if self.storage is not None:
            self._cluster.mark("segment recycled", self.storage.stats().recycled)
        self._life += 1
        self.replica = self.storage = self._persisting = self._job = None
        self._waiting.clear()
        self._turn_comes = False
        self._reaper_at = None
        lose = lossy and not self.is_weak
        self.disk = self.disk.crash(self._crash_draw.randrange(1 << 30)) if lose else self.disk.keep_all()
        self._cluster.at(self._crash_draw.randrange(1 * MS, 150 * MS), self.start)

    # --- faults ---------------------------------------------------------------------------------------------
    def arm_power_loss(self) -> None:
        """Power goes before one of the next disk operations."""
        self.disk.power_off_at = self.disk.operation_count + self._crash_draw.randrange(40)

    def arm_error(self) -> None:
        """One of the next disk operations fails."""
        code = self._crash_draw.choice((errno.EIO, errno.ENOSPC))
        number = self.disk.operation_count + self._crash_draw.randrange(20)
        self.disk.fail(number, code, short=self._crash_draw.random() < 0.5)

    def fill_disk(self) -> None:
        """Somebody else takes all space, for a while."""
        self._cluster.mark("disk full")
        room = self._crash_draw.choice((0, 0, 4_096, 40_000))
        self.disk.quota_bytes = self.disk.used_bytes + room
        long = self._crash_draw.random() < 0.4
        until_us = self._cluster.now_us + self._crash_draw.randrange(100, 3_000 if long else 500) * MS
        self._cluster.at(10 * MS, lambda: self._hog(until_us, room))

    def _hog(self, until_us: int, room: int) -> None:
        """What becomes free meanwhile is taken too; in the end all of it returns."""
        if self._cluster.now_us >= until_us or not self._restless:
            self.free_disk()
        elif self.disk.quota_bytes is not None:
            self.disk.quota_bytes = min(self.disk.quota_bytes, self.disk.used_bytes + room)
            self._cluster.at(10 * MS, lambda: self._hog(until_us, room))

    def free_disk(self) -> None:
        """The space returns."""
        self.disk.quota_bytes = None

    def slow_disk(self) -> None:
        """Every sync takes long, for a while."""
        self._slow_until_us = self._cluster.now_us + 500 * MS

    def calm(self) -> None:
        """No more faults."""
        self._restless = False
        self.disk.clear_faults()
        self.free_disk()
        self._slow_until_us = 0

    # --- requests -------------------------------------------------------------------------------------------
    def receive(self, request: Request) -> None:
        """A request arrived: through the door, into the next entry."""
        self._guarded(lambda: self._receive(request))

    def _receive(self, request: Request) -> None:
        replica, storage = self.replica, self.storage
        if replica is None or storage is None:
            return
        tagged = request.process.tagged(request)
        if isinstance(tagged.command, c.Push) and not storage.space.pushes_allowed:
            failed = api.Failed(Code.DISK_FULL, "the disk is full")
            self._cluster.mark("push refused on a full disk")
            self._cluster.reply(request, failed)
            return
        if isinstance(poll := tagged.command, c.Lease):
            arrived_ms = replica.stamp_now(self.reading()).lease_ms
            lease = c.Lease(poll.queues, poll.max_messages, poll.visibility_ms, arrived_ms, poll.worker)
            tagged = c.Tagged(lease, tagged.session, tagged.sequence, tagged.lowest)
        try:
            self._waiting[replica.propose(tagged)] = request
        except NotLeader:
            return
        self._wake()

    def _wake(self) -> None:
        if not self._turn_comes and self._persisting is None:
            self._turn_comes = True
            self._later(self._draw.randrange(300), self._turn)

    # --- the driver -----------------------------------------------------------------------------------------
    def _turn(self) -> None:
        """take_batch; the disk gets it somewhere within the time that the persist takes."""
        self._turn_comes = False
        replica = self.replica
        if replica is None or self._persisting is not None:
            return
        batch = replica.take_batch(self.reading())
        if batch is None:
            return
        self._persisting = batch
        self._cluster.history.taken(batch, self._cluster.now_us)
        slow = self._cluster.now_us < self._slow_until_us
        duration_us = self._draw.randrange(30 * MS, 120 * MS) if slow else self._draw.randrange(200, 6 * MS)
        written_us = int(duration_us * self._draw.random())
        self._later(written_us, lambda: self._persist(batch))
        self._later(duration_us, lambda: self._complete(batch))
        self._later(int(duration_us * self._draw.random()), self._advance)

    def _persist(self, batch: Batch) -> None:
        assert self.replica is not None
        self.replica.persist(batch)

    def _advance(self) -> None:
        """Called while a persist runs; with one voter nothing can have committed meanwhile."""
        assert self.replica is not None
        if self._persisting is not None:
            self._cluster.mark("advanced during a persist")
            self._resolve(self.replica.advance())

    def _complete(self, batch: Batch) -> None:
        assert self.replica is not None and self.storage is not None
        done = self.replica.complete(batch)
        self._persisting = None
        self._turns += 1
        if batch.refused:
            self._cluster.say(f"{self.name} has no room for entry {batch.records[-1].index}")
        else:
            promise("AckedDurable", self.is_weak or self.storage.durable_index >= self.replica.applied_index)
            self._cluster.history.applied(self.replica, batch, done)
        self._resolve(done)
        self._after_turn()

    def _resolve(self, done: Done) -> None:
        for ticket, result in done.results:
            request = self._waiting.pop(ticket, None)
            if request is not None:
                self._cluster.reply(request, result)

    def _after_turn(self) -> None:
        replica, storage = self.replica, self.storage
        assert replica is not None and storage is not None
        if replica.has_work:
            self._wake()
        else:
            turns = self._turns
            self._later(SLOT_SETTLE_MS * MS, lambda: self._settle(turns))
        if replica.snapshot_due() and self._job is None:
            self._begin_snapshot()
        if not storage.space.pushes_allowed:
            self._later(50 * MS, self._replenish)
        self._look_ahead()

    def _settle(self, turns: int) -> None:
        """The log was idle since that turn."""
        if turns == self._turns and self._persisting is None and self.storage is not None:
            self.storage.settle()

    def _look_ahead(self) -> None:
        """The reaper: come back when the next thing falls due."""
        assert self.replica is not None
        deadline_ms = self.replica.next_deadline(self.reading())
        if deadline_ms is None:
            return
        at_us = self._cluster.now_us + self.clock.until_us(deadline_ms, self._cluster.now_us)
        if self._reaper_at is None or at_us < self._reaper_at:
            self._reaper_at = at_us
            self._later(at_us - self._cluster.now_us, lambda: self._reap(at_us))

    def _reap(self, at_us: int) -> None:
        if self._reaper_at != at_us or self.replica is None:
            return
        self._reaper_at = None
        reading = self.reading()
        deadline_ms = self.replica.next_deadline(reading)
        if deadline_ms is not None and deadline_ms <= reading.monotonic_ms:
            self.replica.propose_expiry()
            self._wake()
        else:
            self._look_ahead()

    # --- the compactor --------------------------------------------------------------------------------------
    def _begin_snapshot(self) -> None:
        replica, storage = self.replica, self.storage
        assert replica is not None and storage is not None
        if storage.durable_index < replica.applied_index:
            storage.sync()
        self._job = replica.begin_snapshot()
        if self._job is not None:
            self._cluster.history.frozen(replica, self._job.index)
            self._later(100, self._snapshot)

    def _snapshot(self) -> None:
        """One step between turns, its writes at another time."""
        job = self._job
        assert job is not None
        more = job.step()
        self._later(self._draw.randrange(50, 3 * MS), lambda: self._write_snapshot(job, more))

    def _write_snapshot(self, job: SnapshotJob, more: bool) -> None:
        assert self.replica is not None and self.storage is not None
        try:
            job.write()
            if more:
                self._later(self._draw.randrange(50, 2 * MS), self._snapshot)
                return
            job.finish()
        except DiskFull:
            job.abort()
            self.replica.snapshot_failed(job)
            self._job = None
            self._cluster.mark("snapshot given up")
            return
        self.replica.snapshot_done(job)
        self._job = None
        self._cluster.mark("snapshot written")
        self._cluster.history.snapshot(self.storage)
        self._later(self._draw.randrange(2 * MS), self._reclaim)

    def _reclaim(self) -> None:
        assert self.replica is not None and self.storage is not None
        freed = self.replica.reclaim()
        self._cluster.say(f"{self.name} gives back {freed} segments")
        self._cluster.mark("segment reclaimed", freed)

    def _replenish(self) -> None:
        if self.storage is not None and self._persisting is None and not self.storage.space.pushes_allowed:
            if not self.storage.replenish():
                self._later(100 * MS, self._replenish)

    def read(self, run: effects.Grant) -> list[bytes]:
        """The payloads of a leased run, through cache or log."""
        assert self.replica is not None
        try:
            body = self.replica.load_body(run.index, run.ordinal)
        except Reclaimed as error:
            raise Broken(f"EveryLiveReadable: {run} {error}") from error
        return payloads(body)[run.first : run.first + run.count]


class History:
    """Every entry once, in log order, applied to a shadow machine that never restarts and takes no snapshots."""

    def __init__(self, cluster: Cluster) -> None:
        self.shadow = Machine()
        self.index = 0
        self.ledger = Ledger(cluster.mark)
        self.unfinished: int | None = None
        self._cluster = cluster
        self._attempted: dict[int, list[tuple[bytes, int]]] = {}
        self._frozen: dict[int, dict[bytes, bytes]] = {}

    def taken(self, batch: Batch, now_us: int) -> None:
        """A batch was packed: from now on its bytes may be in the log."""
        for record in batch.records:
            self._attempted.setdefault(record.index, []).append((record.body, now_us))

    def applied(self, replica: Replica, batch: Batch, done: Done) -> None:
        """A replica applied a batch and answered."""
        for record in batch.records:
            results = self._entry(record)
            answered = [result for _, result in done.results]
            promise("StateMachineSafety", answered == results, "answers differ", answered, results)
        promise("StateMachineSafety", replica.applied_index == self.index, replica.applied_index, self.index)
        if self.index % self._cluster.options.check_every == 0:
            self._compare(replica)

    def recovered(self, replica: Replica, storage: Storage) -> None:
        """A replica started: what it has beyond the shadow is an entry whose end nobody saw."""
        promise("NoSilentLoss", replica.applied_index > self.index, "entries lost", replica.applied_index, self.index)
        before = self.index
        for record in storage.entries(self.index + 1):
            if record.index <= replica.applied_index:
                self._entry(record)
        if self.unfinished is not None:
            kept = self.unfinished > before and self._kept(storage, self.unfinished)
            self._cluster.mark("unfinished entry kept" if kept else "unfinished entry lost")
            self.unfinished = None
        promise("Contiguous", self.index == replica.applied_index, self.index, replica.applied_index)
        self.ledger.offices += 1
        self._attempted.clear()
        self._frozen.clear()
        self._compare(replica)

    def _kept(self, storage: Storage, index: int) -> bool:
        """Whether the entry with this index is the one that was attempted."""
        return storage.read(index).body in [body for body, _ in self._attempted.get(index, [])]

    def _entry(self, record: Record) -> list[effects.Result]:
        promise("Contiguous", record.index == self.index + 1, record.index, self.index)
        self.index = record.index
        if record.kind == Kind.NOOP:
            return []
        stamp, tagged = c.decode_entry(record.body)
        known = self._attempted.get(record.index, [])
        times = [taken_us for body, taken_us in known if body == record.body]
        bootstrap = isinstance(tagged[0].command, c.Bootstrap) if tagged else False
        promise("NoPhantom", bool(times) or bootstrap, "an entry that nobody wrote", record.index)
        results = self.shadow.apply(record.index, stamp, tagged)
        self.shadow.take_effects()
        ids = check_machine(self.shadow)
        taken_us = times[-1] if times else self._cluster.now_us
        self.ledger.entry(record.index, stamp, tagged, results, taken_us, ids)
        return results

    def _compare(self, replica: Replica) -> None:
        """Snapshots, restarts and replays change nothing."""
        ids = check_machine(replica.machine)
        difference = ids ^ check_machine(self.shadow)
        promise("StateMachineSafety", not difference, "messages differ", [self.ledger.known[i] for i in difference])
        mine, theirs = full_pages(self.shadow), full_pages(replica.machine)
        differing = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
        promise("StateMachineSafety", not differing, "images differ at", replica.applied_index, differing)

    def frozen(self, replica: Replica, index: int) -> None:
        """A snapshot was begun: this is what it must hold, whatever happens until it is written."""
        promise("SnapLeDurable", index == self.index, index, self.index)
        self._frozen[index] = full_pages(self.shadow)

    def snapshot(self, storage: Storage) -> None:
        """A snapshot was written: the state at its beginning, no more and no less."""
        reader = storage.snapshot
        assert reader is not None
        promise("SnapLeDurable", reader.index <= storage.durable_index, reader.index, storage.durable_index)
        promise("NoMixedRead", dict(reader.pages()) == self._frozen.pop(reader.index), "snapshot", reader.index)


class Cluster:
    """`nodes` replicas, the processes that use them, and the heap of what happens next."""

    def __init__(self, nodes: int = 1, *, seed: int, options: Options = Options()) -> None:
        """Raises ConfigError for more nodes than can form a cluster now."""
        if not 1 <= nodes <= NODES_MAX:
            raise ConfigError(f"{nodes} nodes cannot be simulated, 1 to {NODES_MAX} can")
        self.seed = seed
        self.options = options
        self.now_us = 0
        self.log: list[str] = []
        self.marks: Counter[str] = Counter()
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._faults = self.draw("faults")
        self._network = self.draw("network")
        policies: tuple[FsyncPolicy, ...] = (*("always",) * 6, ("interval", 100), "never")
        fsync: FsyncPolicy = options.fsync if options.fsync is not None else self.draw("fsync").choice(policies)
        self.history = History(self)
        self.nodes = [Node(self, f"n{number}", fsync) for number in range(1, nodes + 1)]
        self.account = Account()
        self.processes = [
            Process(self, f"p{number}", self.account, options.pace_ms * MS)
            for number in range(1, options.processes + 1)
        ]
        self.say(f"seed {seed}, fsync {fsync}")

    # --- the world of the processes -------------------------------------------------------------------------
    def draw(self, name: str) -> random.Random:
        """The random stream of one concern."""
        return random.Random(f"{self.seed}/{name}")

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        """Let something happen."""
        self.events += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self.events, action))

    def say(self, text: str) -> None:
        """A line of the event log."""
        self.log.append(f"{self.now_us / MS:12.3f} ms  {text}")

    def mark(self, name: str, times: int = 1) -> None:
        """Something worth covering happened."""
        self.marks[name] += times

    def wall_ms(self) -> int:
        """The log's wall clock, which a client has seen in answers."""
        return self.history.ledger.stamp.wall_ms

    @property
    def leader(self) -> Node | None:
        """The node that clients speak to."""
        for node in self.nodes:
            if node.replica is not None and node.replica.is_leader:
                return node
        return None

    def send(self, request: Request) -> None:
        """A request on its way to the leader: lost with the connection, and sometimes there twice."""
        if request.session is not None:
            self.history.ledger.sent_us.setdefault((request.session, request.sequence), request.sent_us)
        copies = 1
        if request.session is not None and self._network.random() < 0.04:
            self.mark("request arrived twice")
            copies = 2
            request.copies += 1
        for _ in range(copies):
            delay_us = self._network.randrange(50, 2 * MS) + (self._network.randrange(200 * MS) if copies > 1 else 0)
            self.at(delay_us, lambda: self._arrive(request))

    def _arrive(self, request: Request) -> None:
        node = self.leader
        if node is not None:
            node.receive(request)

    def reply(self, request: Request, result: effects.Result) -> None:
        """An answer on its way; it names bodies that must be readable now."""
        if self._network.random() < 0.05:
            self.mark("reply lost")
            return
        if isinstance(result, effects.Granted):
            for run in result.runs:
                self._check_bodies(run)
        self.at(self._network.randrange(50, 2 * MS), lambda: request.process.answered(request, result))

    def _check_bodies(self, run: effects.Grant) -> None:
        node = self.leader
        assert node is not None
        values = node.read(run)
        ids = [self.history.ledger.values.get(value) for value in values]
        promise("NoMixedRead", ids == list(range(run.first_id, run.first_id + run.count)), "bodies", run, values)

    def read(self, run: effects.Grant) -> list[bytes]:
        """What a reply carried."""
        stories = self.history.ledger.known
        return [stories[identifier] for identifier in range(run.first_id, run.first_id + run.count)]

    # --- the run --------------------------------------------------------------------------------------------
    def run(self) -> Report:
        """Load with faults, then calm, then drain, then the reckoning. Broken when a promise is."""
        for node in self.nodes:
            self.at(0, node.start)
        self.at(1 * MS, self._set_up)
        for process in self.processes:
            self.at(self._network.randrange(20 * MS), process.wake)
        if self.options.fault_ms is not None:
            self._next_fault()
        self._run_until(lambda: self.now_us >= self.options.load_ms * MS)
        self.say("calm")
        for node in self.nodes:
            node.calm()
        for process in self.processes:
            process.stopped = True
        self._settle_down(lambda: all(process.is_idle for process in self.processes))
        self._drain()
        self.account.check()
        for node in self.nodes:
            node.stop()
        return Report(self.seed, self.marks, self.history.index, self.events, self.now_us, 0, self.log)

    def _set_up(self) -> None:
        """Short back-offs; dead messages of `keep` stay in it."""
        node = self.leader
        if node is None or node.replica is None:
            self.at(10 * MS, self._set_up)
            return
        for queue in QUEUES:
            settings: dict[str, Any] = {"backoff_ms": 15, "backoff_max_ms": 100, "dedup_window_ms": 300}
            if queue == "keep":
                settings["dlq"] = "none"
            node.replica.propose(c.Tagged(c.SetQueue(queue, settings)))

    def _drain(self) -> None:
        drainer = Drainer(self, self.account, list(self.history.shadow.queues))
        self.at(0, drainer.wake)
        self._settle_down(lambda: not self.history.ledger.stories)
        drainer.stopped = True
        self._settle_down(lambda: drainer.is_idle)

    def _settle_down(self, done: Callable[[], bool]) -> None:
        until_us = self.now_us + DRAIN_US_MAX
        self._run_until(lambda: done() or self.now_us > until_us)
        stuck = list(self.history.ledger.stories.values())[:5]
        promise("Drains", done(), "something is stuck", stuck)

    def _run_until(self, done: Callable[[], bool]) -> None:
        while self._heap and not done():
            self.now_us, _, action = heapq.heappop(self._heap)
            action()

    # --- faults ---------------------------------------------------------------------------------------------
    def _next_fault(self) -> None:
        assert self.options.fault_ms is not None
        self.at(int(self._faults.expovariate(1 / (self.options.fault_ms * MS))), self._fault)

    def _fault(self) -> None:
        if self.now_us >= self.options.load_ms * MS:
            return
        node = self._faults.choice(self.nodes)
        kind = self._faults.choice(
            (node.arm_power_loss,) * 6
            + (node.arm_error, node.fill_disk, node.fill_disk, node.slow_disk, self._jump)
            + ((lambda: node.lose_power("pulled the plug")),) * 2
            + (node.kill, node.stop, self._sleep)
        )
        if node.is_up:
            kind()
        self._next_fault()

    def _jump(self) -> None:
        node = self._faults.choice(self.nodes)
        self.mark("clock jumped")
        self.say(f"{node.name}'s wall clock jumps by {node.clock.jump()} ms")

    def _sleep(self) -> None:
        """Everybody sleeps for longer than a session may idle; rare, for all that runs is over afterwards."""
        if self._faults.random() < 0.3:
            self.mark("all slept for an hour")
            self.say("everybody sleeps for 61 minutes")
            step_us = 61 * 60 * 1000 * MS
            self.now_us += step_us
            self._heap = [(at + step_us, tie, action) for at, tie, action in self._heap]
            self.options = attrs.evolve(self.options, load_ms=self.options.load_ms + step_us // MS)


# --- the command --------------------------------------------------------------------------------------------
def run_seed(seed: int, options: Options = Options(), nodes: int = 1) -> Report:
    """One seed from start to end. Broken, with its log as a note, when a promise is."""
    cluster = Cluster(nodes, seed=seed, options=options)
    try:
        return cluster.run()
    except Exception as error:
        error.add_note("\n".join(cluster.log[-60:]))
        error.add_note(f"replay with: python -m walrq.testing.cluster --seed {seed}")
        raise


def missing(marks: Counter[str]) -> list[str]:
    """The marks that a batch of seeds should have exercised and did not."""
    return [name for name in MARKS if not marks[name]]


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last)) if last else range(int(first))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 when every promise held and every mark was exercised."""
    parser = argparse.ArgumentParser(prog="python -m walrq.testing.cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="replay one seed and print its event log")
    parser.add_argument("--seeds", type=_seeds, default=range(100), help="how many, or FIRST:END (default 100)")
    parser.add_argument("--load-ms", type=int, default=Options().load_ms, help="simulated time under load")
    given = parser.parse_args(arguments)
    options = Options(load_ms=given.load_ms)
    total: Counter[str] = Counter()
    seeds = given.seeds if given.seed is None else [given.seed]
    for seed in seeds:
        report = run_seed(seed, options)
        total += report.marks
        if given.seed is not None:
            print("\n".join(report.log))
    for name in MARKS:
        print(f"{total[name]:8}  {name}")
    absent = missing(total) if given.seed is None else []
    print(f"{len(seeds)} seeds, every promise held" + (f"; never exercised: {', '.join(absent)}" if absent else ""))
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
