"""Reads that see everything acknowledged before they were asked (inv: AppliedBeforeAnswered).

The leader notes its commit index and lets a majority confirm, by a round of heartbeats begun afterwards, that no
other has taken office. It waits with that until an entry of its own term is committed: before, its commit index may
be behind what an earlier leader acknowledged. A follower asks the leader and then answers from its own state.

Source: Raft thesis 6.4.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen
class ReadState:
    """What became of a read: when `index` is applied it may be answered. None: nobody can say; ask again."""

    ticket: int
    index: int | None


@attrs.define(eq=False)
class Waiting:
    """A read at the leader. `round` is None until the leader's first entry is committed."""

    node: str
    ticket: int
    life: int
    index: int = 0
    round: int | None = None


class LeaderReads:
    """Reads that wait for a round of heartbeats, in the order they came."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, node: str, ticket: int, life: int) -> None:
        """A read was asked for."""
        self._waiting.append(Waiting(node, ticket, life))

    def begin(self, commit_index: int, round_: int) -> bool:
        """An entry of the own term is committed: reads without an index get this one, and `round_` is to confirm them.

        Whether there were any: then that round must begin.
        """
        fresh = [read for read in self._waiting if read.round is None]
        for read in fresh:
            read.index, read.round = commit_index, round_
        return bool(fresh)

    def confirmed(self, round_: int) -> list[Waiting]:
        """A majority answered `round_`: the reads it confirms."""
        done = [read for read in self._waiting if read.round is not None and read.round <= round_]
        if done:
            self._waiting = [read for read in self._waiting if read.round is None or read.round > round_]
        return done

    def drain(self) -> list[Waiting]:
        """All of them: their leader is none any more."""
        waiting, self._waiting = self._waiting, []
        return waiting


class ForwardedReads:
    """A follower's reads that its leader was asked about; each for a bounded time."""

    def __init__(self) -> None:
        self._until: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, ticket: int, until_tick: int) -> None:
        """A question was sent."""
        self._until[ticket] = until_tick

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._until

    def answered(self, ticket: int) -> bool:
        """Whether that read still waited; it does no longer."""
        return self._until.pop(ticket, None) is not None

    def overdue(self, tick: int) -> Iterable[int]:
        """Tickets whose answer did not come in time; they no longer wait."""
        late = [ticket for ticket, until in self._until.items() if until <= tick]
        for ticket in late:
            del self._until[ticket]
        return late

    def drain(self) -> Iterable[int]:
        """All tickets: the leader changed."""
        tickets = list(self._until)
        self._until.clear()
        return tickets
