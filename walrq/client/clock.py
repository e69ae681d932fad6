"""What a client and a worker know of time: the process's monotonic clock, and a way to move it in tests.

Only leases are counted on this clock. How patient a call is stays a matter of real time: a test that moves the
clock by an hour must not make its own calls overdue.
"""

from __future__ import annotations

import threading
import time
from typing import Final


class Clock:
    """Monotonic seconds, and waiting for a moment of them.

    Attributes:
        offset: seconds that this clock is ahead of `time.monotonic`; 0 unless a test moved it. Never goes back.
    """

    offset: float = 0.0

    def monotonic(self) -> float:
        """Seconds; leases end at moments of this clock."""
        return time.monotonic() + self.offset

    def wait(self, condition: threading.Condition, until: float) -> None:
        """Wait, with `condition` held, until it is notified or this clock reads `until`.

        May return early, as `Condition.wait` may: the caller looks again. One that comes back and waits again says by
        that that it has done what was due: a movable clock goes on only then. One that will not wait again says so with
        `leave`. `until` may be infinity.
        """
        condition.wait(min(max(0.0, until - self.monotonic()), threading.TIMEOUT_MAX))

    def leave(self, condition: threading.Condition) -> None:
        """Nobody will wait with `condition` any more: a movable clock does not expect its sleeper back.

        Fine without a wait before it, and not needed when the thread ends.
        """


SYSTEM: Final = Clock()
