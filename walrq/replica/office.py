"""Time: the clocks of a term of office, what others tell about theirs, and the stamps in the log.

The wall clock that stamps follow is the lower median of those of all voters, as they told it with their votes and with
their answers to heartbeats, each going on at the leader's monotonic rate since then. So no jump of one node's clock
moves it, the leader's own included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from walrq.queues.clocks import LeaderClock, Reading
from walrq.queues.commands import Stamp
from walrq.replica.batch import Pending


def lower_median(values: Iterable[int]) -> int:
    """The middle one, the lower of two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


class Walls:
    """What other nodes' wall clocks show, as far as they said."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def tell(self, node: str, wall_ms: int, reading: Reading) -> None:
        """A node's clock showed `wall_ms` a moment ago."""
        self._told[node] = wall_ms, reading.monotonic_ms

    def keep(self, nodes: Iterable[str]) -> None:
        """Forget all others."""
        kept = frozenset(nodes)
        self._told = {node: told for node, told in self._told.items() if node in kept}

    def clear(self) -> None:
        """Forget all."""
        self._told.clear()

    def agreed(self, reading: Reading) -> Reading:
        """This reading with the wall clock that the nodes agree on."""
        now = reading.monotonic_ms
        walls = [wall_ms + now - at for wall_ms, at in self._told.values()]
        return Reading(now, lower_median([*walls, reading.wall_ms]))


class Times:
    """What a node knows about time: while it follows, in case it will lead.

    Attributes:
        stamps: (index, stamp) of entries in the own log that are not applied, ascending; own ones only after a restart.
        current: the clock of this office, begun with the last reading before it: at a failover the lease clock stood
            in between, which makes leases longer.
    """

    def __init__(self, stamps: list[tuple[int, Stamp]]) -> None:
        self.stamps = stamps
        self._walls = Walls()
        self.current: LeaderClock | None = None
        # The lease clock of the last leader that was heard, and its term.
        self._told = (0, 0)
        # The term of the last entry before the first one of this office.
        self._term_before = 0

    # --- what others say ------------------------------------------------------------------------------------
    def tell_wall(self, node: str, wall_ms: int, reading: Reading) -> None:
        """A voter's wall clock."""
        self._walls.tell(node, wall_ms, reading)

    def tell_lease(self, term: int, lease_ms: int) -> None:
        """A leader's lease clock."""
        self._told = term, lease_ms

    def keep(self, voters: Iterable[str]) -> None:
        """These are the voters now."""
        self._walls.keep(voters)

    # --- the log --------------------------------------------------------------------------------------------
    def cut(self, first: int) -> None:
        """Entries from there on are gone."""
        while self.stamps and self.stamps[-1][0] >= first:
            self.stamps.pop()

    def applied(self, index: int) -> None:
        """Entries up to there are applied."""
        if self.stamps and self.stamps[0][0] <= index:
            self.stamps = [pair for pair in self.stamps if pair[0] > index]

    # --- offices --------------------------------------------------------------------------------------------
    def office(self, term_before: int) -> None:
        """An office began or ended. `term_before`: of the last entry before the first one of this office."""
        self.current = None
        self._walls.clear()
        self._term_before = term_before

    def clock(
        self, reading: Reading, known: Stamp, pending: Mapping[int, Pending], walls: Iterable[int]
    ) -> LeaderClock:
        """The clock of this office.

        inv: NotEarly. It goes on from the newest stamp in the own log, applied or not.

        Args:
            known: the newest stamp that is applied.
            pending: own entries that are not.
            walls: wall clocks that came with the votes.
        """
        clock = self.current
        if clock is None:
            last = max(pending, default=0)
            stamp = pending[last].stamp if last else known
            if self.stamps and self.stamps[-1][0] > last:
                stamp = self.stamps[-1][1]
            term, lease_ms = self._told
            if term >= self._term_before:
                # Nothing was decided in a later term than that leader's, so its clock is the one all leases run by; it
                # stood still since then, which makes them longer.
                stamp = Stamp(max(stamp.lease_ms, lease_ms), stamp.wall_ms)
            office = Reading(reading.monotonic_ms, lower_median([*walls, reading.wall_ms]))
            self.current = clock = LeaderClock(stamp, office)
        return clock

    def agreed(self, reading: Reading) -> Reading:
        """This reading with the wall clock that the voters agree on."""
        return self._walls.agreed(reading) if self._walls else reading
