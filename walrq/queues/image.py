"""The machine as pages of bytes, and back.

Pages:  "m"                      clocks, cluster, counters            "s" + bucket          sessions
        "q" + uid + page >= 0    batches with that page's sequences   "q" + uid + HEADER    settings, counters
        "q" + uid + TURNS        the rotation of groups               "q" + uid + DEDUP..   deduplication ids
        "k"                      tokens
        "t", "u"                 tail and table of what is far        "v" + number          its counts of blocks
        "f" + number             a sealed page of what is far: in memory only until a durable snapshot holds it
        "c" + uid + lane + n     a sealed stretch of what is cold: the same          "d": one that still grows

The same state gives the same bytes on every machine: maps and sets are written in sorted order, nothing depends on
hashes. An image is taken while the machine goes on: `freeze` names the pages that changed since the last image;
`step` encodes some of them between turns; a page that is about to change before its turn is encoded at once (copy on
write). Never a fork, never a pause for the whole state.
"""

from __future__ import annotations

import heapq
import struct
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

import cbor2

from walrq import api
from walrq.access.book import BOOK_KEY
from walrq.errors import CorruptRecord
from walrq.far.blocks import BLOCKS_PREFIX, blocks_key
from walrq.far.shelf import PAGE_PREFIX, TABLE_KEY, TAIL_KEY, page_key
from walrq.ids import INCARNATION_MAX
from walrq.queues import horizon
from walrq.queues.batch import (
    BACKOFF,
    DELAYED,
    LEASED,
    PARKED,
    READY,
    UNTOUCHED_FIELDS,
    Batch,
    Lease,
    Origin,
    Run,
    batch_row,
    open_attempts,
)
from walrq.queues.commands import VERSION_MAX
from walrq.queues.lanes import (
    COLD_PAGE_FIRST,
    FRONT,
    GROUPED,
    SEALED_FIRST,
    TAIL,
    Cold,
    Group,
    Level,
    cold_page,
    stretch_in,
    tie,
)
from walrq.queues.machine import DEFAULT_BOUNDS, Bounds, Machine, Window, check_version
from walrq.queues.queue import (
    DEDUP_BUCKETS,
    DEDUP_PAGE_FIRST,
    HEADER_PAGE,
    LIVE_SHIFT,
    TURNS_PAGE,
    Queue,
)
from walrq.queues.sessions import BUCKETS, Held, Session
from walrq.queues.settings import Settings, as_dict, known_to_all
from walrq.queues.timers import BACKOFF_ENDS, DUE, LEASE_ENDS

# 2: the story of a death ends with what its producer said of attempts. Pages of 1 are read as well, and stay as they
# are until something in them changes.
FORMAT: Final = 2
_QUEUE_KEY: Final = struct.Struct(">cIq")
_COLD_KEY: Final = struct.Struct(">cIHQ")
SEALED_PREFIX: Final = b"c"
GROWING_PREFIX: Final = b"d"
# Pages that never change, and that no machine holds once a durable snapshot does.
NOT_RESIDENT: Final = (SEALED_PREFIX, PAGE_PREFIX)

MACHINE_KEY: Final = b"m"


def _queue_key(uid: int, page: int) -> bytes:
    if page <= COLD_PAGE_FIRST:
        lane, number = stretch_in(page)
        return stretch_key(uid, lane, number)
    return _QUEUE_KEY.pack(b"q", uid, page)


def stretch_key(uid: int, lane: int, number: int) -> bytes:
    """The key of a stretch of cold batches."""
    return _COLD_KEY.pack(SEALED_PREFIX if number >= SEALED_FIRST else GROWING_PREFIX, uid, lane, number)


def _page_of_key(key: bytes) -> tuple[int, int] | None:
    """(uid, page) of a queue's page; None for the key of another kind."""
    if key[:1] == b"q":
        _, uid, page = _QUEUE_KEY.unpack(key)
        return uid, page
    if key[:1] in (SEALED_PREFIX, GROWING_PREFIX):
        _, uid, lane, number = _COLD_KEY.unpack(key)
        return uid, cold_page(lane, number)
    return None


def _session_key(bucket: int) -> bytes:
    return b"s" + bytes([bucket])


# --- encoding -----------------------------------------------------------------------------------------------
def _machine_page(m: Machine) -> bytes:
    # Version 1 is as it was before there were versions, unless what came with 2 was used all the same.
    further = [m.tally.tasks_given, m.tally.delayed_taken, *m.window.fields()]
    version = () if m.version == 1 and not any(further) else (m.version, further)
    return cbor2.dumps((FORMAT, m.cluster, m.secret, m.now, m.wall, *version, m.incarnations))


def _queue_page(queue: Queue, page: int) -> bytes | None:
    """The bytes of a page, None when it is empty."""
    if page >= 0:
        batches = queue.pages.get(page)
        return cbor2.dumps([batch_row(batch) for batch in batches.values()]) if batches else None
    if page == HEADER_PAGE:
        settings = known_to_all(as_dict(queue.settings))
        return cbor2.dumps(
            (
                queue.name,
                {name: settings[name] for name in sorted(settings)},
                queue.next_seq,
                queue.next_lease,
                queue.dlq_seen,
                [(lane, *cold.fields()) for lane, cold in sorted(queue.cold.items())],
                # As it was before anything was ever cold.
                *((queue.next_cold,) if queue.next_cold != SEALED_FIRST else ()),
            )
        )
    if page <= COLD_PAGE_FIRST:
        lane, number = stretch_in(page)
        found = queue.cold.get(lane)
        return found.page(number) if found is not None else None
    if page == TURNS_PAGE:
        if not queue.rotation:
            return None
        return cbor2.dumps([(priority, list(queue.rotation[priority])) for priority in sorted(queue.rotation)])
    ids = queue.dedup.in_page(page)
    return cbor2.dumps(sorted(ids, key=lambda row: row[2])) if ids else None


_RESULTS: Final[dict[int, type]] = {
    1: api.Pushed,
    2: Held,
    3: api.Settled,
    4: api.Touched,
    5: api.Outcomes,
    6: api.Done,
    7: api.Moved,
    8: api.SessionOpened,
    9: api.Failed,
}
_RESULT_TAGS: Final = {kind: tag for tag, kind in _RESULTS.items()}


def _result(result: Any) -> tuple[Any, ...]:
    kind = type(result)
    tag = _RESULT_TAGS[kind]
    if kind is api.Failed:
        details = {name: result.details[name] for name in sorted(result.details)}
        return (tag, int(result.code), result.text, details)
    if kind is api.Outcomes:
        return (tag, [int(outcome) for outcome in result.outcomes])
    if kind is api.Pushed and not result.number:
        # As it was before pushes were counted.
        return (tag, result.first_id, result.count, result.ids, result.duplicates)
    return (tag, *(getattr(result, field.name) for field in kind.__attrs_attrs__))


def _session_page(m: Machine, bucket: int) -> bytes | None:
    rows = [
        (
            session.number,
            session.last_ms,
            session.lowest,
            [(sequence, _result(session.results[sequence])) for sequence in sorted(session.results)],
            # As it was before there were tokens.
            *((session.owner,) if session.owner else ()),
        )
        for session in m.sessions.buckets.get(bucket, {}).values()
    ]
    return cbor2.dumps(sorted(rows, key=lambda row: row[0])) if rows else None


# What one step encodes: a millisecond or two. And what a page of another kind counts for.
RUNS_PER_STEP: Final = 256
_PAGE_RUNS: Final = 32


class _Part:
    """A page of batches that is encoded in pieces. Whoever is about to change it ends it first (copy on write)."""

    def __init__(self, queue: Queue, page: int) -> None:
        self.queue = queue
        self.page = page
        self._batches = list(queue.pages[page].values())
        self._done = 0
        self._pieces: list[bytes] = []

    @property
    def is_whole(self) -> bool:
        """Nothing of it is left."""
        return self._done == len(self._batches)

    def go_on(self, runs: int) -> int:
        """Encode batches with about so many runs more; how many it were."""
        rows: list[Any] = []
        weight = 0
        batches = self._batches
        for position in range(self._done, len(batches)):
            if weight >= runs:
                break
            batch = batches[position]
            rows.append(batch_row(batch))
            weight += 1 + (len(batch.pieces) if batch.pieces else 0)
        self._done += len(rows)
        self._pieces.append(cbor2.dumps(rows)[_array_head(len(rows)) :])
        return weight

    def body(self) -> bytes:
        """The page, as `_queue_page` has it."""
        count = len(self._batches)
        return cbor2.dumps([None] * count)[: _array_head(count)] + b"".join(self._pieces)


def _array_head(count: int) -> int:
    """Bytes of the head of a CBOR array with so many items."""
    return 1 if count < 24 else 2 if count < 1 << 8 else 3 if count < 1 << 16 else 5


class Imager:
    """Takes images of one machine, one at a time.

    Drive it: `freeze()`, then `step(n)` until it answers False; `take()` at any time hands over what was encoded.
    """

    def __init__(self, machine: Machine, known: Iterable[bytes] = ()) -> None:
        """`known`: keys of the pages of the last image (those the machine was restored from)."""
        known = list(known)
        self._machine = machine
        self._known: dict[int, set[int]] = {}
        for key in known:
            place = _page_of_key(key)
            if place is not None:
                self._known.setdefault(place[0], set()).add(place[1])
        # Sealed stretches that this image holds and that were in memory when it was fixed.
        self._stretches: list[tuple[int, int, int]] = []
        self._pending: dict[tuple[int, int], Queue] = {}
        self._pending_buckets: set[int] = set()
        # A page that is being encoded in pieces.
        self._part: _Part | None = None
        self._encoded: list[tuple[bytes, bytes | None]] = []
        # Pages that this image leaves out, in case it is not kept.
        self._dropped: list[tuple[int, int]] = []
        self._far = FarImager(machine, known)
        self.active = False

    def freeze(self) -> None:
        """Fix the state of which an image is taken: as it is now."""
        assert not self.active
        m = self._machine
        self.active = True
        self._dropped.clear()
        self._encoded.append((MACHINE_KEY, _machine_page(m)))
        tokens = m.book.page()
        if tokens is not None and m.book.dirty:
            self._encoded.append((BOOK_KEY, tokens))
        m.book.dirty = False
        self._encoded += self._far.freeze()
        self._stretches = list(m.cold_unsaved)
        for uid in sorted(m.removed_uids):
            for page in sorted(self._known.pop(uid, ())):
                self._drop(uid, page)
        m.removed_uids.clear()
        for queue in m.queues.values():
            if queue.dirty:
                for page in queue.dirty:
                    self._pending[queue.uid, page] = queue
                queue.dirty = set()
        self._pending_buckets = set(m.sessions.dirty)
        m.sessions.dirty.clear()
        m.before_queue_page = self._before_queue_page
        m.before_session_page = self._before_session_page

    def start_over(self) -> None:
        """The image being taken was not kept: everything counts as changed."""
        m = self._machine
        self._pending.clear()
        self._pending_buckets.clear()
        self._part = None
        self._encoded.clear()
        for uid, page in self._dropped:
            self._known.setdefault(uid, set()).add(page)
        m.before_queue_page = None
        m.before_session_page = None
        self.active = False
        self._far.start_over()
        self._stretches = []
        for uid, lane, number in m.cold_unsaved:
            m.by_uid[uid].dirty.add(cold_page(lane, number))
        for queue in m.queues.values():
            for lane, cold in queue.cold.items():
                queue.dirty.update(cold_page(lane, each.number) for each in (cold.tail, cold.front))
            queue.dirty.update((HEADER_PAGE, TURNS_PAGE), queue.pages, self._known.get(queue.uid, ()))
            queue.dirty.update(queue.dedup.pages)
        m.removed_uids.update(uid for uid in self._known if uid not in m.by_uid)
        m.sessions.dirty.update(range(BUCKETS))
        m.book.dirty = True

    def _before_queue_page(self, queue: Queue, page: int) -> None:
        part = self._part
        if part is not None and part.page == page and part.queue is queue:
            part.go_on(1 << 30)
            self._end_part(part)
        if self._pending.pop((queue.uid, page), None) is not None:
            self._encode(queue, page)

    def _before_session_page(self, bucket: int) -> None:
        if bucket in self._pending_buckets:
            self._pending_buckets.discard(bucket)
            self._encoded.append((_session_key(bucket), _session_page(self._machine, bucket)))

    def _encode(self, queue: Queue, page: int) -> None:
        body = _queue_page(queue, page)
        known = self._known.setdefault(queue.uid, set())
        if body is None and page <= COLD_PAGE_FIRST and page in known:
            lane, number = stretch_in(page)
            found = queue.cold.get(lane)
            if found is not None and number in found.sealed:
                # It never changes, and an earlier snapshot holds it.
                return
        if body is not None:
            known.add(page)
            self._encoded.append((_queue_key(queue.uid, page), body))
        elif page in known:
            known.discard(page)
            self._drop(queue.uid, page)

    def _drop(self, uid: int, page: int) -> None:
        self._dropped.append((uid, page))
        self._encoded.append((_queue_key(uid, page), None))

    def step(self, pages: int) -> bool:
        """Encode up to `pages` pages, of large ones a part; False when the image is complete.

        About RUNS_PER_STEP runs at most, so that a turn between two steps never waits for more.
        """
        room = RUNS_PER_STEP
        for _ in range(pages):
            if room <= 0:
                break
            part = self._part
            if part is not None:
                room -= part.go_on(room)
                if not part.is_whole:
                    break
                self._end_part(part)
            elif self._pending:
                (_, page), queue = self._pending.popitem()
                if page >= 0 and page in queue.pages:
                    self._part = part = _Part(queue, page)
                    room -= part.go_on(room)
                    if part.is_whole:
                        self._end_part(part)
                else:
                    self._encode(queue, page)
                    room -= _PAGE_RUNS
            elif self._pending_buckets:
                room -= RUNS_PER_STEP
                self._before_session_page(next(iter(self._pending_buckets)))
            else:
                self._machine.before_queue_page = None
                self._machine.before_session_page = None
                self.active = False
                return False
        return True

    def _end_part(self, part: _Part) -> None:
        self._part = None
        self._known.setdefault(part.queue.uid, set()).add(part.page)
        self._encoded.append((_queue_key(part.queue.uid, part.page), part.body()))

    def take(self) -> list[tuple[bytes, bytes | None]]:
        """Pages encoded since the last call; None = the page is no more."""
        encoded = self._encoded
        self._encoded = []
        return encoded

    def kept(self) -> None:
        """The last image is durable: what it holds of sealed pages need not be in memory."""
        self._far.kept()
        horizon.saved(self._machine, self._stretches)
        self._stretches = []


class FarImager:
    """What is far, as pages of an image: encoded at once, for it is little; sealed pages are handed over once."""

    def __init__(self, machine: Machine, known: Iterable[bytes]) -> None:
        self._machine = machine
        # Keys in the last image, and those of them that this one leaves out.
        self._known = {key for key in known if key[:1] in _FAR_PREFIXES}
        self._left_out: set[bytes] = set()
        self._handed: list[int] = []

    def freeze(self) -> list[tuple[bytes, bytes | None]]:
        """The pages that changed."""
        far = self._machine.far
        dirty = sorted(far.blocks.dirty)
        pages: list[tuple[bytes, bytes | None]] = [
            (TABLE_KEY, far.table_page(far_counts(self._machine))),
            (TAIL_KEY, far.tail_page()),
            *((blocks_key(number), far.blocks.image_page(number)) for number in dirty),
        ]
        far.blocks.dirty.clear()
        self._handed = sorted(far.unsaved)
        pages += [(page_key(number), far.unsaved[number]) for number in self._handed]
        far.fresh_bytes = 0
        there = {page_key(number) for number in far.pages}
        pages += [(key, None) for key in sorted(self._known) if key[:1] == PAGE_PREFIX and key not in there]
        changes = [(key, page) for key, page in pages if page is not None or key in self._known]
        for key, page in changes:
            if page is not None:
                self._known.add(key)
            else:
                self._known.discard(key)
                self._left_out.add(key)
        return changes

    def kept(self) -> None:
        """See `Imager.kept`."""
        self._left_out.clear()
        self._machine.far.saved(self._handed)
        self._handed = []

    def start_over(self) -> None:
        """See `Imager.start_over`. Sealed pages that an earlier snapshot holds are left to it."""
        far = self._machine.far
        self._known |= self._left_out
        self._left_out.clear()
        self._handed = []
        far.blocks.dirty.update(far.blocks.image_pages)
        far.blocks.dirty.update(int.from_bytes(key[1:], "big") for key in self._known if key[:1] == BLOCKS_PREFIX)


_FAR_PREFIXES: Final = (TABLE_KEY, TAIL_KEY, PAGE_PREFIX, BLOCKS_PREFIX)


def far_counts(m: Machine) -> list[tuple[int, int, int, int]]:
    """What each queue counts of what is far: (uid, messages, bytes, floor)."""
    return [
        (queue.uid, queue.far_messages, queue.far_bytes, queue.far_floor)
        for _, queue in sorted(m.by_uid.items())
        if queue.far_messages or queue.far_floor
    ]


def full_pages(m: Machine) -> dict[bytes, bytes]:
    """All pages of the state as it is now (for tests, transfers and hash comparison); changes nothing.

    Without the sealed pages of what is far, of which the table has the hashes, and of what is cold.
    """
    pages: dict[bytes, bytes] = {MACHINE_KEY: _machine_page(m)}
    tokens = m.book.page()
    if tokens is not None:
        pages[BOOK_KEY] = tokens
    for queue in m.queues.values():
        numbers = [HEADER_PAGE, TURNS_PAGE, *queue.pages]
        numbers += [cold_page(lane, number) for lane in queue.cold for number in (TAIL, FRONT)]
        if queue.dedup:
            numbers += [DEDUP_PAGE_FIRST - bucket for bucket in range(DEDUP_BUCKETS)]
        for page in numbers:
            body = _queue_page(queue, page)
            if body is not None:
                pages[_queue_key(queue.uid, page)] = body
    for bucket in range(BUCKETS):
        body = _session_page(m, bucket)
        if body is not None:
            pages[_session_key(bucket)] = body
    far = m.far
    for key, body in ((TABLE_KEY, far.table_page(far_counts(m))), (TAIL_KEY, far.tail_page())):
        if body is not None:
            pages[key] = body
    for number in far.blocks.image_pages:
        body = far.blocks.image_page(number)
        assert body is not None
        pages[blocks_key(number)] = body
    return dict(sorted(pages.items()))


def sealed_pages(m: Machine) -> dict[bytes, bytes]:
    """Pages that are in memory as long as no durable snapshot is known to hold them."""
    pages = {page_key(number): body for number, body in m.far.unsaved.items()}
    for uid, lane, number in m.cold_unsaved:
        pages[stretch_key(uid, lane, number)] = m.by_uid[uid].cold[lane].unsaved[number]
    return pages


# --- decoding -----------------------------------------------------------------------------------------------
def _open_result(raw: Any) -> Any:
    kind = _RESULTS[raw[0]]
    fields = raw[1:]
    if kind is api.Outcomes:
        return api.Outcomes(tuple(api.Outcome(outcome) for outcome in fields[0]))
    if kind is api.Failed:
        return api.Failed(*fields)
    return kind(*(_tuples(field) for field in fields))


def _tuples(raw: Any) -> Any:
    return tuple(_tuples(item) for item in raw) if isinstance(raw, list) else raw


def _discount(queue: Queue, batch: Batch, live: int) -> None:
    """A restored batch has only `live` messages left; which ones is said by what is restored next."""
    gone = batch.count - live
    if not gone:
        return
    batch.live = live
    origin = batch.origin
    if origin is not None and origin.queue is not None:
        queue.origins[origin.queue] -= gone
    size = batch.bytes_of(0, batch.count - 1)
    queue.bytes -= size
    queue.tally.bytes -= size
    queue.tally.messages -= gone


def _restore_run(queue: Queue, run: Run, state: int, deadline: int, lease: Lease | None) -> None:
    """Put a restored run where it stood. Turns and timers are restored by the caller."""
    batch = run.batch
    queue.add_piece(run)
    run.state = state
    run.deadline = deadline
    number = run.last - run.first + 1
    if batch.live != batch.count:
        size = batch.bytes_of(run.first, run.last)
        queue.bytes += size
        queue.tally.bytes += size
    group: Group | None = None
    if run.group is not None and state != PARKED and state != DELAYED:
        group = queue.groups.get(run.group)
        if group is None:
            group = queue.groups[run.group] = Group(run.group)
    if state == READY:
        queue.ready += number
        if group is not None:
            group.ready += number
            heapq.heappush(group.heap, (run.order, next(tie), run))
        else:
            level = queue.levels.get(batch.priority)
            if level is None:
                level = queue.levels[batch.priority] = Level()
                insort(queue.tops, batch.priority)
            level.ready += number
            heapq.heappush(level.returned, (run.order, next(tie), run))
    elif state == LEASED:
        assert lease is not None
        queue.leased += number
        run.lease = lease
        lease.add(run)
        if group is not None:
            group.in_flight += number
    elif state == PARKED:
        queue.parked += number
        queue.parked_runs[run.order] = run
    else:
        queue.delayed += number
        if group is not None:
            group.waiting += number


def _restore_turns(queue: Queue, rows: list[tuple[int, list[str | None]]]) -> None:
    """The rotation as it was."""
    for priority, lanes in rows:
        queue.rotation[priority] = OrderedDict.fromkeys(lanes)
        for lane in lanes:
            if lane is not None:
                queue.groups[lane].turn = priority


def _restore_cold(m: Machine, queue: Queue, lane: int, cold: Cold) -> None:
    """A lane of which something is cold."""
    queue.cold[lane] = cold
    m.cold_ends_at(queue.uid, lane, cold.soonest)
    for block, batches in cold.blocks.items():
        m.live_blocks[block] = m.live_blocks.get(block, 0) + batches
    for name, dead in cold.origins.items():
        queue.origins[name] = queue.origins.get(name, 0) + dead
    if lane != GROUPED:
        queue.levels[lane] = Level()
        insort(queue.tops, lane)


def _restore_held(queue: Queue) -> None:
    """Groups that wait for nothing but the border of what is cold."""
    cold = queue.cold.get(GROUPED)
    if cold is None:
        return
    for group in queue.groups.values():
        head = group.head()
        if head is not None and group.turn is None and head.order > cold.floor:
            queue.held.add(group.key)


def _restore_ready(queue: Queue, batch: Batch) -> None:
    """Put the fresh rest of a restored batch where it stood (batches come in order of sequence)."""
    number = batch.count - batch.cursor
    queue.ready += number
    if batch.live != batch.count:
        size = batch.bytes_of(batch.cursor, batch.count - 1)
        queue.bytes += size
        queue.tally.bytes += size
    level = queue.levels.get(batch.priority)
    if level is None:
        level = queue.levels[batch.priority] = Level()
        insort(queue.tops, batch.priority)
    level.ready += number
    level.fresh.append(batch)


def _restore_untouched(queue: Queue, rows: list[Any]) -> None:
    """Batches that were pushed and never touched, by sequence."""
    for index, ordinal, count, size, seq, priority, pushed_ms in rows:
        batch = Batch(index, ordinal, 0, count, count, size, seq, priority, 0, pushed_ms, 0)
        queue.add_batch(batch)
        queue.put_fresh(batch)


def _restore_batch(queue: Queue, raw: Any, m: Machine) -> None:
    batch = Batch(*raw[:11])
    batch.cursor = raw[11]
    batch.fresh = raw[12]
    if raw[13] is not None:
        first_id, delivery, name, reason, died_ms, history, *counts = raw[13]
        batch.origin = Origin(first_id, delivery, name, reason, died_ms, open_attempts(history), *counts)
    expire_ms = batch.expire_ms
    if expire_ms <= m.wall and not batch.fresh and all(row[6] == LEASED for row in raw[14]):
        # Its time to live was over before the image: the timer is gone, what is leased goes when it comes back.
        batch.expire_ms = 0
    queue.add_batch(batch)
    batch.expire_ms = expire_ms
    live = batch.count - batch.cursor if batch.fresh else 0
    for row in raw[14]:
        live += row[1] - row[0] + 1
    # `add_batch` counted the whole batch; take out what is gone.
    _discount(queue, batch, live)
    if batch.fresh:
        _restore_ready(queue, batch)
    for row in raw[14]:
        first, last, order, delivery, attempts, group, state, deadline, history, lease = row
        run = Run(batch, first, last, order, delivery, attempts, group)
        run.history = open_attempts(history)
        if state == LEASED:
            number, start, count, fence_index, fence_ordinal, worker, *task = lease
            held = queue.leases.get(number)
            if held is None:
                held = Lease(number, batch, start, count, (fence_index, fence_ordinal), worker)
                queue.leases[number] = held
                if task:
                    held.task = task[0]
                    m.tally.tasks[held.task] = (queue.uid, number)
                m.tally.leases += 1
            m.lease_timers.add(deadline, queue.uid, LEASE_ENDS, number, held)
            _restore_run(queue, run, state, deadline, held)
        else:
            _restore_run(queue, run, state, deadline, None)
            if state == BACKOFF:
                m.lease_timers.add(deadline, queue.uid, BACKOFF_ENDS, order, run)
            elif state == DELAYED:
                m.wall_timers.add(deadline, queue.uid, DUE, order, run)
            elif state == PARKED:
                m.parked.add(queue.uid)
            elif state != READY:
                raise CorruptRecord(f"an image page holds a run in state {state}")


def _restore_sessions(m: Machine, rows: list[Any]) -> None:
    for number, last_ms, lowest, results, *owner in sorted(rows, key=lambda row: (row[1], row[0])):
        session = Session(number, last_ms, *owner)
        session.lowest = lowest
        session.results = {sequence: _open_result(result) for sequence, result in results}
        m.sessions.add(session)


def load(
    pages: Iterable[tuple[bytes, bytes]], bounds: Bounds = DEFAULT_BOUNDS, version_max: int = VERSION_MAX
) -> Machine:
    """The machine whose image these pages are.

    Args:
        version_max: the newest version of the state machine that this node can be.

    Raises:
        DataDirInvalid: the image is of a newer one.
        CorruptRecord: a page of a newer format, or bytes no image of this version holds.
    """
    try:
        return _load(pages, bounds, version_max)
    except (cbor2.CBORError, struct.error, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptRecord(f"the image of the queues cannot be read by this version: {error!r}") from error


def _load(pages: Iterable[tuple[bytes, bytes]], bounds: Bounds, version_max: int) -> Machine:
    m = Machine(bounds, version_max)
    headers: list[tuple[int, bytes]] = []
    turns: list[tuple[int, bytes]] = []
    dedup: dict[int, list[Any]] = {}
    batches: list[tuple[int, int, bytes]] = []
    sessions: list[Any] = []
    counts: list[tuple[int, int, int, int]] = []
    tail = b""
    growing: dict[bytes, bytes] = {}
    for key, body in pages:
        if key == MACHINE_KEY:
            version, *fields = cbor2.loads(body)
            if not 1 <= version <= FORMAT:
                raise CorruptRecord(f"image format {version} is not known to this version (knows 1 to {FORMAT})")
            m.cluster, m.secret, m.now, m.wall, *agreed, m.incarnations = fields
            m.version = agreed[0] if agreed else 1
            if len(agreed) > 1:
                m.tally.tasks_given, m.tally.delayed_taken, *window = agreed[1]
                m.window = Window(*window)
            check_version(m.version, version_max)
        elif key[:1] == b"s":
            sessions.extend(cbor2.loads(body))
        elif key == BOOK_KEY:
            m.book.load(body)
        elif key == TABLE_KEY:
            counts = m.far.load_table(body)
        elif key == TAIL_KEY:
            tail = body
        elif key[:1] == BLOCKS_PREFIX:
            m.far.blocks.load(body)
        elif key[:1] == PAGE_PREFIX:
            # On disk is where it belongs.
            continue
        elif key[:1] == SEALED_PREFIX:
            continue
        elif key[:1] == GROWING_PREFIX:
            growing[key] = body
        else:
            _, uid, page = _QUEUE_KEY.unpack(key)
            if page >= 0:
                batches.append((uid, page, body))
            elif page == HEADER_PAGE:
                headers.append((uid, body))
            elif page == TURNS_PAGE:
                turns.append((uid, body))
            else:
                dedup.setdefault(uid, []).extend(cbor2.loads(body))
    for uid, body in sorted(headers):
        name, settings, next_seq, next_lease, dlq_seen, cold_rows, *further = cbor2.loads(body)
        queue = m.new_queue(name, uid, Settings(**settings))
        queue.windowed = queue.settings.max_hot_messages is not None or queue.settings.max_hot_bytes is not None
        queue.next_seq = next_seq
        queue.next_lease = next_lease
        queue.dlq_seen = dlq_seen
        if further:
            queue.next_cold = further[0]
        for lane, *fields in cold_rows:
            ends = [growing.get(stretch_key(uid, lane, number)) for number in (TAIL, FRONT)]
            _restore_cold(m, queue, lane, Cold.of(fields, *ends))
    for uid, _, body in sorted(batches, key=lambda row: row[:2]):
        queue = m.by_uid[uid]
        rows = cbor2.loads(body)
        for untouched, stretch in groupby(rows, key=lambda row: len(row) == UNTOUCHED_FIELDS):
            if untouched:
                _restore_untouched(queue, list(stretch))
            else:
                for raw in stretch:
                    _restore_batch(queue, raw, m)
    for uid, messages, size, floor in counts:
        queue = m.by_uid[uid]
        queue.far_messages, queue.far_bytes, queue.far_floor = messages, size, floor
    if tail:
        m.far.load_tail(tail)
    m.far.blocks.dirty.clear()
    for uid, body in turns:
        _restore_turns(m.by_uid[uid], cbor2.loads(body))
    for queue in m.queues.values():
        _restore_held(queue)
    for uid, rows in sorted(dedup.items()):
        queue = m.by_uid[uid]
        # Ids rise with arrival, so this is the order of arrival.
        in_order = sorted(rows, key=lambda row: row[2])
        for key, end, identifier in in_order:
            queue.dedup[key] = (end, identifier)
        m.dedup_ids += len(queue.dedup)
    for queue in m.queues.values():
        queue.dirty.clear()
    _restore_sessions(m, sessions)
    m.sessions.dirty.clear()
    return m


def live_in(m: Machine, first: int, last: int) -> bool:
    """Whether a live batch may lie in the log indexes first..last (per block of 64: never wrongly False)."""
    if m.far.blocks.any_in(first, last):
        return True
    blocks = m.live_blocks
    spanned = range(first >> LIVE_SHIFT, (last >> LIVE_SHIFT) + 1)
    # The segment of a member that joined a restored copy spans the gap of 2^36 indexes that a restore leaves. The
    # list is made in one step: others change the blocks meanwhile, as this runs in a thread.
    if len(spanned) > len(blocks):
        return any(block in spanned for block in list(blocks))
    return any(block in blocks for block in spanned)


# --- another branch of history ------------------------------------------------------------------------------
# A restored copy goes on from the moment of its backup, as the original did: what both number anew must never be the
# same number, or a receipt that the original gave out after that moment would settle somebody else's message in the
# copy. Receipts from before it stay valid.
# At 100,000 leases a second the original needs five years for so many; 2^20 restores fit into 64 bits.
LEASES_SKIPPED: Final = 1 << 44
# Queues created in one shard after the backup; 2,000 restores fit into the 27 bits of an incarnation.
INCARNATIONS_SKIPPED: Final = 1 << 16


def branched(key: bytes, body: bytes) -> bytes:
    """A page of an image as a copy that goes its own way needs it: with numbers that the original will never reach.

    Raises:
        CorruptRecord: a page of a newer format, or no more numbers.
    """
    try:
        if key == MACHINE_KEY:
            version, *fields, incarnations = cbor2.loads(body)
            if not 1 <= version <= FORMAT:
                raise CorruptRecord(f"image format {version} is not known to this version (knows 1 to {FORMAT})")
            if isinstance(fields[-1], list):
                fields[-1][0] += LEASES_SKIPPED
            skipped = [number + INCARNATIONS_SKIPPED for number in incarnations]
            if max(skipped) >= INCARNATION_MAX:
                raise CorruptRecord("this data was restored too often: a shard has used up its incarnations")
            return cbor2.dumps((version, *fields, skipped))
        if key[:1] == b"q" and _QUEUE_KEY.unpack(key)[2] == HEADER_PAGE:
            name, settings, next_seq, next_lease, *rest = cbor2.loads(body)
            return cbor2.dumps((name, settings, next_seq, next_lease + LEASES_SKIPPED, *rest))
    except (cbor2.CBORError, struct.error, ValueError, TypeError) as error:
        raise CorruptRecord(f"the image of the queues cannot be read by this version: {error!r}") from error
    return body
