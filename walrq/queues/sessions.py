"""Exactly-once requests: the table of sessions and their first answers.

A session remembers the result of each request from its lowest unanswered one on; a request that comes again gets
that result and has no second effect. Results are codes and lease numbers, never payloads. A session idle for
`SESSION_IDLE_MS` of lease clock ends; what is asked of it then is answered *unknown*, never *failed*: its first copy
may have been applied.

Source: Raft thesis 6.3 (linearizable semantics), with registered sessions only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from walrq import api
from walrq.api import value
from walrq.errors import Code
from walrq.limits import SESSION_IDLE_MS
from walrq.queues.commands import Tagged
from walrq.queues.effects import Granted, LookFar, Result

# Sessions are imaged in this many pages.
BUCKETS: Final = 64

# Payloads are not remembered, and no lease names them.
MOVED_ON: Final = api.Failed(Code.OUTCOME_UNKNOWN, "the messages moved on, and this was answered before")
FORGOTTEN: Final = api.Failed(Code.OUTCOME_UNKNOWN, "the request was forgotten by its sender")


@value
class Held:
    """What is remembered of a lease command: its leases, as (queue uid, lease number)."""

    leases: tuple[tuple[int, int], ...]
    parked_ms: int
    visibility_ms: int


class Session:
    """One session. Invariant: every key of `results` is >= `lowest`. `owner`: the token whose it is, "" = anybody's."""

    __slots__ = ("last_ms", "lowest", "number", "owner", "results")

    def __init__(self, number: int, last_ms: int, owner: str = "") -> None:
        self.owner = owner
        self.number = number
        self.last_ms = last_ms
        self.lowest = 0
        self.results: dict[int, Result | Held] = {}

    def raise_lowest(self, lowest: int) -> None:
        """The client has the answers of everything below `lowest`."""
        results = self.results
        if lowest - self.lowest > len(results):
            self.results = {sequence: result for sequence, result in results.items() if sequence >= lowest}
        else:
            for sequence in range(self.lowest, lowest):
                results.pop(sequence, None)
        self.lowest = lowest


class Sessions:
    """All sessions, least recently active first."""

    def __init__(self, window_max: int, sessions_max: int, first_touch: Callable[[int], None]) -> None:
        self.table: OrderedDict[int, Session] = OrderedDict()
        # The same by bucket: an image takes one bucket at a time, and must not look at all sessions for each.
        self.buckets: dict[int, dict[int, Session]] = {}
        self.dirty: set[int] = set()
        self._window_max = window_max
        self._sessions_max = sessions_max
        self._first_touch = first_touch

    def mark(self, number: int) -> None:
        """Say that the bucket of a session is about to change."""
        bucket = bucket_of(number)
        if bucket not in self.dirty:
            self._first_touch(bucket)

    def open(self, number: int, now_ms: int, owner: str = "") -> api.SessionOpened | api.Failed:
        """Register session `number`."""
        if len(self.table) >= self._sessions_max:
            return api.Failed(
                Code.OVERLOADED,
                f"there are {len(self.table)} sessions already, allowed are {self._sessions_max}",
                {"limit": "sessions_max"},
            )
        self.mark(number)
        self.add(Session(number, now_ms, owner))
        return api.SessionOpened(number)

    def add(self, session: Session) -> None:
        """Take a session in, as the one that was active last."""
        self.table[session.number] = session
        self.buckets.setdefault(bucket_of(session.number), {})[session.number] = session

    def _remove(self, number: int) -> None:
        del self.table[number]
        del self.buckets[bucket_of(number)][number]

    def close(self, number: int) -> None:
        """End a session."""
        if number in self.table:
            self.mark(number)
            self._remove(number)

    def keep(self, number: int, now_ms: int) -> None:
        """The session's connection lives."""
        session = self.table.get(number)
        if session is not None:
            self.mark(number)
            session.last_ms = now_ms
            self.table.move_to_end(number)

    def expire(self, now_ms: int) -> None:
        """End what has been idle too long."""
        table = self.table
        while table:
            number = next(iter(table))
            if table[number].last_ms + SESSION_IDLE_MS > now_ms:
                return
            self.mark(number)
            self._remove(number)

    def next_end(self) -> int | None:
        """When the most idle session ends, on the lease clock."""
        for session in self.table.values():
            return session.last_ms + SESSION_IDLE_MS
        return None

    def begin(self, tagged: Tagged, now_ms: int) -> Session | api.Failed | Held | Result:
        """The session in which a request is to be executed, or its answer without execution."""
        number = tagged.session
        assert number is not None
        session = self.table.get(number)
        # inv: ExpiredIsUnknown
        if session is None:
            return api.Failed(
                Code.SESSION_ENDED, "the session has ended or never was; whether this request took effect is unknown"
            )
        bucket = (number >> 16) % BUCKETS
        if bucket not in self.dirty:
            self._first_touch(bucket)
        session.last_ms = now_ms
        self.table.move_to_end(number)
        if tagged.lowest > session.lowest:
            session.raise_lowest(tagged.lowest)
        sequence = tagged.sequence
        if sequence < session.lowest:
            return api.Failed(
                Code.OUTCOME_UNKNOWN,
                f"request {sequence} lies below the lowest unanswered one, {session.lowest}: it was answered before",
            )
        # inv: AtMostOnce
        known = session.results.get(sequence)
        if known is not None:
            return known
        if len(session.results) >= self._window_max:
            return api.Failed(
                Code.OVERLOADED,
                f"the session has {len(session.results)} requests without an acknowledged answer, "
                f"allowed are {self._window_max}",
                {"limit": "session_window_max"},
            )
        return session

    @staticmethod
    def remember(session: Session, sequence: int, result: Result) -> None:
        """Keep the first answer."""
        if type(result) is Granted:
            if not result.runs:
                # Nothing happened; the poll will come again under the same number.
                return
            if not result.runs[0].lease:
                session.results[sequence] = MOVED_ON
                return
            leases = tuple([(run.uid, run.lease) for run in result.runs])
            session.results[sequence] = Held(leases, result.parked_ms, result.visibility_ms)
        elif type(result) is not LookFar:
            session.results[sequence] = result


def bucket_of(number: int) -> int:
    """The image page of a session."""
    return (number >> 16) % BUCKETS


class DedupTable(OrderedDict[str, tuple[int, int]]):
    """Deduplication ids in order of arrival: (end of the window on the lease clock, message id) by id.

    Those of a page are found without a look at all others: an image takes one page at a time.
    """

    def __init__(self, page_of: Callable[[str], int]) -> None:
        super().__init__()
        self._page_of = page_of
        self.pages: dict[int, dict[str, None]] = {}

    def __setitem__(self, key: str, entry: tuple[int, int]) -> None:
        super().__setitem__(key, entry)
        self.pages.setdefault(self._page_of(key), {})[key] = None

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        del self.pages[self._page_of(key)][key]

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self.pages.clear()

    def in_page(self, page: int) -> list[tuple[str, int, int]]:
        """(id, end of its window, message id) of those in a page."""
        return [(key, *self[key]) for key in self.pages.get(page, ())]
