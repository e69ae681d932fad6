"""Raft's sense of time: ticks while there are other voters to hear from or to heartbeat.

A single voter elects itself when the replica opens and has nobody to miss, so the task sleeps; nothing on an
idle node runs periodically.
"""

from __future__ import annotations

from typing import Final

import trio

from walrq.daemon.clock import Clock
from walrq.daemon.driver import Driver
from walrq.replica import Replica

TICK_MS: Final = 50


async def run(replica: Replica, driver: Driver, clock: Clock, *, voters: int) -> None:
    """Tick for ever; once, when this node is the only voter."""
    replica.tick(clock.read())
    driver.wake()
    if voters <= 1:
        await trio.sleep_forever()
    while True:
        await trio.sleep(TICK_MS / 1000)
        replica.tick(clock.read())
        driver.wake()
