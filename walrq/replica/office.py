"""The clocks of a term of office: what a leader stamps its entries with.

The wall clock that stamps follow is the lower median of those of all voters, as they told it with their votes and with
their answers to heartbeats, each going on at the leader's monotonic rate since then. So no jump of one node's clock
moves it, the leader's own included.
"""

from __future__ import annotations

from collections.abc import Iterable

from walrq.queues.clocks import LeaderClock, Reading
from walrq.queues.commands import Stamp


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


def clock_of_office(last: Stamp, walls: Iterable[int], reading: Reading) -> LeaderClock:
    """The clock of an office that begins now.

    inv: NotEarly. `last` is the newest stamp in the own log, applied or not; `walls` came with the votes.
    """
    return LeaderClock(last, Reading(reading.monotonic_ms, lower_median([*walls, reading.wall_ms])))
