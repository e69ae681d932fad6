"""Proposes an empty entry when something falls due and nobody else writes.

Every entry's stamp expires what is due, so under load there is nothing to do here. On an idle node the reaper
sleeps until the replica's next deadline; a turn that brings an earlier one wakes it. Never busy: after a
proposal it waits for the entry to be applied, or for the office to end, before it looks again. A node that does not
lead has no deadlines.

It also lets the sessions of living connections start their idle time anew, every ten minutes.
"""

from __future__ import annotations

from typing import Final

import trio

from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.driver import Driver
from walrq.limits import SESSION_IDLE_MS
from walrq.replica import Replica
from walrq.upkeep.alarm import Alarm

KEEP_SESSIONS_MS: Final = 10 * 60 * 1000
# Several chances before an idle session ends.
assert KEEP_SESSIONS_MS * 4 < SESSION_IDLE_MS


class Reaper:
    """See the module."""

    def __init__(self, replica: Replica, driver: Driver, clock: Clock) -> None:
        self._replica = replica
        self._clock = clock
        self._alarm = Alarm(replica, driver, clock, replica.next_deadline)

    async def run(self) -> None:
        """Expire in time, for ever."""
        replica = self._replica
        while True:
            reading = self._clock.read()
            deadline_ms = replica.next_deadline(reading)
            if not replica.accepts:
                # It is handing over, or has just begun to lead: a turn will tell.
                deadline_ms = None
            if deadline_ms is not None and deadline_ms <= reading.monotonic_ms:
                await self._alarm.applied(replica.propose_expiry)
            else:
                await self._alarm.sleep(deadline_ms)


async def keep_sessions(broker: Broker) -> None:
    """Tell the log, now and then, which sessions have a living connection."""
    while True:
        await trio.sleep(KEEP_SESSIONS_MS / 1000)
        broker.keep_sessions()
