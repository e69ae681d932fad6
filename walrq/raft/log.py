"""What is known of the log: the term of every entry that may be compared or sent. Bodies stay with the caller.

Terms rarely change, so they are kept as runs of equal term; a log of a million entries is a few pairs. Invariants:

    base_index <= last_index
    terms never fall from one entry to the next                            inv: PrevTermValid
    entries at or below base_index are gone: only the last one's term is known

Source of the search for the point of agreement: etcd-io/raft, log.go (findConflictByTerm); Raft thesis 3.5.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Log:
    """See the module."""

    def __init__(self, base_index: int = 0, base_term: int = 0) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.last_index = base_index
        self.last_term = base_term
        self._firsts: list[int] = []
        self._terms: list[int] = []

    @classmethod
    def of(cls, last_index: int, last_term: int, runs: Sequence[tuple[int, int]], base_term: int) -> Log:
        """A log as it was found. Without runs nothing but its end is known."""
        if not runs:
            return cls(last_index, last_term)
        log = cls(runs[0][0] - 1, base_term)
        for first, term in runs:
            assert term >= log.last_term and first > log.last_index - bool(not log._firsts), runs
            log._firsts.append(first)
            log._terms.append(term)
            log.last_index = first
            log.last_term = term
        assert last_index >= log.last_index and last_term == log.last_term, (last_index, last_term, runs)
        log.last_index = last_index
        return log

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None when there is none, or when it is no longer known."""
        if index > self.last_index or index < self.base_index:
            return None
        if index == self.base_index:
            return self.base_term
        return self._terms[bisect_right(self._firsts, index) - 1]

    def matches(self, index: int, term: int) -> bool:
        """Whether the entry at `index` is known to be of that term."""
        return self.term_at(index) == term

    def append(self, term: int) -> int:
        """Add an entry at the end; its index."""
        index = self.last_index + 1
        if term != self.last_term or not self._terms:
            # inv: PrevTermValid
            assert term >= self.last_term, (term, self.last_term)
            self._firsts.append(index)
            self._terms.append(term)
            self.last_term = term
        self.last_index = index
        return index

    def truncate(self, from_index: int) -> None:
        """Take away the entry at `from_index` and all behind it."""
        assert self.base_index < from_index <= self.last_index + 1, (self.base_index, from_index, self.last_index)
        self.last_index = from_index - 1
        while self._firsts and self._firsts[-1] >= from_index:
            self._firsts.pop()
            self._terms.pop()
        self.last_term = self._terms[-1] if self._terms else self.base_term

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`: they can no longer be sent. Earlier ones than are known change nothing."""
        if index <= self.base_index:
            return
        term = self.term_at(index)
        assert term is not None, (index, self.last_index)
        kept = bisect_right(self._firsts, index)
        del self._firsts[:kept]
        del self._terms[:kept]
        if index < self.last_index and (not self._firsts or self._firsts[0] > index + 1):
            self._firsts.insert(0, index + 1)
            self._terms.insert(0, term)
        self.base_index, self.base_term = index, term

    def reset(self, index: int, term: int) -> None:
        """Start over behind a snapshot: nothing that was here belongs to the same history."""
        self.base_index = self.last_index = index
        self.base_term = self.last_term = term
        self._firsts.clear()
        self._terms.clear()

    def last_at_or_below(self, index: int, term: int) -> tuple[int, int]:
        """(index, term) of the last entry at or below `index` whose term is at most `term`.

        Every entry behind it differs from a log that has an entry of `term` at `index`, so a search for the point of
        agreement can jump there. When no known entry qualifies: the base.
        """
        index = min(index, self.last_index)
        while index > self.base_index:
            at = bisect_right(self._firsts, index) - 1
            if self._terms[at] <= term:
                return index, self._terms[at]
            index = self._firsts[at] - 1
        return self.base_index, self.base_term

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(first index, term) of each stretch of equal term."""
        return tuple(zip(self._firsts, self._terms, strict=True))
