"""From addresses to bytes: fills what a poll leased and what a peek saw with the columns they point at.

`fill_poll` and `fill_page` are plain functions of a look-up. With the cache as look-up they run where the
reply is made; when something is cold they run again in a thread, reading through the cache, so the machine
and the event loop never wait for a disk.

A body destroyed by damage becomes `lost=True`: the message keeps its id and its place in the counts. A body
that the log does not have any more was either reclaimed, because its lease ended meanwhile (settled, purged),
and is then named among the ended ones; or its segment was lost. The machine knows: a segment is reclaimed
only after nothing in it was alive, so what is still held was not reclaimed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import attrs
import trio

from walrq.api import Columns, Delivered, Page, Peeked, Polled
from walrq.errors import CorruptRecord, MessageTooLarge, Reclaimed, WalrqError
from walrq.ids import make_receipt, task_receipt
from walrq.limits import POLL_BYTES_MAX
from walrq.queues.commands import Target
from walrq.queues.effects import Grant, Granted, Seen

_UINT32: Final = struct.Struct("<I")


class Bodies(Protocol):
    """Where bodies come from (`replica.py`)."""

    def body(self, index: int, ordinal: int) -> Columns | None:
        """From memory only."""
        ...

    def load_body(self, index: int, ordinal: int) -> Columns:
        """Through the cache; may read the disk."""
        ...

    def holds(self, uid: int, lease: int) -> bool:
        """Whether a lease is outstanding. Any thread."""
        ...

    def may_be_live(self, index: int) -> bool:
        """Whether a message pushed by this entry may be there still; False is certain. Any thread."""
        ...


def check_sizes(columns: Columns, most: int) -> None:
    """Refuse a batch with a payload beyond what its queue takes.

    Raises:
        MessageTooLarge: naming the first payload beyond `most` bytes.
    """
    start = 0
    for position, (end,) in enumerate(_UINT32.iter_unpack(columns.ends)):
        if end - start > most:
            raise MessageTooLarge(
                f"message {position} has {end - start} bytes, this queue allows {most}",
                limit=most,
                position=position,
            )
        start = end


LookUp: TypeAlias = Callable[[int, int], Columns]


class Cold(Exception):  # no error: it sends the reply on its longer way
    """A body is not in memory."""


def from_cache(bodies: Bodies) -> LookUp:
    """A look-up that raises `Cold` instead of reading."""

    def look_up(index: int, ordinal: int) -> Columns:
        columns = bodies.body(index, ordinal)
        if columns is None:
            raise Cold
        return columns

    return look_up


def _present(columns: Columns, index: int, first: int, count: int) -> Columns:
    """The columns, if they have these messages. Reclaimed: those were dead when the log was compacted.

    inv: NoSilentLoss  (what was dropped reads as empty, and is never handed out as an empty message)
    """
    if type(columns) is not Columns and not columns.has(first, count):
        raise Reclaimed(f"messages of entry {index} were dropped", index=index)
    return columns


def _end(ends: bytes, position: int) -> int:
    """The end offset at `position`; 0 before the first."""
    if position < 0:
        return 0
    return int.from_bytes(ends[4 * position : 4 * position + 4], "little")


def _fitting(columns: Columns, first: int, count: int, room: int) -> int:
    """How many of `count` messages from `first` have payloads and headers of at most `room` bytes
    together.
    """
    ends = memoryview(columns.ends)
    header_ends = None if columns.header_ends is None else memoryview(columns.header_ends)

    def size(n: int) -> int:
        total = _end(columns.ends, first + n - 1) - _end(columns.ends, first - 1)
        if header_ends is not None and columns.header_ends is not None:
            total += _end(columns.header_ends, first + n - 1) - _end(columns.header_ends, first - 1)
        return total

    assert 4 * (first + count) <= len(ends), (first, count, len(ends))
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        if size(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _slice(grant: Grant, count: int, columns: Columns, receipt: bytes) -> Delivered:
    """The first `count` messages of a grant, cut out of the batch they were pushed in."""
    first = grant.first
    last = first + count
    ends = columns.ends
    headers = columns.headers
    header_ends = columns.header_ends
    if first == 0 and 4 * last == len(ends):
        # The whole batch, as it came: nothing is copied.
        return Delivered(
            grant.queue,
            receipt,
            count,
            grant.first_id,
            grant.delivery,
            grant.attempts,
            grant.fence,
            grant.priority,
            grant.pushed_ms,
            grant.group,
            0,
            ends,
            columns.payloads,
            0,
            header_ends,
            headers,
        )
    base = _end(ends, first - 1)
    header_base = 0
    if header_ends is not None and headers is not None:
        header_base = _end(header_ends, first - 1)
        headers = headers[header_base : _end(header_ends, last - 1)]
        header_ends = header_ends[4 * first : 4 * last]
    return Delivered(
        grant.queue,
        receipt,
        count,
        grant.first_id,
        grant.delivery,
        grant.attempts,
        grant.fence,
        grant.priority,
        grant.pushed_ms,
        grant.group,
        base,
        ends[4 * first : 4 * last],
        columns.payloads[base : _end(ends, last - 1)],
        header_base,
        header_ends,
        headers,
    )


def _lost(grant: Grant, receipt: bytes) -> Delivered:
    return Delivered(
        queue=grant.queue,
        receipt=receipt,
        count=grant.count,
        first_id=grant.first_id,
        delivery=grant.delivery,
        attempts=grant.attempts,
        fence=grant.fence,
        priority=grant.priority,
        pushed_ms=grant.pushed_ms,
        group=grant.group,
        base=0,
        ends=b"",
        payloads=b"",
        lost=True,
    )


@attrs.define
class Filled:
    """The reply of a poll; the leases in it; and what has to be given back because it would not have
    fitted.
    """

    polled: Polled
    held: list[Target]
    back: list[Target]


def fill_poll(granted: Granted, secret: bytes, look_up: LookUp, holds: Callable[[int, int], bool]) -> Filled:
    """The reply of a poll, of at most POLL_BYTES_MAX bytes.

    The first message always fits (MESSAGE_BYTES_LIMIT is below the bound).

    Args:
        holds: whether (queue uid, lease number) is outstanding.

    Raises:
        Cold: from the look-up.
    """
    if len(granted.runs) == 1 and not granted.ended:
        filled = _fill_one(granted, secret, look_up)
        if filled is not None:
            return filled
    runs: list[Delivered] = []
    ended = [make_receipt(secret, target.uid, target.lease) for target in granted.ended]
    held: list[Target] = []
    back: list[Target] = []
    room = POLL_BYTES_MAX
    for grant in granted.runs:
        if room < 0:
            back.append(Target(grant.uid, grant.lease))
            continue
        receipt = _receipt(grant, secret)
        try:
            columns = _present(look_up(grant.index, grant.ordinal), grant.index, grant.first, grant.count)
        except (Reclaimed, CorruptRecord) as error:
            # inv: NoSilentLoss  (a lease that is held is answered, with its bodies or as lost)
            if isinstance(error, Reclaimed) and grant.lease and not holds(grant.uid, grant.lease):
                ended.append(receipt)
                continue
            runs.append(_lost(grant, receipt))
            if grant.lease:
                held.append(Target(grant.uid, grant.lease))
            continue
        count = grant.count
        if columns.size > room and grant.lease:
            count = _fitting(columns, grant.first, count, room)
            if count == 0 and not runs:
                count = 1
            if count < grant.count:
                room = -1
                ranges = None if count == 0 else ((count, grant.count - 1),)
                back.append(Target(grant.uid, grant.lease, ranges))
                if count == 0:
                    continue
        run = _slice(grant, count, columns, receipt)
        if room >= 0:
            room -= len(run.payloads) + (0 if run.headers is None else len(run.headers))
        runs.append(run)
        if grant.lease:
            held.append(Target(grant.uid, grant.lease))
    polled = Polled(granted.parked_ms, granted.visibility_ms, tuple(runs), tuple(ended))
    return Filled(polled, held, back)


def _fill_one(granted: Granted, secret: bytes, look_up: LookUp) -> Filled | None:
    """The reply of a poll that got one run, as nearly all do; None when something about it is unusual.

    Raises:
        Cold: from the look-up.
    """
    grant = granted.runs[0]
    try:
        columns = _present(look_up(grant.index, grant.ordinal), grant.index, grant.first, grant.count)
    except (Reclaimed, CorruptRecord):
        return None
    if columns.headers is not None or len(columns.payloads) > POLL_BYTES_MAX:
        return None
    run = _slice(grant, grant.count, columns, _receipt(grant, secret))
    polled = Polled(granted.parked_ms, granted.visibility_ms, (run,))
    return Filled(polled, [Target(grant.uid, grant.lease)] if grant.lease else [], [])


def _receipt(grant: Grant, secret: bytes) -> bytes:
    """What the taker settles with: a task's number for a numbered lease, nothing for messages that moved on."""
    if grant.task or not grant.lease:
        return task_receipt(grant.task)
    return make_receipt(secret, grant.uid, grant.lease)


def fill_page(
    seen: Sequence[Seen],
    following: int,
    cursor: Callable[[int], int],
    look_up: LookUp,
    may_be_live: Callable[[int], bool],
) -> Page:
    """A page of messages with their bodies; cut short when they outgrow POLL_BYTES_MAX.

    A lost message stands there without payload.

    Args:
        following: the cursor of the page behind all of `seen`, 0 when there is none.
        cursor: the cursor of a page that begins with the k-th of `seen`.
        may_be_live: whether a message of the entry at an index may be there still.

    Raises:
        Cold: from the look-up.
    """
    messages: list[Peeked] = []
    room = POLL_BYTES_MAX
    for position, one in enumerate(seen):
        try:
            columns = _present(look_up(one.index, one.ordinal), one.index, one.position, 1)
        except (Reclaimed, CorruptRecord) as error:
            if isinstance(error, CorruptRecord) or may_be_live(one.index):
                messages.append(one.peeked)
            continue
        start, end = _end(columns.ends, one.position - 1), _end(columns.ends, one.position)
        headers = None
        if columns.headers is not None and columns.header_ends is not None:
            headers = columns.headers[
                _end(columns.header_ends, one.position - 1) : _end(columns.header_ends, one.position)
            ]
        room -= end - start + len(headers or b"")
        if room < 0 and messages:
            return Page(tuple(messages), cursor(position))
        messages.append(
            attrs.evolve(  # type: ignore[misc]  # frozen for the type checker, attrs at run time
                one.peeked, payload=columns.payloads[start:end], headers=headers or None
            )
        )
    return Page(tuple(messages), following)


# Cold replies made per thread hop: enough to make the hop cheap, few enough to keep other replies from
# waiting.
_JOBS_PER_HOP_MAX: Final = 8


@attrs.define(eq=False)
class ColdReplies:
    """Replies that wait for the disk, made one after another in a thread of their own."""

    _bodies: Bodies
    _jobs: deque[tuple[Callable[[LookUp], Any], Callable[[Any], None]]] = attrs.field(factory=deque)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def add(self, fill: Callable[[LookUp], Any], then: Callable[[Any], None]) -> None:
        """Run `fill(look_up)` in the thread, then `then(its result)` here."""
        self._jobs.append((fill, then))
        self._wake.set()

    def add_far(
        self, attempt: Callable[[], str], then: Callable[[], None], failed: Callable[[WalrqError], None]
    ) -> None:
        """Look through what waits beyond the horizon in the thread, then `then()` here, or `failed` with why not."""

        def done(why: str) -> None:
            if why:
                failed(CorruptRecord(f"a page of delayed messages is damaged: {why}"))
            else:
                then()

        self.add(lambda _: attempt(), done)

    async def run(self, flush: Callable[[], None]) -> None:
        """Serve for ever; `flush` is called after each round of replies."""
        limiter = trio.CapacityLimiter(1)
        look_up = self._bodies.load_body
        while True:
            if not self._jobs:
                self._wake = trio.Event()
                await self._wake.wait()
            hop = [self._jobs.popleft() for _ in range(min(len(self._jobs), _JOBS_PER_HOP_MAX))]
            fills = [fill for fill, _ in hop]
            results = await trio.to_thread.run_sync(partial(_fill_all, fills, look_up), limiter=limiter)
            for (_, then), result in zip(hop, results, strict=True):
                then(result)
            flush()


def _fill_all(fills: Sequence[Callable[[LookUp], Any]], look_up: LookUp) -> list[Any]:
    return [fill(look_up) for fill in fills]
