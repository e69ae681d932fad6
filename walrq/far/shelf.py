"""The state: the tail, the table of pages, the frontier.

Invariants:
    every row in the tail or in a page, not marked as gone, has a key >= frontier
    first <= last of each page; `first` is the key of the row at its cursor
    ids of rows never overlap: a message waits in one place
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import cbor2

from walrq.errors import InvalidArgument
from walrq.far.blocks import Blocks
from walrq.far.rows import KEY_BYTES, MORE_MAX, ROW_BYTES, More, PageView, Row, encode_page, pack, unpack
from walrq.limits import FAR_PAGE_BYTES_MAX, FAR_PAGE_ROWS, FAR_TAIL_ROWS

TAIL_KEY: Final = b"t"
TABLE_KEY: Final = b"u"
PAGE_PREFIX: Final = b"f"
_DIGEST_BYTES: Final = 16


def page_key(number: int) -> bytes:
    """The key of a sealed page in the image."""
    return PAGE_PREFIX + number.to_bytes(4, "big")


def digest_of(page: bytes) -> bytes:
    """BLAKE2b-128 of a page: the same hash as the snapshot's manifest has of it."""
    return hashlib.blake2b(page, digest_size=_DIGEST_BYTES).digest()


class Page:
    """What the state knows of a sealed page.

    Attributes:
        rows: in it; those before `cursor` have left.
        first, last: keys of the row at the cursor, and of the last one.
        low, high: lowest and highest message id.
        dead: a bit for each row behind the cursor that is gone; `left`: rows that are not.
    """

    __slots__ = ("cursor", "dead", "digest", "first", "high", "last", "left", "low", "number", "rows")

    def __init__(self, number: int, rows: int, first: bytes, last: bytes, low: int, high: int, digest: bytes) -> None:
        self.number = number
        self.rows = rows
        self.cursor = 0
        self.first = first
        self.last = last
        self.low = low
        self.high = high
        self.dead = 0
        self.left = rows
        self.digest = digest

    def is_there(self, position: int) -> bool:
        """Whether the row at this position has not left and is not gone."""
        return self.cursor <= position < self.rows and not self.dead >> position & 1


@attrs.frozen
class Cut:
    """What was read of one page: its rows from its cursor on, up to a new frontier.

    Attributes:
        position: of the first of them.
        rows: how many.
        page: they, as a page.
        first: key of the row behind them; empty: there is none.
    """

    number: int
    position: int
    rows: int
    page: bytes
    first: bytes


@attrs.frozen
class Found:
    """A row that was found in a page."""

    number: int
    position: int
    row: Row


class Sweep:
    """A queue was emptied: rows of it with a sequence below `floor` are gone, in pages `next` .. `last`."""

    __slots__ = ("floor", "last", "next", "uid")

    def __init__(self, uid: int, floor: int, following: int, last: int) -> None:
        self.uid = uid
        self.floor = floor
        self.next = following
        self.last = last


class Far:
    """See the module and the package.

    Attributes:
        frontier: rows with lower keys have left.
        pages: by number, ascending.
        next_page: the number of the next one.
        sweeps: what emptied queues left in pages, in order.
        blocks: rows by block of log indexes, those that nobody knows to be gone included.
        unsaved: bytes of sealed pages that no durable snapshot is known to hold. Not part of the state.
        fresh_bytes: of those sealed since the last image was fixed. Not part of the state.
    """

    def __init__(self, tail_rows: int = FAR_TAIL_ROWS, page_rows: int = FAR_PAGE_ROWS) -> None:
        self._tail_rows = tail_rows
        self._page_rows = page_rows
        self.frontier = b""
        self.pages: dict[int, Page] = {}
        self.next_page = 1
        self.sweeps: list[Sweep] = []
        self.blocks = Blocks()
        self.unsaved: dict[int, bytes] = {}
        self.fresh_bytes = 0
        # By first id; `_ids` are its keys, ascending.
        self._tail: dict[int, tuple[bytes, More]] = {}
        self._ids: list[int] = []
        self._more_bytes = 0
        self._next: bytes | None = None
        self._next_known = True

    # --- the tail -------------------------------------------------------------------------------------------
    @property
    def is_empty(self) -> bool:
        """Nothing waits here, nor did since the last restart of all."""
        return not self._ids and not self.pages

    @property
    def tail_rows(self) -> int:
        """Rows in the tail."""
        return len(self._ids)

    def admits(self, time_ms: int, first_id: int) -> bool:
        """Whether a row of this key may still be put: the frontier is not beyond it."""
        return time_ms.to_bytes(8, "big") + first_id.to_bytes(16, "big") >= self.frontier

    def put(self, row: Row) -> None:
        """Take a row in. Its key must not be below the frontier."""
        key = row.key
        # inv: Conservation  (what is put below the frontier would never be taken)
        assert key >= self.frontier, (key, self.frontier)
        assert row.first_id not in self._tail
        self._tail[row.first_id] = pack(row), row.more
        insort(self._ids, row.first_id)
        if row.more:
            self._more_bytes += len(cbor2.dumps(dict(row.more)))
        if self._next_known and (self._next is None or key < self._next):
            self._next = key

    def in_tail(self, identifier: int) -> Row | None:
        """The row in the tail that holds a message."""
        position = bisect_right(self._ids, identifier) - 1
        if position < 0:
            return None
        packed, more = self._tail[self._ids[position]]
        row = attrs.evolve(unpack(packed), more=more)
        return row if identifier < row.first_id + row.count else None

    def tail(self) -> Iterator[Row]:
        """The rows of the tail, by id."""
        for first_id in list(self._ids):
            packed, more = self._tail[first_id]
            yield attrs.evolve(unpack(packed), more=more)

    def tail_keys(self, below: bytes) -> list[bytes]:
        """Keys of rows in the tail below one."""
        return [packed[:KEY_BYTES] for packed, _ in self._tail.values() if packed[:KEY_BYTES] < below]

    def leave_tail(self, first_id: int) -> None:
        """A row of the tail is elsewhere, or gone."""
        _, more = self._tail.pop(first_id)
        position = bisect_right(self._ids, first_id) - 1
        assert self._ids[position] == first_id
        del self._ids[position]
        if more:
            self._more_bytes -= len(cbor2.dumps(dict(more)))
        self._next_known = False

    # --- pages ----------------------------------------------------------------------------------------------
    def seal_if_full(self) -> None:
        """A full tail becomes pages. At the end of each entry."""
        if len(self._ids) >= self._tail_rows or self._more_bytes >= FAR_PAGE_BYTES_MAX:
            self._seal()

    def _seal(self) -> None:
        rows = sorted(self._tail.values(), key=lambda row: row[0][:KEY_BYTES])
        page: list[tuple[bytes, More]] = []
        size = 0
        for packed, more in rows:
            weight = ROW_BYTES + (len(cbor2.dumps(dict(more))) if more else 0)
            if page and (len(page) >= self._page_rows or size + weight > FAR_PAGE_BYTES_MAX or len(page) >= MORE_MAX):
                self._add_page(page)
                page, size = [], 0
            page.append((packed, more))
            size += weight
        self._add_page(page)
        self._tail = {}
        self._ids = []
        self._more_bytes = 0

    def _add_page(self, rows: Sequence[tuple[bytes, More]]) -> None:
        number = self.next_page
        self.next_page = number + 1
        body = encode_page(rows)
        ends = [unpack(packed) for packed, _ in rows]
        self.pages[number] = Page(
            number,
            len(rows),
            rows[0][0][:KEY_BYTES],
            rows[-1][0][:KEY_BYTES],
            min(row.first_id for row in ends),
            max(row.first_id + row.count - 1 for row in ends),
            digest_of(body),
        )
        self.unsaved[number] = body
        self.fresh_bytes += len(body)

    def saved(self, numbers: Iterable[int]) -> None:
        """A durable snapshot holds these pages: their bytes need not be in memory."""
        for number in numbers:
            self.unsaved.pop(number, None)

    def pages_for(self, identifier: int) -> list[int]:
        """Pages in which a message may be, by number."""
        return [page.number for page in self.pages.values() if page.low <= identifier <= page.high]

    def mark(self, number: int, position: int) -> bool:
        """A row of a page is elsewhere, or gone; False if it was not there any more."""
        page = self.pages.get(number)
        if page is None or not page.is_there(position):
            return False
        page.dead |= 1 << position
        page.left -= 1
        if not page.left:
            self._forget(number)
        return True

    def lose(self, number: int) -> None:
        """A page cannot be read any more."""
        self._forget(number)

    def _forget(self, number: int) -> None:
        del self.pages[number]
        self.unsaved.pop(number, None)
        self._next_known = False

    # --- time -----------------------------------------------------------------------------------------------
    def next_key(self) -> bytes | None:
        """The lowest key of all rows; that of one that is gone, perhaps. None: nothing waits."""
        if not self._next_known:
            keys = [page.first for page in self.pages.values()]
            keys += [packed[:KEY_BYTES] for packed, _ in self._tail.values()]
            self._next = min(keys, default=None)
            self._next_known = True
        return self._next

    def take(self, since: bytes, to: bytes, seen: int, cuts: Sequence[Cut]) -> list[Row]:
        """Move the frontier from `since` to `to`: the rows between leave, in order of their keys.

        Args:
            seen: `next_page` when the cuts were read.
            cuts: of every page that begins below `to`.

        Returns nothing, and changes nothing, when the state has moved on since.

        Raises:
            InvalidArgument: the cuts cannot be of this state; nothing is changed.
        """
        if since != self.frontier or to <= since:
            return []
        begun = [page for page in self.pages.values() if page.first < to]
        if any(page.number >= seen for page in begun):
            # Sealed since: read again.
            return []
        # inv: Conservation
        by_number = {cut.number: cut for cut in cuts}
        for page in begun:
            cut = by_number.get(page.number)
            if cut is None or not _fits(page, cut, to):
                raise InvalidArgument(f"the rows of page {page.number} of what waits are not those from its cursor on")
        rows: list[Row] = []
        for page in begun:
            rows += self._take_cut(page, by_number[page.number])
        for row in list(self.tail()):
            if row.key < to:
                self.leave_tail(row.first_id)
                rows.append(row)
        self.frontier = to
        self._next_known = False
        return sorted(rows, key=lambda row: row.key)

    def _take_cut(self, page: Page, cut: Cut) -> list[Row]:
        view = PageView(cut.page, cut.rows)
        taken = [view.row(position) for position in range(cut.rows) if page.is_there(page.cursor + position)]
        page.left -= len(taken)
        page.cursor += cut.rows
        page.first = cut.first or page.last
        if not page.left or page.cursor == page.rows:
            self._forget(page.number)
        return taken

    # --- emptied queues -------------------------------------------------------------------------------------
    def empty(self, uid: int, floor: int) -> list[Row]:
        """A queue was emptied of all sequences below `floor`: its rows in the tail leave, pages are to be swept."""
        gone = [row for row in self.tail() if row.uid == uid and row.sequence < floor]
        for row in gone:
            self.leave_tail(row.first_id)
        if self.pages:
            self.sweeps.append(Sweep(uid, floor, min(self.pages), self.next_page - 1))
        return gone

    def swept(self, uid: int, through: int) -> None:
        """The first sweep, of this queue, has passed page `through`."""
        sweep = self.sweeps[0]
        assert sweep.uid == uid
        sweep.next = through + 1
        if sweep.next > sweep.last:
            self.sweeps.pop(0)

    # --- the image ------------------------------------------------------------------------------------------
    def table_page(self, counts: Sequence[tuple[int, int, int, int]]) -> bytes | None:
        """The bytes of the table, with what the caller counts for each queue; None when there is nothing to say."""
        if not (self.pages or counts or self.sweeps or self.frontier):
            return None
        return cbor2.dumps(
            [
                self.frontier,
                self.next_page,
                [
                    [
                        page.number,
                        page.rows,
                        page.cursor,
                        page.first,
                        page.last,
                        page.low.to_bytes(16, "big"),
                        page.high.to_bytes(16, "big"),
                        page.dead.to_bytes((page.dead.bit_length() + 7) // 8, "little"),
                        page.left,
                        page.digest,
                    ]
                    for page in self.pages.values()
                ],
                [[sweep.uid, sweep.floor, sweep.next, sweep.last] for sweep in self.sweeps],
                list(counts),
            ]
        )

    def tail_page(self) -> bytes | None:
        """The bytes of the tail; None when it is empty."""
        if not self._ids:
            return None
        rows = [self._tail[first_id] for first_id in self._ids]
        return cbor2.dumps([(packed, dict(sorted(more.items()))) for packed, more in rows])

    def load_table(self, body: bytes) -> list[Any]:
        """Take over a table; returns what the caller counted."""
        self.frontier, self.next_page, pages, sweeps, counts = cbor2.loads(body)
        for number, rows, cursor, first, last, low, high, dead, left, digest in pages:
            low_id, high_id = int.from_bytes(low, "big"), int.from_bytes(high, "big")
            page = self.pages[number] = Page(number, rows, first, last, low_id, high_id, digest)
            page.cursor = cursor
            page.dead = int.from_bytes(dead, "little")
            page.left = left
        self.sweeps = [Sweep(*fields) for fields in sweeps]
        self._next_known = False
        return list(counts)

    def load_tail(self, body: bytes) -> None:
        """Take over a tail, after the table."""
        for packed, more in cbor2.loads(body):
            self.put(attrs.evolve(unpack(packed), more=more))


def _fits(page: Page, cut: Cut, to: bytes) -> bool:
    """Whether a cut is what lies between the cursor of its page and a new frontier."""
    end = cut.position + cut.rows
    if cut.position != page.cursor or end > page.rows or (end == page.rows) != (not cut.first):
        return False
    if len(cut.page) < cut.rows * ROW_BYTES or (cut.first and cut.first < to):
        return False
    return not cut.rows or PageView(cut.page, cut.rows).key(cut.rows - 1) < to
