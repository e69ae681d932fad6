"""Keeps the log's tail short and the disk bounded: snapshots, then reclaim.

A snapshot is forced by log bytes or commands since the last one (`replica.snapshot_due`); with peers by a point in the
log, at which all nodes write theirs. Its pages are
encoded a few at a time between turns, so that nobody waits for a whole image; writing and reclaiming happen
in a thread. While the disk is full the reserve is refilled here as soon as space returns.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from walrq.daemon.broker import Broker
from walrq.daemon.driver import Driver
from walrq.errors import DiskFull
from walrq.replica import Replica, SnapshotJob
from walrq.storage.storage import Storage

log = logging.getLogger("walrq.compactor")

# How often a full disk is looked at again.
REPLENISH_S: Final = 1.0


class Compactor:
    """See the module."""

    def __init__(self, replica: Replica, storage: Storage, driver: Driver, broker: Broker) -> None:
        self._replica = replica
        self._storage = storage
        self._driver = driver
        self._job: SnapshotJob | None = None
        self._wake = trio.Event()
        self._waiting = False
        self._broker = broker
        # Whoever snapshots or reclaims holds it: one at a time.
        self.lock = trio.Lock()
        self._look_at_space()
        driver.on_turn.append(self._on_turn)

    def _on_turn(self) -> None:
        has_space = self._look_at_space()
        if self._waiting and (not has_space or self._replica.snapshot_due()):
            self._waiting = False
            self._wake.set()

    async def run(self) -> None:
        """Snapshot, reclaim and replenish when needed, for ever."""
        while True:
            if self._look_at_space() and not self._replica.snapshot_due():
                self._wake = trio.Event()
                self._waiting = True
                await self._wake.wait()
            if self._replica.snapshot_due() and not await self.snapshot():
                await trio.sleep(REPLENISH_S)
            if not self._look_at_space():
                await self._replenish()

    def _look_at_space(self) -> bool:
        """Tell the broker whether pushes may go on."""
        self._broker.pushes_allowed = allowed = self._storage.space.pushes_allowed
        return allowed

    async def _replenish(self) -> None:
        """Fill the reserve of a full disk again, as soon as there is space."""
        async with self._driver.aside:
            replenished = await trio.to_thread.run_sync(self._storage.replenish)
        if replenished:
            self._look_at_space()
            log.info("disk_has_space pushes are taken again")
        else:
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
