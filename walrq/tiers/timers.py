"""Reads sealed pages of what waits beyond the horizon: the next slice of time, one message by its id, an emptied queue.

A job takes what it needs to know of the state when it is made, in the loop; `run` reads, in any thread, and touches
nothing else. What it found is right for the state as it was; the command that is made of it says which state that was.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from walrq.errors import CorruptRecord
from walrq.far.blocks import BLOCK_SHIFT
from walrq.far.rows import SEQUENCE, PageView, Row, key_of
from walrq.far.shelf import Cut, Far, Found, Page, digest_of, page_key
from walrq.ids import id_parts

# Rows of an emptied queue that one entry names, and pages that one job looks through.
SWEEP_ROWS: Final = 8_192
SWEEP_PAGES: Final = 64

ReadPage = Callable[[bytes], bytes | None]


@attrs.frozen
class _At:
    """What is known of a page."""

    number: int
    rows: int
    cursor: int
    first: bytes
    dead: int
    digest: bytes
    unsaved: bytes | None

    def is_there(self, position: int) -> bool:
        return not self.dead >> position & 1


def _at(far: Far, page: Page) -> _At:
    unsaved = far.unsaved.get(page.number)
    return _At(page.number, page.rows, page.cursor, page.first, page.dead, page.digest, unsaved)


class PageLost(Exception):  # no error of its own: whoever asked says what is lost with it
    """A sealed page cannot be read as it was sealed."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


class _Reading:
    """Pages, read and checked."""

    def __init__(self, far: Far, read: ReadPage) -> None:
        self._read = read
        self.seen = far.next_page
        self.since = far.frontier

    def run(self) -> None:
        """Read. Blocking. PageLost."""
        raise AssertionError("each kind of reading has its own")

    def attempt(self) -> str:
        """`run`; why it could not be done, empty when it was. Blocking."""
        try:
            self.run()
        except PageLost as error:
            return str(error)
        return ""

    def view(self, at: _At) -> PageView:
        """
        Raises:
            PageLost: the bytes are damaged, or gone.
        """
        page = at.unsaved
        if page is None:
            try:
                page = self._read(page_key(at.number))
            except CorruptRecord as error:
                raise PageLost(at.number, error.text) from error
            if page is None:
                raise PageLost(at.number, "no snapshot has it")
            if digest_of(page) != at.digest:
                raise PageLost(at.number, "it is not the page that was sealed")
        return PageView(page, at.rows)


class Slice(_Reading):
    """The next rows, in order of their keys, of all pages and the tail.

    Attributes:
        to: the new frontier. cuts: what each page holds below it.
    """

    def __init__(self, far: Far, read: ReadPage, until_ms: int, rows_max: int, messages_max: int) -> None:
        """Up to time `until_ms`, inclusive, and as many as allowed; one at least, if there is any."""
        super().__init__(far, read)
        self._limit = key_of(until_ms + 1)
        self._rows_max = rows_max
        self._messages_max = messages_max
        self._pages = sorted(
            (_at(far, page) for page in far.pages.values() if page.first < self._limit), key=lambda at: at.first
        )
        self._tail = [(row.key, row.count) for row in far.tail() if row.key < self._limit]
        self.to = b""
        self.cuts: tuple[Cut, ...] = ()

    def run(self) -> None:
        """Read. Blocking. PageLost."""
        self.to = self._frontier()
        cuts = []
        for at in self._pages:
            if at.first >= self.to:
                break
            view = self.view(at)
            end = view.below(self.to)
            first = view.key(end) if end < at.rows else b""
            cuts.append(Cut(at.number, at.cursor, end - at.cursor, view.cut(at.cursor, end), first))
        self.cuts = tuple(cuts)

    def _frontier(self) -> bytes:
        """The key behind the last row that is taken: of the lowest ones, as many as fit."""
        # The greatest key kept stands first: keys are turned over, for heaps are by the least.
        kept: list[tuple[int, bytes, int]] = []
        more = False

        def offer(key: bytes, count: int) -> bool:
            """Keep a row among the lowest ones; False: it is beyond them, and so is all with a higher key."""
            nonlocal more
            if len(kept) < self._rows_max:
                heapq.heappush(kept, (-int.from_bytes(key, "big"), key, count))
                return True
            more = True
            if key >= kept[0][1]:
                return False
            heapq.heapreplace(kept, (-int.from_bytes(key, "big"), key, count))
            return True

        for key, count in self._tail:
            offer(key, count)
        for at in self._pages:
            if len(kept) == self._rows_max and at.first >= kept[0][1]:
                more = True
                break
            view = self.view(at)
            for position in range(at.cursor, view.below(self._limit)):
                if at.is_there(position) and not offer(view.key(position), view.row(position).count):
                    break
        lowest = sorted((key, count) for _, key, count in kept)
        messages = 0
        for place, (key, count) in enumerate(lowest):
            messages += count
            if place and messages > self._messages_max:
                return key
        if not more:
            return self._limit
        return _after(lowest[-1][0])


def _after(key: bytes) -> bytes:
    """The least key that is greater."""
    return (int.from_bytes(key, "big") + 1).to_bytes(len(key), "big")


class Search(_Reading):
    """Messages by their ids. `found`: the rows that hold some of them."""

    def __init__(self, far: Far, read: ReadPage, ids: Sequence[int]) -> None:
        super().__init__(far, read)
        self._ids = ids
        numbers = sorted({number for identifier in ids for number in far.pages_for(identifier)})
        self._pages = [_at(far, far.pages[number]) for number in numbers]
        self.found: tuple[Found, ...] = ()

    def run(self) -> None:
        """Read. Blocking. PageLost."""
        ids = sorted(self._ids)
        found = []
        for at in self._pages:
            view = self.view(at)
            for position in range(at.cursor, at.rows):
                if not at.is_there(position):
                    continue
                row = view.row(position)
                place = bisect_left(ids, row.first_id)
                if place < len(ids) and ids[place] < row.first_id + row.count:
                    found.append(Found(at.number, position, row))
        self.found = tuple(found)


class Sweeping(_Reading):
    """Rows that an emptied queue left in pages.

    Attributes:
        uid, first, last: which queue, and the pages that were looked through.
        rows: (page, position, log index) of each.
    """

    def __init__(self, far: Far, read: ReadPage) -> None:
        """There is something to sweep."""
        super().__init__(far, read)
        sweep = far.sweeps[0]
        self.uid = sweep.uid
        self.first = sweep.next
        self.last = sweep.last
        self._floor = sweep.floor
        self._pages = [_at(far, page) for page in far.pages.values() if sweep.next <= page.number <= sweep.last][
            :SWEEP_PAGES
        ]
        self.rows: tuple[tuple[int, int, int], ...] = ()

    def run(self) -> None:
        """Read. Blocking. PageLost."""
        rows: list[tuple[int, int, int]] = []
        for place, at in enumerate(self._pages):
            view = self.view(at)
            for position in range(at.cursor, at.rows):
                row = view.row(position) if at.is_there(position) else None
                if row is not None and row.uid == self.uid and row.sequence < self._floor:
                    rows.append((at.number, position, row.index))
            if len(rows) >= SWEEP_ROWS or place == SWEEP_PAGES - 1:
                self.last = at.number
                break
        self.rows = tuple(rows)


class Losing(_Reading):
    """Which pages cannot be read, and what is lost with them: what is counted, less what can be found.

    Attributes:
        pages: their numbers.
        queues: (uid, messages, bytes) that are lost. blocks: (block of the log, rows).
    """

    def __init__(self, far: Far, read: ReadPage, counted: Mapping[int, tuple[int, int, int]]) -> None:
        """`counted`: by uid what a queue counts beyond the horizon: messages, bytes, and the floor of its sequences."""
        super().__init__(far, read)
        self._pages = [_at(far, page) for page in far.pages.values()]
        self._tail = list(far.tail())
        self._blocks = dict(far.blocks.items())
        self._counted = dict(counted)
        self.pages: tuple[int, ...] = ()
        self.queues: tuple[tuple[int, int, int], ...] = ()
        self.blocks: tuple[tuple[int, int], ...] = ()

    def run(self) -> None:
        """Read everything. Blocking."""
        lost = []
        left = {uid: [messages, size] for uid, (messages, size, _) in self._counted.items()}
        for row in self._tail:
            self._find(row, left)
        for at in self._pages:
            try:
                view = self.view(at)
            except PageLost as error:
                lost.append(error.number)
                continue
            for position in range(at.cursor, at.rows):
                if at.is_there(position):
                    self._find(view.row(position), left)
        self.pages = tuple(lost)
        if lost:
            self.queues = tuple((uid, amounts[0], amounts[1]) for uid, amounts in sorted(left.items()) if amounts[0])
            self.blocks = tuple((block, rows) for block, rows in sorted(self._blocks.items()) if rows)

    def _find(self, row: Row, left: dict[int, list[int]]) -> None:
        self._blocks[row.index >> BLOCK_SHIFT] -= 1
        known = self._counted.get(row.uid)
        if known is not None and row.sequence >= known[2]:
            left[row.uid][0] -= row.count
            left[row.uid][1] -= row.weight


# A place in a listing: page, position in it, offset in the row; pages are numbered in 32 bits, rows in 16.
_OFFSET_BITS: Final = 14
_POSITION_BITS: Final = 16


class Listing(_Reading):
    """Messages of one queue as they lie, page by page, the tail behind all pages, for whoever looks through them.

    Attributes:
        found: rows, each with the first and last of its messages that belong to this part, and the place of the row.
        following: the place of the next part, 0: there is none.
    """

    def __init__(self, far: Far, read: ReadPage, uid: int, floor: int, after: int, messages_max: int) -> None:
        """From place `after` on (0: from the beginning), at most so many messages."""
        super().__init__(far, read)
        self._uid = uid
        self._floor = floor
        self._left = messages_max
        place = after >> _OFFSET_BITS
        self._offset = after & (1 << _OFFSET_BITS) - 1
        self._page, self._position = place >> _POSITION_BITS, place & (1 << _POSITION_BITS) - 1
        self._pages = [_at(far, page) for page in far.pages.values() if page.number >= self._page]
        first = self._position if self._page >= far.next_page else 0
        self._tail = [
            Found(far.next_page, position, row) for position, row in enumerate(far.tail()) if position >= first
        ]
        self.found: list[tuple[Row, int, int, int]] = []
        self.following = 0

    def run(self) -> None:
        """Read. Blocking. PageLost."""
        for found in self._rows():
            row = found.row
            if row.uid != self._uid or row.sequence < self._floor:
                continue
            is_first = (found.number, found.position) == (self._page, self._position)
            first = self._offset if is_first else 0
            last = min(row.count, first + self._left) - 1
            place = (found.number << _POSITION_BITS | found.position) << _OFFSET_BITS
            if first <= last:
                self.found.append((row, first, last, place))
                self._left -= last - first + 1
            if last + 1 < row.count:
                self.following = place + last + 1
                return

    def _rows(self) -> Iterator[Found]:
        for at in self._pages:
            view = self.view(at)
            first = self._position if at.number == self._page else 0
            for position in range(max(at.cursor, first), at.rows):
                if at.is_there(position):
                    yield Found(at.number, position, view.row(position))
        yield from self._tail


class Since(_Reading):
    """Messages of one queue from a sequence on, in order of sequence, for whoever follows what comes.

    Ids of one queue grow with its sequences in time. What was pushed after a message that lies before the sequence
    cannot be in a page whose highest id is older, so the newest pages are read and the others are not. A message that
    came by a move has an older id, and is found in the pages that are read.

    Attributes:
        found: rows, each with the first and last of its messages that belong to this part.
    """

    def __init__(self, far: Far, read: ReadPage, uid: int, sequence: int, messages_max: int) -> None:
        """From `sequence` on, at least the first `messages_max` messages if there are as many."""
        super().__init__(far, read)
        self._uid = uid
        self._sequence = sequence
        self._most = messages_max
        self._oldest_ms = 0
        pages = ((id_parts(page.high)[0], page) for page in far.pages.values())
        self._pages = [(ms, _at(far, page)) for ms, page in sorted(pages, key=lambda one: one[0], reverse=True)]
        self._tail = list(far.tail())
        self.found: list[tuple[Row, int, int]] = []

    def run(self) -> None:
        """Read. Blocking. PageLost."""
        for row in self._tail:
            self._take(row)
        for highest_ms, at in self._pages:
            if highest_ms < self._oldest_ms:
                break
            view = self.view(at)
            for position in range(at.cursor, at.rows):
                if at.is_there(position):
                    self._take(view.row(position))
        self._trim()

    def _take(self, row: Row) -> None:
        if row.uid != self._uid:
            return
        first = max(0, self._sequence - row.sequence)
        if first and SEQUENCE not in row.more:
            self._oldest_ms = max(self._oldest_ms, id_parts(row.first_id)[0])
        if first < row.count:
            self.found.append((row, first, row.count - 1))
            if len(self.found) > 4 * self._most:
                self._trim()

    def _trim(self) -> None:
        self.found = heapq.nsmallest(self._most, self.found, key=lambda one: one[0].sequence)
