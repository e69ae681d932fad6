"""The only place where time enters the daemon.

Monotonic time is Trio's own clock, so that what is measured and what is slept on never disagree, and so that
a test that drives `MockClock` drives everything. Leases, delays and time-outs follow the monotonic clock; the
wall clock is only ever handed to the replica, which slews toward it (`queues/clocks.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import trio

from walrq.queues.clocks import Reading


def system_wall_ms() -> int:
    """Milliseconds since 1970 as this machine's wall clock shows them."""
    return time.time_ns() // 1_000_000


@attrs.frozen
class Clock:
    """Both clocks of this process. Only inside `trio.run`.

    Attributes:
        wall_ms: where wall time comes from; tests hand in their own.
    """

    wall_ms: Callable[[], int] = system_wall_ms

    def read(self) -> Reading:
        """What both clocks show now."""
        return Reading(int(trio.current_time() * 1000), self.wall_ms())

    def monotonic_ms(self) -> int:
        """The monotonic clock alone, ms since some fixed moment of this process."""
        return int(trio.current_time() * 1000)

    def monotonic_s(self) -> float:
        """The same in seconds, as fine as the machine has it."""
        return trio.current_time()

    def deadline(self, monotonic_ms: int) -> float:
        """The Trio deadline at which `monotonic_ms` has been reached, never earlier.

        Half a millisecond is added because readings are cut to whole milliseconds: a sleeper that woke a
        rounding error too early would find nothing due and spin.
        """
        return (monotonic_ms + 0.5) / 1000
