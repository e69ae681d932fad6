"""A replica on a real directory, written to directly, backed up and brought back: no daemon in between."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.replica.story import CONFIG, columns
from walrq import api
from walrq.backup import archive, restoring
from walrq.backup.export import Export
from walrq.ids import make_receipt
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.replica import Replica
from walrq.storage.config import StorageConfig
from walrq.storage.disk import RealDisk
from walrq.storage.storage import Pin, Storage

SEGMENT_BYTES = 16 * 1024
WALL_MS = 1_700_000_000_000
FACTS = {"taken_ms": WALL_MS, "node_id": "n1", "cluster_id": "cluster", "term": 1, "vote": "n1", "messages": 0}


class Life:
    """One run of a replica over `data_dir`. Times are ms of its monotonic clock, which starts at 1,000."""

    def __init__(self, data_dir: Path, *, wall_ms: int = WALL_MS, segment_bytes: int = SEGMENT_BYTES) -> None:
        config = StorageConfig(
            data_dir=data_dir, fsync="never", segment_bytes=segment_bytes, reserve_segments=1, pool_segments_max=2,
            reserve_snapshot_bytes=4096,
        )  # fmt: skip
        self.now_ms = 1_000
        self.wall_ms = wall_ms
        self.storage = Storage.open(RealDisk(), config)
        self.replica = Replica.open(self.storage, CONFIG, self.reading())

    def reading(self) -> Reading:
        """Both clocks now."""
        return Reading(self.now_ms, self.wall_ms + self.now_ms)

    def do(self, command: c.Command, session: int | None = None, sequence: int = 0) -> Any:
        """One entry with one command; its result."""
        ticket = self.replica.propose(c.Tagged(command, session, sequence, sequence))
        batch = self.replica.take_batch(self.reading())
        assert batch is not None
        self.replica.persist(batch)
        return dict(self.replica.complete(batch).results)[ticket]

    def push(self, *payloads: bytes, queue: str = "q", delay_ms: int | None = None) -> int:
        """One batch; the first id."""
        return int(self.do(c.Push(queue, columns(*payloads), delay_ms=delay_ms)).first_id)

    def lease(self, limit: int = 10, visibility_ms: int = 10_000, queue: str = "q") -> list[effects.Grant]:
        """Poll."""
        return list(self.do(c.Lease((queue,), limit, visibility_ms, 0, None)).runs)

    def ack(self, run: effects.Grant) -> int:
        """Acknowledge a whole run; its code."""
        return int(self.do(c.Settle(run.queue, api.SettleKind.ACK, (c.Target(run.uid, run.lease),))).codes[0])

    def receipt(self, run: effects.Grant) -> bytes:
        """What the taker of a run holds in hand."""
        return make_receipt(self.replica.machine.secret, run.uid, run.lease)

    def payloads(self, run: effects.Grant) -> list[bytes]:
        """The bodies of a run, read from the log."""
        found = self.replica.load_body(run.index, run.ordinal)
        ends = [0, *(int.from_bytes(found.ends[at : at + 4], "little") for at in range(0, len(found.ends), 4))]
        return [found.payloads[ends[k] : ends[k + 1]] for k in range(run.first, run.first + run.count)]

    def drain(self, queue: str = "q") -> list[bytes]:
        """Take and acknowledge everything that is ready."""
        found: list[bytes] = []
        while runs := self.lease(1_000, queue=queue):
            for run in runs:
                found += self.payloads(run)
                assert 0 == self.ack(run)
        return found

    def snapshot(self) -> None:
        """Snapshot the state of now, if it is not in the last one, and reclaim."""
        self.storage.sync()
        job = self.replica.begin_snapshot()
        if job is not None:
            while job.step():
                job.write()
            job.write()
            job.finish()
            self.replica.snapshot_done(job)
        self.replica.reclaim()

    def export(self) -> tuple[Pin, Export]:
        """Begin a backup, as the daemon does."""
        pin = self.storage.pin()
        self.replica.leave_out_dead(pin)
        self.snapshot()
        pin.fix()
        return pin, Export(pin, self.storage.disk_uuid, FACTS)

    def backup(self) -> bytes:
        """A whole backup file."""
        pin, export = self.export()
        try:
            return written(export)
        finally:
            pin.release()

    def close(self) -> None:
        """Stop in good order."""
        self.replica.close()


def pieces(export: Export, number: int, size: int = 5_000) -> Iterator[bytes]:
    """A part in reads of `size`, which divides nothing."""
    for offset in range(0, export.parts[number].size, size):
        yield export.read(number, offset, size)


def written(export: Export) -> bytes:
    """The backup file of an export."""
    file = io.BytesIO()
    archive.write(file, export.facts, export.parts, lambda number: pieces(export, number))
    return file.getvalue()


def restored(backup: bytes, data_dir: Path, **changes: Any) -> Life:
    """The node that a backup file holds, in a new life."""
    restoring.restore(io.BytesIO(backup), data_dir)
    return Life(data_dir, **changes)
