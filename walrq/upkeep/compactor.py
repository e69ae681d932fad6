"""Keeps the log's tail short and the disk bounded: snapshots, then reclaim, then what is mostly dead is written anew.

A snapshot is forced by log bytes or commands since the last one (`replica.snapshot_due`); with peers by a point in the
log, at which all nodes write theirs. Its pages are encoded a few at a time between turns, so that nobody waits for a
whole image; writing and reclaiming happen in a thread. While the disk is full the reserve is refilled here as soon as
space returns.

What follows a snapshot (`compaction/`) is done in slices of some milliseconds, and gives way: a slice waits until the
write of a batch is over, and after one beside which something was written comes a pause as long as it took. Only when
the disk comes near its bound does it go on regardless.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import trio

from walrq.compaction.bound import Usage
from walrq.compaction.compaction import Compaction
from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.driver import Driver
from walrq.errors import DiskFull
from walrq.replica import Replica, SnapshotJob
from walrq.storage.storage import Storage

log = logging.getLogger("walrq.compactor")

# How often a full disk is looked at again.
REPLENISH_S: Final = 1.0
# How long a slice waits for the write that is under way, and how long one rests at most.
GIVE_WAY_S: Final = 0.02
REST_S_MAX: Final = 0.05
# From this part of the bound on it does not rest any more.
URGENT_AT: Final = 0.9
# Files whose sizes are read while somebody waits for the answer: some tenths of a millisecond.
LOOK_AT_ONCE_MAX: Final = 200
# Slices between two looks at the disk.
LOOK_EVERY: Final = 64


class Compactor:
    """See the module."""

    def __init__(self, replica: Replica, storage: Storage, driver: Driver, broker: Broker, clock: Clock) -> None:
        self._replica = replica
        self._storage = storage
        self._driver = driver
        self._clock = clock
        self._job: SnapshotJob | None = None
        self._wake = trio.Event()
        self._waiting = False
        self._broker = broker
        self.compaction = Compaction(storage, lambda: replica.disposable_index)
        self._usage: Usage | None = None
        # Whoever snapshots or reclaims holds it: one at a time.
        self.lock = trio.Lock()
        self._told_full = False
        self._look_at_space()
        driver.on_turn.append(self._on_turn)

    def _on_turn(self) -> None:
        has_space = self._look_at_space()
        if self._waiting and (not has_space or self._replica.snapshot_due()):
            self._waiting = False
            self._wake.set()

    async def run(self) -> None:
        """Snapshot, reclaim, write anew and replenish when needed, for ever."""
        try:
            while True:
                if self._look_at_space() and not (self._replica.snapshot_due() or self.compaction.is_due):
                    self._wake = trio.Event()
                    self._waiting = True
                    await self._wake.wait()
                if self._replica.snapshot_due() and not await self.snapshot():
                    await trio.sleep(REPLENISH_S)
                await self._compact()
                if not self._look_at_space():
                    await self._replenish()
        finally:
            # What was being written is left nowhere, and the pages that were read are let go.
            self.compaction.abandon()

    async def _compact(self) -> None:
        """A pass over the log, until a snapshot is due or the disk is full."""
        slices = 0
        while self.compaction.is_due and not self._replica.snapshot_due() and self._look_at_space():
            if slices % LOOK_EVERY == 0:
                await self.look_at_disk()
            slices += 1
            is_urgent = self._usage is not None and self._usage.disk_bytes > URGENT_AT * self._usage.bound_bytes
            if not is_urgent and self._driver.is_writing:
                with trio.move_on_after(GIVE_WAY_S):
                    await self._driver.wait_for_turn()
            turns, began_ms = self._driver.turns, self._clock.monotonic_ms()
            if self.compaction.is_swapping:
                # A peer's snapshot must not be put in place meanwhile.
                async with self._driver.aside:
                    await trio.to_thread.run_sync(self.compaction.step)
            else:
                await trio.to_thread.run_sync(self.compaction.step)
            if not is_urgent and self._driver.turns != turns:
                await trio.sleep(min(REST_S_MAX, (self._clock.monotonic_ms() - began_ms) / 1000))
        if slices:
            await self.look_at_disk()

    async def look_at_disk(self) -> Usage:
        """What is used, and the bound; kept for `stats`."""
        self._usage = usage = await trio.to_thread.run_sync(self.compaction.usage)
        return usage

    def stats(self) -> dict[str, Any]:
        """Plain numbers: what was written anew, and the disk; with very many files as it was looked at last."""
        usage = self._usage
        if usage is None or len(self._storage.index_ranges()) <= LOOK_AT_ONCE_MAX:
            self._usage = usage = self.compaction.usage()
        return {
            **self.compaction.stats(),
            "wal_live_ratio": round(usage.live_ratio, 3),
            "disk_live_bytes": usage.live_bytes,
            "disk_used_bytes": usage.disk_bytes,
            "disk_bound_bytes": usage.bound_bytes,
        }

    def _look_at_space(self) -> bool:
        """Tell the broker whether pushes may go on."""
        self._broker.pushes_allowed = self._replica.pushes_allowed
        return self._storage.space.pushes_allowed

    async def _replenish(self) -> None:
        """Fill the reserve of a full disk again, as soon as there is space."""
        async with self._driver.aside:
            replenished = await trio.to_thread.run_sync(self._storage.replenish)
        if replenished:
            self._look_at_space()
            self._told_full = False
            log.info("disk_has_space pushes are taken again")
        else:
            if not self._told_full:
                self._told_full = True
                log.warning("disk_full pushes are refused until there is space")
            await trio.sleep(REPLENISH_S)

    async def snapshot(self) -> bool:
        """Write one snapshot and give back the segments it makes dispensable. False when there was no room."""
        async with self.lock:
            return await self.snapshot_locked()

    async def reclaim(self) -> None:
        """Give back the segments that the last snapshot made dispensable."""
        async with self.lock:
            await self._reclaim()

    async def snapshot_locked(self) -> bool:
        """`snapshot` for whoever holds `lock`.

        A job that was cancelled on its way is taken up again: each of its steps is whole when a cancellation
        is noticed.
        """
        if self._job is None:
            await trio.lowlevel.checkpoint()
            self._job = self._replica.begin_snapshot()
        job = self._job
        if job is None:
            return True
        try:
            while job.step():
                await trio.to_thread.run_sync(job.write)
            await trio.to_thread.run_sync(job.write)
            if self._storage.durable_index < job.index:
                # Under a weak policy what is applied may be ahead of the disk; a snapshot may not.
                await self._driver.persister.call(self._storage.sync)
            await trio.to_thread.run_sync(job.finish)
        except DiskFull as error:
            log.warning("snapshot_given_up %s", error.text)
            await trio.to_thread.run_sync(job.abort)
            self._replica.snapshot_failed(job)
            self._job = None
            return False
        self._replica.snapshot_done(job)
        self._job = None
        log.info("snapshot_written index=%d", job.index)
        await self._reclaim()
        return True

    async def _reclaim(self) -> None:
        # A peer's snapshot must not be put in place meanwhile.
        async with self._driver.aside:
            freed = await trio.to_thread.run_sync(self._replica.reclaim)
        if freed:
            log.info("segments_reclaimed count=%d", freed)
