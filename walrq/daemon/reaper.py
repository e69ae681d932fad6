"""Proposes an empty entry when something falls due and nobody else writes.

Every entry's stamp expires what is due, so under load there is nothing to do here. On an idle node the reaper
sleeps until the replica's next deadline; a turn that brings an earlier one wakes it. Never busy: after a
proposal it waits for the entry to be applied, or for the office to end, before it looks again. A node that does not
lead has no deadlines.

It also lets the sessions of living connections start their idle time anew, every ten minutes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import math
import resource
import sys
from collections.abc import Callable
from typing import Final

import trio

from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.driver import Driver
from walrq.limits import SESSION_IDLE_MS
from walrq.queues.clocks import Reading
from walrq.queues.commands import LoseFar, Tagged
from walrq.replica import Replica
from walrq.tiers.timers import PageLost

log = logging.getLogger("walrq.reaper")

# How often a page that cannot be read is tried again.
LOST_S: Final = 0.5
# How often memory is looked at: a fast client adds some ten megabytes in between.
MEMORY_S: Final = 0.1
MEMORY_FULL_S: Final = 0.5
KEEP_SESSIONS_MS: Final = 10 * 60 * 1000
# Several chances before an idle session ends.
assert KEEP_SESSIONS_MS * 4 < SESSION_IDLE_MS


class Reaper:
    """See the module."""

    def __init__(self, replica: Replica, driver: Driver, clock: Clock) -> None:
        self._replica = replica
        self._driver = driver
        self._clock = clock
        self._wake = trio.Event()
        # When the task will look again by itself (monotonic ms); None = it is awake or waits for a turn.
        self._sleeping_until: float | None = None
        # The end of the log when an entry was proposed: it is applied once something behind that is.
        self._waiting_beyond: int | None = None
        driver.on_turn.append(self._on_turn)

    def _on_turn(self) -> None:
        if self._waiting_beyond is not None:
            if self._replica.applied_index > self._waiting_beyond or not self._replica.accepts:
                self._wake.set()
        elif self._sleeping_until is not None:
            deadline_ms = self._replica.next_deadline(self._clock.read())
            if deadline_ms is not None and deadline_ms < self._sleeping_until:
                self._sleeping_until = None
                self._wake.set()

    async def run(self) -> None:
        """Expire in time, for ever."""
        while True:
            reading = self._clock.read()
            deadline_ms = self._replica.next_deadline(reading)
            self._wake = trio.Event()
            if deadline_ms is not None and deadline_ms <= reading.monotonic_ms and self._replica.accepts:
                self._waiting_beyond = self._replica.last_index
                self._replica.propose_expiry()
                self._driver.wake()
                await self._wake.wait()
                self._waiting_beyond = None
                continue
            if deadline_ms is not None and not self._replica.accepts:
                # It is handing over, or has just begun to lead: a turn will tell.
                deadline_ms = None
            self._sleeping_until = math.inf if deadline_ms is None else deadline_ms
            with trio.move_on_at(math.inf if deadline_ms is None else self._clock.deadline(deadline_ms)):
                await self._wake.wait()
            self._sleeping_until = None


class Fetcher:
    """Brings back what waits beyond the horizon before it is due, and clears up there; while this node leads.

    One piece of work after another: read in a thread, proposed, and the next once it is applied. Between them it sleeps
    until the replica says that there will be more.
    """

    def __init__(self, replica: Replica, driver: Driver, clock: Clock) -> None:
        self._replica = replica
        self._driver = driver
        self._clock = clock
        self._wake = trio.Event()
        # As for the reaper.
        self._sleeping_until: float | None = None
        self._waiting_beyond: int | None = None
        self._lost = ""
        driver.on_turn.append(self._on_turn)

    def _on_turn(self) -> None:
        if self._waiting_beyond is not None:
            if self._replica.applied_index > self._waiting_beyond or not self._replica.accepts:
                self._wake.set()
        elif self._sleeping_until is not None:
            deadline_ms = self._replica.far_deadline(self._clock.read())
            if deadline_ms is not None and deadline_ms < self._sleeping_until:
                self._sleeping_until = None
                self._wake.set()

    async def run(self) -> None:
        """Fetch in time, for ever."""
        while True:
            reading = self._clock.read()
            work = self._replica.far_work(reading)
            self._wake = trio.Event()
            if work is not None:
                try:
                    await trio.to_thread.run_sync(work.run)
                except PageLost as error:
                    self._tell(error)
                    await trio.sleep(LOST_S)
                    continue
                self._lost = ""
                command = work.command()
                if command is not None and self._replica.accepts:
                    if isinstance(command, LoseFar):
                        for uid, messages, _ in command.queues:
                            queue = self._replica.machine.by_uid.get(uid)
                            name = queue.name if queue is not None else uid
                            log.critical("finding delayed_lost: %d delayed messages of queue %r", messages, name)
                    self._waiting_beyond = self._replica.last_index
                    self._replica.propose(Tagged(command))
                    self._driver.wake()
                    await self._wake.wait()
                    self._waiting_beyond = None
                continue
            deadline_ms = self._replica.far_deadline(reading)
            self._sleeping_until = math.inf if deadline_ms is None else deadline_ms
            with trio.move_on_at(math.inf if deadline_ms is None else self._clock.deadline(deadline_ms)):
                await self._wake.wait()
            self._sleeping_until = None

    def next_ms(self, reading: Reading) -> int | None:
        """Monotonic ms at which there is something to fetch; None when there is not, or it cannot be read."""
        return None if self._lost else self._replica.far_deadline(reading)

    def _tell(self, error: PageLost) -> None:
        text = self._replica.far_lost(error.number, str(error))
        if text != self._lost:
            self._lost = text
            log.critical("finding %s", text)


def resident_bytes() -> int:
    """Bytes of memory that this process has from the system now; the most it ever had where that is not told."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def give_memory_back() -> None:
    """What is free within the process goes back to the system, where its library can do that."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def watch_memory(broker: Broker, most: int, measure: Callable[[], int] = resident_bytes) -> None:
    """Refuse pushes while this process has more than `most` bytes of memory: all else goes on, and makes room."""
    while True:
        used = measure()
        if used > most:
            await trio.to_thread.run_sync(give_memory_back)
            used = measure()
        text = ""
        if used > most:
            text = (
                f"max_memory: this node uses {used >> 20} MiB, allowed are {most >> 20} MiB: pushes wait until there is"
                " less, everything else goes on"
            )
        if bool(text) != bool(broker.memory_full):
            if text:
                log.warning("memory_full %s", text)
            else:
                log.info("memory_has_room pushes are taken again")
        broker.memory_full = text
        await trio.sleep(MEMORY_FULL_S if text else MEMORY_S)


async def keep_sessions(broker: Broker) -> None:
    """Tell the log, now and then, which sessions have a living connection."""
    while True:
        await trio.sleep(KEEP_SESSIONS_MS / 1000)
        broker.keep_sessions()
