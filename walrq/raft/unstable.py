"""What is not on the disk yet: the part of hard state and log still to be written, and the messages that wait for it.

Everything that changes belongs to the next ready; readies are numbered and persisted in the order they were taken. A
message that depends on a change waits for the number of its ready, and nobody can send it early because nobody has
it. Invariants:

    done <= taken; state_in, log_in <= taken + 1
    what waits, waits for a ready that holds something: its `persisted` will come

Source: etcd-io/raft, log_unstable.go and asynchronous storage writes (a pair of term and index names what is durable,
since a position alone may have been rewritten meanwhile).
"""

from __future__ import annotations

import attrs

from walrq.raft.entries import HardState, Position
from walrq.raft.messages import Message


@attrs.frozen
class Ready:
    """What the caller makes durable next, top to bottom. False when there is nothing.

    Attributes:
        hard_state: to be made durable before anything below, None when unchanged.
        positions: entries to be appended and synced, in order.
        cut_from: before that, the stored log loses its entries from there on; None when it keeps them all.
        number: of this ready.
    """

    hard_state: HardState | None
    positions: tuple[Position, ...]
    cut_from: int | None = None
    number: int = attrs.field(default=0, eq=False)

    def __bool__(self) -> bool:
        return self.hard_state is not None or bool(self.positions) or self.cut_from is not None


class Unstable:
    """See the module.

    Attributes:
        taken, done: numbers of the last ready handed out, and of the last one that is durable.
        state_in, log_in: numbers of the readies that hold the newest change of hard state and log.
    """

    def __init__(self, stored: int) -> None:
        self.taken = 0
        self.done = 0
        self.state_in = 0
        self.log_in = 0
        # The end of the stored log, once all readies handed out are durable.
        self._stored = stored
        self._positions: list[Position] = []
        self._cut_from: int | None = None
        # The newest cut that an older ready may overlap: (the ready that cuts, the first index it takes away).
        self._cut = (0, 0)
        self._taken_at: list[tuple[int, int]] = []
        self._waiting: list[tuple[int, Message]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no entry waits to be handed out."""
        return not self._positions

    @property
    def is_written(self) -> bool:
        """Whether all entries that were appended are durable, and nothing is being written."""
        return self.done == self.taken >= self.log_in

    @property
    def has_ready(self) -> bool:
        """Whether `take` would give something."""
        return self.state_in > self.taken or self.log_in > self.taken

    def state_changed(self) -> None:
        """Term or vote are other ones now."""
        self.state_in = self.taken + 1

    def append(self, position: Position) -> None:
        """An entry was appended to the log."""
        self._positions.append(position)
        self.log_in = self.taken + 1

    def cut(self, from_index: int) -> None:
        """Entries from there on were taken away; others take their places at once."""
        self._positions = [position for position in self._positions if position[1] < from_index]
        if from_index <= self._stored:
            number = self.taken + 1
            # Several cuts may meet one ready that is still being written.
            lowest = min(from_index, self._cut[1]) if self._cut[0] > self.done else from_index
            self._cut = (number, lowest)
            self._cut_from = from_index if self._cut_from is None else min(self._cut_from, from_index)
            self._stored = from_index - 1

    def start_over(self, index: int) -> None:
        """The stored log was replaced by a snapshot of `index`."""
        assert self.is_written
        self._stored = index

    def take(self, state: HardState, tick: int) -> Ready:
        """What changed since the last time; each thing is handed out once."""
        taken = self.taken
        changed = self.state_in > taken
        if not changed and self.log_in <= taken:
            return Ready(None, (), None, taken)
        self.taken = taken = taken + 1
        positions = tuple(self._positions)
        ready = Ready(state if changed else None, positions, self._cut_from, taken)
        if positions:
            self._stored = positions[-1][1]
            self._positions.clear()
        self._cut_from = None
        self._taken_at.append((taken, tick))
        return ready

    def persisted(self, ready: Ready) -> tuple[int, int] | None:
        """A ready is durable: (term, index) up to which its entries still stand, None for none of them."""
        if ready.number > self.done:
            self.done = ready.number
            while self._taken_at and self._taken_at[0][0] <= ready.number:
                del self._taken_at[0]
        if not ready.positions:
            return None
        term, index, _ = ready.positions[-1]
        number, lowest = self._cut
        if ready.number >= number or index < lowest:
            return term, index
        # Written before that cut: what lies behind it is about to go.
        standing = [(t, i) for t, i, _ in ready.positions if i < lowest]
        return standing[-1] if standing else None

    def withdraw(self, ready: Ready) -> None:
        """A ready was written nowhere, and never will be."""
        self.done = max(self.done, ready.number)
        self._taken_at.clear()
        if ready.positions:
            self._stored = ready.positions[0][1] - 1

    def oldest_tick(self) -> int | None:
        """The tick at which the oldest ready that is not durable was taken."""
        return self._taken_at[0][1] if self._taken_at else None

    def wait(self, number: int, message: Message) -> None:
        """Keep a message until the ready of that number is durable."""
        assert self.done < number <= self.taken + 1
        self._waiting.append((number, message))

    def release(self, term: int) -> list[Message]:
        """Messages that may leave now. What was said in another term than `term` is better left unsaid."""
        if not self._waiting:
            return []
        free = [message for number, message in self._waiting if number <= self.done and message.term == term]
        self._waiting = [(number, message) for number, message in self._waiting if number > self.done]
        return free
