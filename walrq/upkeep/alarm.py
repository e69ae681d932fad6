"""Wakes a task that proposes: at a moment, at an earlier one that a turn brings, once what it proposed is applied."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from walrq.daemon.clock import Clock
from walrq.daemon.driver import Driver
from walrq.queues.clocks import Reading
from walrq.replica import Replica


class Alarm:
    """One task's sleep. Never busy: after a proposal it waits until that is applied, or the office has ended."""

    def __init__(
        self, replica: Replica, driver: Driver, clock: Clock, deadline_ms: Callable[[Reading], int | None]
    ) -> None:
        """`deadline_ms`: monotonic ms at which there will be something to do, None = nothing known of."""
        self._replica = replica
        self._driver = driver
        self._clock = clock
        self._deadline_ms = deadline_ms
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
            deadline_ms = self._deadline_ms(self._clock.read())
            if deadline_ms is not None and deadline_ms < self._sleeping_until:
                self._sleeping_until = None
                self._wake.set()

    async def applied(self, propose: Callable[[], object]) -> None:
        """Propose, and return when that is applied or will not be."""
        self._wake = trio.Event()
        self._waiting_beyond = self._replica.last_index
        propose()
        self._driver.wake()
        await self._wake.wait()
        self._waiting_beyond = None

    async def sleep(self, deadline_ms: int | None) -> None:
        """Until that moment (None = for ever), or until a turn brings an earlier one."""
        self._wake = trio.Event()
        self._sleeping_until = math.inf if deadline_ms is None else deadline_ms
        with trio.move_on_at(math.inf if deadline_ms is None else self._clock.deadline(deadline_ms)):
            await self._wake.wait()
        self._sleeping_until = None
