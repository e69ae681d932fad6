"""The two clocks that a leader puts into every entry's stamp.

- The *lease clock* continues from the last stamp in the leader's own log by its monotonic time since it took office.
- The *wall clock* starts at max(last stamp, the wall time agreed at office), then runs at the leader's monotonic
  rate, slewed at most 10% toward the wall time it is told; it never stands still for long and never goes back.

Pure: readings are handed in. Source: the rules in docs/guarantees.md (clocks); the reason why leases must not follow
wall clocks is that a jump would end or prolong them all at once.
"""

from __future__ import annotations

from typing import Final

import attrs

from walrq.queues.commands import Stamp

# The wall clock gains or loses at most this share of the monotonic time, so delays stay within 10% while it slews.
SLEW_PERCENT: Final = 10


@attrs.frozen
class Reading:
    """What a node's clocks show: monotonic ms since some fixed moment of this process, and ms since 1970."""

    monotonic_ms: int
    wall_ms: int


class LeaderClock:
    """Stamps of one term of office. A single voter trusts its own wall clock at the start."""

    __slots__ = ("_carry", "_lease_base_ms", "_monotonic_ms", "_office_ms", "_wall_ms")

    def __init__(self, last: Stamp, office: Reading) -> None:
        """`last`: the newest stamp in the own log; `office`: the readings when leadership began, the wall time being
        the lower median of the quorum's."""
        self._lease_base_ms = last.lease_ms
        self._office_ms = office.monotonic_ms
        self._wall_ms = max(last.wall_ms, office.wall_ms)
        self._monotonic_ms = office.monotonic_ms
        # Slewing earned but not yet used, in hundredths of a millisecond: many short steps slew like one long one.
        self._carry = 0

    def stamp(self, now: Reading) -> Stamp:
        """The stamp of an entry taken now; moves the wall clock forward."""
        elapsed = now.monotonic_ms - self._monotonic_ms
        if elapsed > 0:
            self._wall_ms, self._carry = self._ahead(elapsed, now.wall_ms)
            self._monotonic_ms = now.monotonic_ms
        return Stamp(self._lease_base_ms + self._monotonic_ms - self._office_ms, self._wall_ms)

    def peek(self, now: Reading) -> Stamp:
        """What `stamp` would answer, moving nothing."""
        elapsed = now.monotonic_ms - self._monotonic_ms
        lease_ms = self._lease_base_ms + max(now.monotonic_ms, self._monotonic_ms) - self._office_ms
        return Stamp(lease_ms, self._ahead(elapsed, now.wall_ms)[0] if elapsed > 0 else self._wall_ms)

    def _ahead(self, elapsed: int, target: int) -> tuple[int, int]:
        """The wall clock after `elapsed` ms when the own clock shows `target`, and the carry."""
        straight = self._wall_ms + elapsed
        earned, carry = divmod(self._carry + elapsed * SLEW_PERCENT, 100)
        difference = target - straight
        if difference == 0:
            return straight, 0
        return straight + max(-earned, min(earned, difference)), carry

    def monotonic_of_lease(self, lease_ms: int) -> int:
        """The monotonic reading at which the lease clock will show `lease_ms`."""
        return self._office_ms + lease_ms - self._lease_base_ms

    def monotonic_of_wall(self, wall_ms: int) -> int:
        """The earliest monotonic reading at which the wall clock may show `wall_ms`, slewed forward all the way."""
        missing = max(0, wall_ms - self._wall_ms)
        return self._monotonic_ms + missing * 100 // (100 + SLEW_PERCENT)
