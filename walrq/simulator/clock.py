"""One machine's two clocks in the simulator, as functions of true time."""

from __future__ import annotations

import random
from typing import Final

from walrq.queues.clocks import Reading

MS: Final = 1000
"""A millisecond of simulated true time, which is counted in microseconds."""
HOUR_MS: Final = 3_600_000
# What every wall clock shows, more or less, when a seed begins.
WALL_MS: Final = 1_700_000_000_000


class NodeClock:
    """A monotonic clock that drifts by less than a thousandth, and a wall clock that drifts, is off, and jumps."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._rate = 1 + draw.uniform(-0.0009, 0.0009)
        self._wall_rate = 1 + draw.uniform(-0.05, 0.05)
        self._base_us = 0
        self._wall_offset_ms = draw.randrange(-5_000, 5_000)
        # (true time, offset) of the last settings, the present one last.
        self._settings = [(0, self._wall_offset_ms)]
        # The last answer: much happens at one moment.
        self._read_at = -1
        self._reading = Reading(0, 0)
        self.boot()

    def boot(self) -> None:
        """Monotonic time of a process starts anywhere."""
        self._base_us = self._draw.randrange(0, 10**12)
        self._read_at = -1

    def jump(self, now_us: int) -> int:
        """The wall clock is set; by how many ms."""
        step_ms = self._draw.choice((-HOUR_MS, HOUR_MS, -4_000, 4_000, -100, 100))
        self.set(now_us, step_ms)
        return step_ms

    def set(self, now_us: int, step_ms: int) -> None:
        """The wall clock is set by so much."""
        self._wall_offset_ms += step_ms
        self._settings = [*self._settings[-8:], (now_us, self._wall_offset_ms)]
        self._read_at = -1

    def read(self, now_us: int) -> Reading:
        """What both clocks show."""
        if now_us != self._read_at:
            self._read_at = now_us
            self._reading = Reading(
                int(self._base_us + now_us * self._rate) // MS,
                WALL_MS + int(now_us * self._wall_rate) // MS + self._wall_offset_ms,
            )
        return self._reading

    def highest_wall_ms(self, since_us: int, now_us: int) -> int:
        """The most that the wall clock showed since then."""
        offsets = [offset_ms for at_us, offset_ms in self._settings if at_us >= since_us]
        before = [offset_ms for at_us, offset_ms in self._settings if at_us < since_us]
        return WALL_MS + int(now_us * self._wall_rate) // MS + max(offsets + before[-1:])

    def until_us(self, monotonic_ms: int, now_us: int) -> int:
        """True time from now until the monotonic clock shows that; at least 0, never too early."""
        left_us = (monotonic_ms * MS - self._base_us) / self._rate - now_us
        return max(0, int(left_us) + 2)
