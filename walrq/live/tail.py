"""New messages of a queue as they come, by peeking: nothing is leased, counted or moved.

A message is new when its sequence lies behind all that were there before, whatever state it is in by then. A
message that came and was acknowledged between two looks cannot be seen any more; the queue's counter of pushes
tells how many those were.

    last(n)    the newest n that are there            (finds the end by halving, not by reading everything)
    fresh()    what came since, in order of arrival
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from walrq import api
from walrq.api import State
from walrq.client.blocking import Client
from walrq.client.messages import Seen, seen
from walrq.errors import QueueNotFound
from walrq.limits import PEEK_MESSAGES_MAX

# In the order in which a message goes through them, so that one that moves on between two of the questions is
# met in the later.
ALIVE: Final = (State.DELAYED, State.READY, State.LEASED)
DLQ_SUFFIX: Final = ".dlq"
DLQ_NONE: Final = "none"
_WIDER: Final = 4


@attrs.frozen
class Step:
    """What one look brought.

    Attributes:
        messages: the new ones.
        unseen: how many more came and were gone before this look.
        more: there are more already; look again at once.
        gone: there is no such queue any more.
    """

    messages: tuple[Seen, ...] = ()
    unseen: int = 0
    more: bool = False
    gone: bool = False


@attrs.define
class Source:
    """The messages of one queue in some states, in order of sequence.

    Attributes:
        origin: of a dead-letter queue, only messages that died in this queue.
        cursor: everything below was shown, or was there before.
    """

    client: Client
    queue: str
    states: tuple[State, ...]
    origin: str | None = None
    cursor: int = 0
    _uid: int | None = None
    _pushed: int = 0
    # Messages seen and not yet counted by the queue's counter of pushes, negative.
    _ahead: int = 0

    def last(self, number: int, only: State | None = None) -> list[api.Peeked]:
        """The newest `number` messages that are there, or of one state; `fresh` goes on behind all of them.

        Raises:
            QueueNotFound: there is no such queue.
        """
        self._note(self._show())
        found: dict[int, api.Peeked] = {}
        for state in self.states:
            end = self._end(state)
            self.cursor = max(self.cursor, end)
            width = max(number, 1)
            while end and number and only in (None, state):
                start = max(0, end - width)
                taken = self._from(state, start)
                if len(taken) >= number or start == 0:
                    found |= {each.sequence: each for each in taken}
                    break
                width *= _WIDER
        newest = [found[sequence] for sequence in sorted(found) if self._is_ours(found[sequence])]
        return newest[-number:] if number else []

    def _end(self, state: State) -> int:
        """One more than the sequence of the last message in `state`; 0 when there is none."""
        # The end is most often near what was pushed, and a question from there is cheap.
        low, step = 0, max(PEEK_MESSAGES_MAX, self._pushed)
        # Invariant: nothing lies at or behind `high`, once that is known.
        high: int | None = None
        while high is None or low < high:
            middle = low + step if high is None else (low + high) // 2
            probe = low if high is None and low == 0 else middle
            page = self._peek(state, 1, probe, bodies=False)
            if page.messages:
                low = page.messages[0].sequence + 1
                step *= 2
            elif probe == 0:
                return 0
            else:
                high = probe
        return low

    def _from(self, state: State, start: int) -> list[api.Peeked]:
        found: list[api.Peeked] = []
        while True:
            page = self._peek(state, PEEK_MESSAGES_MAX, start, bodies=True)
            found += page.messages
            start = _sequence(page.next)
            if not start:
                return found

    def fresh(self) -> tuple[list[api.Peeked], int, bool]:
        """(new messages, how many came and went unseen, whether there are more already).

        Raises:
            QueueNotFound: there is no such queue.
        """
        client = self.client
        # Sent together, so that they are answered from nearly the same state.
        asked = [client.begin(api.ShowQueue(self.queue))]
        asked += [client.begin(self._question(state, PEEK_MESSAGES_MAX, self.cursor, True)) for state in self.states]
        info = client.end(asked[0], api.QueueInfo)
        if info.uid != self._uid:
            # Another queue of the same name: its sequences begin anew.
            self._note(info)
            self.cursor, self._pushed, self._ahead = 0, 0, 0
            for call in asked[1:]:
                client.end(call, api.Page)
            return [], 0, True
        found: dict[int, api.Peeked] = {}
        bound: int | None = None
        for call in asked[1:]:
            page = client.end(call, api.Page)
            found |= {each.sequence: each for each in page.messages}
            if page.next:
                following = _sequence(page.next)
                bound = following if bound is None else min(bound, following)
        sequences = sorted(each for each in found if bound is None or each < bound)
        if bound is not None:
            self.cursor = bound
        elif sequences:
            self.cursor = sequences[-1] + 1
        unseen = self._count(info, len(sequences), bound is None)
        return [found[each] for each in sequences if self._is_ours(found[each])], unseen, bound is not None

    def _count(self, info: api.QueueInfo, shown: int, complete: bool) -> int:
        """How many pushed messages no look has met."""
        pushed = info.pushed - self._pushed if info.pushed >= self._pushed else 0
        self._pushed = info.pushed
        self._ahead += pushed - shown
        if not complete:
            return 0
        unseen = max(0, self._ahead)
        # What came by a move is seen and never counted as pushed: a quiet look squares the account.
        self._ahead = 0 if not pushed and not shown else min(0, self._ahead)
        return unseen

    def _is_ours(self, message: api.Peeked) -> bool:
        return self.origin is None or message.origin == self.origin

    def _note(self, info: api.QueueInfo) -> None:
        self._uid, self._pushed = info.uid, info.pushed

    def _show(self) -> api.QueueInfo:
        return self.client.show_queue(self.queue)

    def _question(self, state: State, limit: int, after: int, bodies: bool) -> api.Peek:
        if state is State.DELAYED:
            # By sequence, however late it is due.
            after += api.SINCE
        return api.Peek(self.queue, state, limit, after, bodies)

    def _peek(self, state: State, limit: int, after: int, *, bodies: bool) -> api.Page:
        return self.client.end(self.client.begin(self._question(state, limit, after, bodies)), api.Page)


def _sequence(cursor: int) -> int:
    """Where the page behind a cursor begins; 0: there is none."""
    return cursor % api.SINCE


class Tail:
    """What goes through a queue: its living messages, those of one state, or those that die."""

    def __init__(self, client: Client, queue: str, state: str | None = None) -> None:
        """
        Raises:
            QueueNotFound: there is no such queue.
        """
        info = client.show_queue(queue)
        self._shown = None if state is None else State[state.upper()]
        if self._shown is State.DEAD:
            named = info.settings.get("dlq")
            target = queue + DLQ_SUFFIX if named is None else str(named)
            self._sources = [Source(client, queue, (State.PARKED,))]
            if target != DLQ_NONE:
                self._sources.append(Source(client, target, ALIVE, origin=queue))
        elif self._shown is State.PARKED:
            self._sources = [Source(client, queue, (State.PARKED,))]
        else:
            self._sources = [Source(client, queue, ALIVE)]

    def last(self, number: int) -> list[Seen]:
        """The newest `number` that are there."""
        found: list[api.Peeked] = []
        for position, source in enumerate(self._sources):
            try:
                only = self._shown if self._shown in source.states else None
                found += source.last(number, only)
            except QueueNotFound:
                # The dead-letter queue is made by the first message that dies.
                if position == 0:
                    raise
        if len(self._sources) > 1:
            found.sort(key=lambda each: each.died_ms)
        return self._wanted(found[-number:] if number else [])

    def fresh(self) -> Step:
        """What came since."""
        found: list[api.Peeked] = []
        unseen, more = 0, False
        for position, source in enumerate(self._sources):
            try:
                messages, missed, further = source.fresh()
            except QueueNotFound:
                if position == 0:
                    return Step(gone=True)
                continue
            found += messages
            # Of dead ones nothing is known that was not seen: they are not pushed.
            unseen += missed if source.states == ALIVE and source.origin is None else 0
            more = more or further
        return Step(tuple(self._wanted(found)), unseen, more)

    def _wanted(self, found: Sequence[api.Peeked]) -> list[Seen]:
        state = self._shown
        if state is State.DEAD:
            # Where it lies it may be ready, for whoever works on the dead.
            return [attrs.evolve(seen(each), state="dead") for each in found]
        if state is None or state is State.PARKED:
            return [seen(each) for each in found]
        return [seen(each) for each in found if each.state is state]
