"""Keeps the log's tail short and the disk bounded: snapshots, then reclaim.

A snapshot is forced by log bytes or commands since the last one (`replica.snapshot_due`). Its pages are
encoded a few at a time between turns, so that nobody waits for a whole image; writing and reclaiming happen
in a thread. While the disk is full the reserve is refilled here as soon as space returns.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from walrq.daemon.driver import Driver
from walrq.replica import Replica
from walrq.storage.storage import Storage

log = logging.getLogger("walrq.compactor")

# How often a full disk is looked at again.
REPLENISH_S: Final = 1.0


class Compactor:
    """See the module."""

    def __init__(self, replica: Replica, storage: Storage, driver: Driver) -> None:
        self._replica = replica
        self._storage = storage
        self._wake = trio.Event()
        self._waiting = False
        driver.on_turn.append(self._on_turn)

    def _on_turn(self) -> None:
        if self._waiting and (self._replica.snapshot_due() or not self._storage.space.pushes_allowed):
            self._waiting = False
            self._wake.set()

    async def run(self) -> None:
        """Snapshot, reclaim and replenish when needed, for ever."""
        while True:
            if not self._replica.snapshot_due() and self._storage.space.pushes_allowed:
                self._wake = trio.Event()
                self._waiting = True
                await self._wake.wait()
            if self._replica.snapshot_due():
                await self.snapshot()
            if not self._storage.space.pushes_allowed:
                await trio.to_thread.run_sync(self._storage.replenish)
                if not self._storage.space.pushes_allowed:
                    log.warning("disk_full pushes are refused until there is space")
                    await trio.sleep(REPLENISH_S)
                else:
                    log.info("disk_has_space pushes are taken again")

    async def snapshot(self) -> None:
        """Write one snapshot and give back the segments it makes dispensable."""
        job = self._replica.begin_snapshot()
        if job is None:
            await trio.lowlevel.checkpoint()
            return
        while job.step():
            await trio.to_thread.run_sync(job.write)
        await trio.to_thread.run_sync(job.write)
        await trio.to_thread.run_sync(job.finish)
        self._replica.snapshot_done(job)
        await trio.to_thread.run_sync(self._replica.reclaim)
        log.info("snapshot_written applied_index=%d", self._replica.applied_index)
