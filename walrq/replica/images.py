"""Snapshots: the job that writes one, when one is due, and the points at which all nodes of a group image their state.

A point is a log entry of kind SNAPSHOT. Every node that applies it fixes its image at that very index. The entry's body
is CBOR, `[format, index, root]`: the hash of the image at an earlier point, as its leader had it, for the others to
compare with theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import attrs
import cbor2

from walrq.errors import CorruptRecord
from walrq.limits import FAR_UNSAVED_BYTES
from walrq.queues.image import NOT_RESIDENT, Imager
from walrq.queues.machine import Machine
from walrq.replica.config import ReplicaConfig
from walrq.storage.snapshot import SnapshotWriter
from walrq.storage.storage import Storage

FORMAT = 1
ROOTS_KEPT = 4


def root_of(hashes: Mapping[bytes, bytes]) -> bytes:
    """One hash of all pages of an image."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(hashes):
        digest.update(len(key).to_bytes(2, "big") + key + hashes[key])
    return digest.digest()


def encode_point(index: int, root: bytes) -> bytes:
    """The body of a SNAPSHOT entry; index 0: no earlier point is known."""
    return cbor2.dumps([FORMAT, index, root])


def decode_point(body: bytes) -> tuple[int, bytes]:
    """(index, root) of the earlier point. CorruptRecord for bytes of another format."""
    try:
        parts = cbor2.loads(body)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise CorruptRecord(f"a snapshot point cannot be read: {error}") from error
    match parts:
        case [1, int(index), bytes(root)]:
            return index, root
    raise CorruptRecord(f"a snapshot point is not of format {FORMAT}, which is what this version knows")


@attrs.define(eq=False)
class Roots:
    """Roots of this node's own images, and of the leaders', of the last few points."""

    own: dict[int, bytes] = attrs.field(factory=dict)
    told: dict[int, bytes] = attrs.field(factory=dict)

    def newest(self) -> tuple[int, bytes]:
        """(index, root) of the newest image of this node; index 0: none."""
        index = max(self.own, default=0)
        return index, self.own.get(index, b"")

    def add(self, roots: dict[int, bytes], index: int, root: bytes) -> bool:
        """Note a root; False if the other side of the comparison is known and differs. inv: StateMachineSafety"""
        roots[index] = root
        while len(roots) > ROOTS_KEPT:
            del roots[min(roots)]
        other = self.told if roots is self.own else self.own
        return other.get(index, root) == root


class SnapshotJob:
    """One snapshot on its way: encoded between turns, written in a thread.

    `while job.step(): write()` then `write(); finish()`. Invariant: `step` and `write` never run at the same time.
    """

    # Of large ones a part: some milliseconds at most.
    PAGES_PER_STEP = 4

    def __init__(
        self,
        imager: Imager,
        writer: SnapshotWriter,
        index: int,
        messages: int,
        hashes: Callable[[], Mapping[bytes, bytes]] | None = None,
    ) -> None:
        """`hashes`: of all pages of the newest snapshot, if its root is wanted."""
        self._imager = imager
        self._writer = writer
        self._hashes = hashes
        self.index = index
        self.messages = messages
        self.root = b""
        # A page of an earlier snapshot, which this one shares, cannot be read.
        self.is_damaged = False
        # It shares none.
        self.is_afresh = False
        self._taken: list[tuple[bytes, bytes | None]] = []

    def step(self) -> bool:
        """Encode some pages; False when all are encoded. Pure."""
        more = self._imager.step(self.PAGES_PER_STEP)
        self._taken.extend(self._imager.take())
        return more

    def write(self) -> None:
        """Write what was encoded. Blocking."""
        taken, self._taken = self._taken, []
        for key, page in taken:
            if page is None:
                self._writer.drop(key)
            else:
                self._writer.put(key, page)

    def finish(self) -> None:
        """Make the snapshot durable; the log must be durable up to its index. Blocking.

        Raises:
            DiskFull: no room; give it up with `abort` and try later.
        """
        self._writer.finish()
        self.is_damaged = self._writer.is_damaged
        if self._hashes is not None:
            self.root = root_of(self._hashes())

    def abort(self) -> None:
        """Give the snapshot up; the one before stands. Blocking. Then call `Replica.snapshot_failed`."""
        self._writer.abort()


class Images:
    """The snapshots of one node, in memory's terms.

    Attributes:
        index, messages: of the newest one: the entry it stands at, and the messages of every state in it.
        log_bytes, commands: since the last one was fixed.
        job: the one that is being written.
        point: (index, messages) at which the image is fixed and not yet written.
        count: how many were finished in this life.
    """

    def __init__(
        self, storage: Storage, config: ReplicaConfig, machine: Machine, known: Iterable[bytes], index: int
    ) -> None:
        """`known`: keys of the pages of the snapshot at `index`."""
        self._storage = storage
        self._config = config
        self._machine = machine
        self._imager = Imager(machine, known)
        self.index = index
        self.messages = machine.tally.messages
        self.log_bytes = 0
        self.commands = 0
        # Bytes of messages in memory when the last one was fixed; of its pages: a large one is worth more log.
        self._bytes = machine.tally.bytes
        self._stored_bytes = self._page_bytes()
        self.job: SnapshotJob | None = None
        self.point: tuple[int, int] | None = None
        self.count = 0
        self.roots = Roots()
        # The next one writes every page, for one that is stored cannot be read.
        self._renewed = False
        self._afresh = False

    @property
    def is_long(self) -> bool:
        """Whether the log behind the last image is long enough for another."""
        config = self._config
        if self._renewed:
            return True
        if self._machine.far.fresh_bytes >= FAR_UNSAVED_BYTES:
            # Pages that wait for a snapshot are in memory.
            return True
        if (
            self.log_bytes >= max(config.snapshot_log_bytes, self._stored_bytes)
            or self.commands >= config.snapshot_commands
        ):
            return True
        # What has died since the last one is only given back after the next.
        return self._bytes - self._machine.tally.bytes >= max(config.snapshot_log_bytes, self._bytes // 2)

    def _page_bytes(self) -> int:
        """Of the newest one, without what is never written twice."""
        snapshot = self._storage.snapshot
        return snapshot.page_bytes(without=NOT_RESIDENT) if snapshot is not None else 0

    @property
    def is_idle(self) -> bool:
        """Nothing is being written, nor waits to be."""
        return self.job is None and self.point is None

    def at_point(self, index: int, body: bytes) -> int:
        """A point was applied: fix the image, unless an earlier one is not finished.

        Returns the index of the earlier point at which this node's state was another than its leader's; 0: of none.
        """
        earlier, root = decode_point(body)
        if self.is_idle:
            self.freeze(index)
        return earlier if earlier and not self.roots.add(self.roots.told, earlier, root) else 0

    def freeze(self, index: int) -> None:
        """Fix the image of now, which is that of `index`."""
        if self._renewed:
            self._imager.start_over()
            self._renewed, self._afresh = False, True
        self._imager.freeze()
        self._bytes = self._machine.tally.bytes
        self.point = index, self._machine.tally.messages
        self.log_bytes = self.commands = 0

    def begin(self, term: int, meta: bytes, *, compares: bool) -> SnapshotJob:
        """Write the image that is fixed. `compares`: its root is wanted."""
        assert self.job is None and self.point is not None
        (index, messages), self.point = self.point, None
        writer = self._storage.begin_snapshot(index, term, meta, afresh=self._afresh, keep=NOT_RESIDENT)
        self.job = SnapshotJob(self._imager, writer, index, messages, self._hashes if compares else None)
        self.job.is_afresh, self._afresh = self._afresh, False
        return self.job

    def _hashes(self) -> Mapping[bytes, bytes]:
        snapshot = self._storage.snapshot
        assert snapshot is not None
        return snapshot.hashes

    def done(self, job: SnapshotJob) -> bool:
        """A job was finished. False if this node's state was another than its leader's there."""
        assert job is self.job
        self.job = None
        self.index = job.index
        self.messages = job.messages
        self.count += 1
        self._stored_bytes = self._page_bytes()
        self._imager.kept()
        if job.is_damaged:
            self.renew()
        return not job.root or self.roots.add(self.roots.own, job.index, job.root)

    def failed(self, job: SnapshotJob) -> None:
        """A job was given up: the next one writes every page."""
        assert job is self.job
        self.job = None
        self._imager.start_over()
        self._renewed = self._renewed or job.is_afresh

    def renew(self) -> None:
        """A page of the newest one cannot be read any more: the next is due at once, and keeps none of its pages."""
        self._renewed = True

    def replace(self, machine: Machine, hashes: Mapping[bytes, bytes], index: int) -> None:
        """The state came from a peer. No job may be under way."""
        assert self.job is None
        self._machine = machine
        self._imager = Imager(machine, hashes)
        self.index = index
        self.messages = machine.tally.messages
        self.log_bytes = self.commands = 0
        self.point = None
        self._bytes = machine.tally.bytes
        self._stored_bytes = self._page_bytes()
        # The new pages were just written, and the new imager knows of no change.
        self._renewed = self._afresh = False
        self.roots.add(self.roots.own, index, root_of(hashes))
