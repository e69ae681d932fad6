"""Brings back what waits beyond the horizon before it is due, and clears up there; while this node leads.

One piece of work after another: read in a thread, proposed, and the next once it is applied. Between them it sleeps
until the replica says that there will be more.
"""

from __future__ import annotations

import functools
import logging
from typing import Final

import trio

from walrq.daemon.clock import Clock
from walrq.daemon.driver import Driver
from walrq.queues.clocks import Reading
from walrq.queues.commands import LoseFar, Tagged
from walrq.replica import Replica
from walrq.tiers.timers import PageLost
from walrq.upkeep.alarm import Alarm

log = logging.getLogger("walrq.fetcher")

# How often a page that cannot be read is tried again.
LOST_S: Final = 0.5


class Fetcher:
    """See the module."""

    def __init__(self, replica: Replica, driver: Driver, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._alarm = Alarm(replica, driver, clock, replica.far_deadline)
        self._lost = ""

    async def run(self) -> None:
        """Fetch in time, for ever."""
        replica = self._replica
        while True:
            reading = self._clock.read()
            work = replica.far_work(reading)
            if work is None:
                await self._alarm.sleep(replica.far_deadline(reading))
                continue
            try:
                await trio.to_thread.run_sync(work.run)
            except PageLost as error:
                self._tell(error)
                await trio.sleep(LOST_S)
                continue
            self._lost = ""
            command = work.command()
            if command is None or not replica.accepts:
                continue
            if isinstance(command, LoseFar):
                for uid, messages, _ in command.queues:
                    queue = replica.machine.by_uid.get(uid)
                    name = queue.name if queue is not None else uid
                    log.critical("finding delayed_lost: %d delayed messages of queue %r", messages, name)
            await self._alarm.applied(functools.partial(replica.propose, Tagged(command)))

    def next_ms(self, reading: Reading) -> int | None:
        """Monotonic ms at which there is something to fetch; None when there is not, or it cannot be read."""
        return None if self._lost else self._replica.far_deadline(reading)

    def _tell(self, error: PageLost) -> None:
        text = self._replica.far_lost(error.number, str(error))
        if text != self._lost:
            self._lost = text
            log.critical("finding %s", text)
