"""One queue: where its messages stand, and the moves between those places.

    fresh ----take----> limbo --lease--> leased --finish--> gone
      ready  <--put_ready--/  \\--put_delayed / put_backoff / put_parked--> waiting
    withdraw() takes a run out of whatever place it is in, into limbo; every limbo run is put somewhere at once.

Order. Ungrouped messages of one priority form a `Level`: `fresh` batches in sequence order, and a heap of runs that
came back. Grouped runs stand in their `Group`, lowest order first. Once a queue has groups, turns are taken round
robin among lanes (a level is one lane, named None) whose head has the highest priority; `rotation` holds who is next.

Every move first calls `mark(page)`: the image is written page by page, copy on write (see `image.py`).
Never: looks at a clock, decides when. Invariant: ready + delayed + leased + parked = sum of `live` of its batches.
"""

from __future__ import annotations

import heapq
import zlib
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from walrq.ids import SEQUENCE_BITS
from walrq.limits import BATCH_MESSAGES_MAX, PAGE_SEQUENCES
from walrq.queues.batch import (
    BACKOFF,
    DELAYED,
    GONE,
    LEASED,
    PARKED,
    READY,
    Batch,
    Lease,
    Run,
)
from walrq.queues.lanes import GROUPED, SEALED_FIRST, Cold, Group, Level, Tally, fitting, head_of, line_of, tie
from walrq.queues.sessions import DedupTable
from walrq.queues.settings import Settings
from walrq.queues.timers import BACKOFF_ENDS, DUE, TTL, TimerHeap

PAGE_SHIFT: Final = PAGE_SEQUENCES.bit_length() - 1
assert 1 << PAGE_SHIFT == PAGE_SEQUENCES
# A batch stands in the page of its first sequence, so a message may be this many pages behind.
_PAGES_BACK: Final = (BATCH_MESSAGES_MAX >> PAGE_SHIFT) + 1
# Blocks of log indexes in which live batches are counted, for the reclaim of segments.
LIVE_SHIFT: Final = 6

# Pages that hold no batches.
HEADER_PAGE: Final = -1
TURNS_PAGE: Final = -2

# Dedup ids are imaged in this many pages per queue, numbered downwards from DEDUP_PAGE_FIRST.
DEDUP_BUCKETS: Final = 64
DEDUP_PAGE_FIRST: Final = -100


def dedup_page(key: str) -> int:
    """The page of a dedup id (CRC-32: the same on every machine, unlike `hash`)."""
    return DEDUP_PAGE_FIRST - zlib.crc32(key.encode()) % DEDUP_BUCKETS


class Queue:
    """See the module."""

    __slots__ = (
        "acked",
        "bytes",
        "cold",
        "dedup",
        "delayed",
        "delivered",
        "dirty",
        "dlq_seen",
        "far_bytes",
        "far_floor",
        "far_messages",
        "first_touch",
        "groups",
        "held",
        "lease_timers",
        "leased",
        "leases",
        "levels",
        "live_blocks",
        "moved_in",
        "name",
        "next_cold",
        "next_lease",
        "next_seq",
        "origins",
        "pages",
        "parked",
        "parked_runs",
        "pushed",
        "ready",
        "rotation",
        "settings",
        "tally",
        "thirst",
        "tops",
        "uid",
        "wall_timers",
        "windowed",
    )

    def __init__(
        self,
        name: str,
        uid: int,
        settings: Settings,
        lease_timers: TimerHeap,
        wall_timers: TimerHeap,
        live_blocks: dict[int, int],
        tally: Tally,
        first_touch: Callable[[Queue, int], None],
        thirst: dict[int, None],
    ) -> None:
        self.name = name
        self.uid = uid
        self.settings = settings
        self.next_seq = 1
        self.next_lease = 1
        self.levels: dict[int, Level] = {}
        # Priorities with something ready, hot or cold, ascending: those of `levels`.
        self.tops: list[int] = []
        self.groups: dict[str, Group] = {}
        # Ordered dictionaries, here and for `dedup`: the first entry of a plain one that loses its first entry over
        # and over is found by a walk over all that were lost.
        self.rotation: dict[int, OrderedDict[str | None, None]] = {}
        self.cold: dict[int, Cold] = {}
        # The number of the next stretch that is sealed: never given twice.
        self.next_cold = SEALED_FIRST
        # It has a hot window of its own.
        self.windowed = False
        # Groups without a turn only because their head stands beyond the border.
        self.held: set[str] = set()
        self.leases: dict[int, Lease] = {}
        self.parked_runs: dict[int, Run] = {}
        self.pages: dict[int, dict[int, Batch]] = {}
        # Batches with an origin, by sequence, below all of their id but the sequence in it: found by their kept id.
        self.moved_in: dict[int, dict[int, Batch]] = {}
        # Dead messages in this queue by the name of the queue they died in.
        self.origins: dict[str, int] = {}
        # dedup id -> (end on the lease clock, message id), in order of arrival.
        self.dedup = DedupTable(dedup_page)
        self.ready = 0
        # Delayed and in back-off.
        self.delayed = 0
        self.leased = 0
        self.parked = 0
        self.bytes = 0
        # Beyond the horizon: messages and bytes; rows with a sequence below the floor are gone.
        self.far_messages = 0
        self.far_bytes = 0
        self.far_floor = 0
        # Messages pushed, leased and acknowledged since this object was made. For the eye only: not in the image, so
        # replicas may differ in them, and nothing that decides may look at them.
        self.pushed = 0
        self.delivered = 0
        self.acked = 0
        self.dlq_seen = False
        self.dirty: set[int] = set()
        self.lease_timers = lease_timers
        self.wall_timers = wall_timers
        self.live_blocks = live_blocks
        self.tally = tally
        self.first_touch = first_touch
        # Uids of queues that have something cold and whose window may have room. For a leader, not part of the state.
        self.thirst = thirst

    # --- pages ----------------------------------------------------------------------------------------------
    def mark(self, page: int) -> None:
        """Say that `page` is about to change (before it does)."""
        if page not in self.dirty:
            self.first_touch(self, page)

    def mark_dedup(self, key: str) -> None:
        """Say that the page of a dedup id is about to change."""
        self.mark(dedup_page(key))

    @property
    def length(self) -> int:
        """Messages in all states."""
        return self.ready + self.delayed + self.leased + self.parked

    def add_batch(self, batch: Batch) -> None:
        """Take a batch in (its messages are placed by the caller at once)."""
        page = batch.seq >> PAGE_SHIFT
        if page not in self.dirty:
            self.first_touch(self, page)
        batches = self.pages.get(page)
        if batches is None:
            self.pages[page] = {batch.seq: batch}
        else:
            batches[batch.seq] = batch
        size = batch.bytes_of(0, batch.count - 1) if batch.count != batch.total else batch.size
        self.bytes += size
        self.tally.messages += batch.count
        self.tally.bytes += size
        block = batch.index >> LIVE_SHIFT
        self.live_blocks[block] = self.live_blocks.get(block, 0) + 1
        origin = batch.origin
        if origin is not None:
            self.moved_in.setdefault(origin.first_id >> SEQUENCE_BITS, {})[batch.seq] = batch
            if origin.queue is not None:
                self.origins[origin.queue] = self.origins.get(origin.queue, 0) + batch.count
        if batch.expire_ms:
            self.wall_timers.add(batch.expire_ms, self.uid, TTL, batch.seq, batch)

    def keep_order(self, touched: set[int]) -> None:
        """After batches came back between others (`touched`: their pages): all walks go in order of insertion, so
        that order must be the order of sequences."""
        for page in touched & self.pages.keys():
            self.pages[page] = dict(sorted(self.pages[page].items()))
        self.pages = dict(sorted(self.pages.items()))

    def finish(self, run: Run) -> None:
        """A limbo run's messages are gone for good."""
        # inv: SettledIsFinal  (the run stands nowhere any more, and its number is never given again)
        batch = run.batch
        assert run.state == GONE, run.state
        assert batch.pieces is not None
        del batch.pieces[run.first]
        self._gone(batch, run.first, run.last)

    def _gone(self, batch: Batch, first: int, last: int) -> None:
        """Account for messages first..last, which stand nowhere any more."""
        self.mark(batch.seq >> PAGE_SHIFT)
        number = last - first + 1
        # inv: Conservation
        batch.live -= number
        size = batch.bytes_of(first, last) if number != batch.total else batch.size
        self.bytes -= size
        self.tally.messages -= number
        self.tally.bytes -= size
        if self.cold:
            self.thirst[self.uid] = None
        origin = batch.origin
        if origin is not None and origin.queue is not None:
            left = self.origins[origin.queue] - number
            if left:
                self.origins[origin.queue] = left
            else:
                del self.origins[origin.queue]
        if batch.live == 0:
            page = batch.seq >> PAGE_SHIFT
            batches = self.pages[page]
            del batches[batch.seq]
            if not batches:
                del self.pages[page]
            block = batch.index >> LIVE_SHIFT
            count_left = self.live_blocks[block] - 1
            if count_left:
                self.live_blocks[block] = count_left
            else:
                del self.live_blocks[block]
            if origin is not None:
                moved = self.moved_in[origin.first_id >> SEQUENCE_BITS]
                del moved[batch.seq]
                if not moved:
                    del self.moved_in[origin.first_id >> SEQUENCE_BITS]

    def rejoin(self, batch: Batch, first: int, number: int) -> None:
        """Messages of a batch that were accounted as gone are back; the caller places them at once."""
        self.mark(batch.seq >> PAGE_SHIFT)
        # inv: Conservation
        batch.live += number
        size = batch.bytes_of(first, first + number - 1)
        self.bytes += size
        self.tally.messages += number
        self.tally.bytes += size
        origin = batch.origin
        if origin is not None and origin.queue is not None:
            self.origins[origin.queue] = self.origins.get(origin.queue, 0) + number

    def burn(self, batch: Batch, first: int, last: int) -> None:
        """Messages first..last of a batch not yet placed are not stored (dedup hits)."""
        self._gone(batch, first, last)

    def take_sequences(self, number: int) -> int:
        """The first of `number` consecutive sequences."""
        self.mark(HEADER_PAGE)
        first = self.next_seq
        self.next_seq = first + number
        return first

    def batches(self) -> Iterator[Batch]:
        """All batches by sequence; the queue may change while the caller walks.

        Sequences only grow, so pages, and batches within a page, were inserted in that order (`keep_order` for those
        that come back).
        """
        pages = self.pages
        for page in list(pages):
            yield from list(pages.get(page, {}).values())

    def find(self, sequence: int) -> Batch | None:
        """The batch that holds this sequence (its message may be gone all the same)."""
        page = sequence >> PAGE_SHIFT
        for number in range(page, max(-1, page - _PAGES_BACK - 1), -1):
            batches = self.pages.get(number)
            if batches is None:
                continue
            # A stretch that came back on its own may lie within what is left of its batch: the nearest one holds it.
            for batch in reversed(batches.values()):
                if batch.seq <= sequence < batch.seq + batch.count:
                    return batch
        return None

    def runs_of(self, batch: Batch) -> list[Run]:
        """All that is left of a batch as runs, by offset; a fresh rest is made into a piece first."""
        self.detach(batch)
        return sorted(batch.pieces.values(), key=lambda run: run.first) if batch.pieces else []

    # --- fresh messages -------------------------------------------------------------------------------------
    def put_fresh(self, batch: Batch) -> None:
        """All messages of an ungrouped batch become ready behind the newest sequence."""
        number = batch.count
        batch.fresh = True
        self.ready += number
        level = self.levels.get(batch.priority)
        if level is None or not level.ready:
            level = self._open(batch.priority)
        level.ready += number
        level.fresh.append(batch)

    def comes_last(self, batch: Batch) -> bool:
        """Whether a batch may stand behind all fresh ones of its level."""
        level = self.levels.get(batch.priority)
        return level is None or not level.fresh or level.fresh[-1].seq < batch.seq

    def newest_untouched(self, priority: int) -> Batch | None:
        """The newest batch of a priority if no message of it was ever touched."""
        fresh = self.levels[priority].fresh
        while fresh and not fresh[-1].fresh:
            fresh.pop()
        if not fresh:
            return None
        batch = fresh[-1]
        whole = not batch.cursor and batch.live == batch.count and batch.origin is None
        return batch if whole and batch.count == batch.total else None

    def remove_fresh(self, batch: Batch) -> None:
        """Take the newest batch of its priority, untouched, out of the queue."""
        self.mark(batch.seq >> PAGE_SHIFT)
        level = self.levels[batch.priority]
        assert level.fresh[-1] is batch
        level.fresh.pop()
        batch.fresh = False
        self.ready -= batch.count
        level.ready -= batch.count
        if not level.ready:
            self._close(batch.priority)
        self._gone(batch, 0, batch.count - 1)

    def detach(self, batch: Batch) -> None:
        """Turn the fresh rest of a batch into a ready piece (something will happen to part of it)."""
        if not batch.fresh:
            return
        self.mark(batch.seq >> PAGE_SHIFT)
        batch.fresh = False
        delivery = 0 if batch.origin is None else batch.origin.delivery
        run = Run(batch, batch.cursor, batch.count - 1, batch.seq + batch.cursor, delivery, 0, None)
        run.state = READY
        self.add_piece(run)
        # Counts do not change: it was ready and is ready.
        heapq.heappush(self.levels[batch.priority].returned, (run.order, next(tie), run))

    def add_piece(self, run: Run) -> None:
        """Enter a run among its batch's pieces."""
        pieces = run.batch.pieces
        if pieces is None:
            run.batch.pieces = {run.first: run}
        else:
            pieces[run.first] = run

    # --- levels and groups ----------------------------------------------------------------------------------
    def _open(self, priority: int) -> Level:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = Level()
            insort(self.tops, priority)
            if self.groups:
                self._seat(None, priority)
        return level

    def _close(self, priority: int) -> None:
        """The level has nothing hot any more."""
        if self.cold and priority in self.cold:
            # inv: FirstDeliveryOrder  (lower ones wait until what is cold of it is back)
            return
        if self.tops[-1] == priority:
            self.tops.pop()
        else:
            self.tops.remove(priority)
        # Only stale entries are left.
        del self.levels[priority]
        if self.groups:
            self._unseat(None, priority)

    def _seat(self, lane: str | None, priority: int) -> None:
        self.mark(TURNS_PAGE)
        turns = self.rotation.get(priority)
        if turns is None:
            self.rotation[priority] = OrderedDict({lane: None})
        else:
            turns.pop(lane, None)
            turns[lane] = None

    def _unseat(self, lane: str | None, priority: int) -> None:
        self.mark(TURNS_PAGE)
        turns = self.rotation[priority]
        del turns[lane]
        if not turns:
            del self.rotation[priority]

    def _group(self, key: str) -> Group:
        group = self.groups.get(key)
        if group is None:
            if not self.groups:
                # The first group: from now on levels take turns too.
                for priority in self.tops:
                    self._seat(None, priority)
            group = self.groups[key] = Group(key)
        return group

    def reseat(self, group: Group) -> None:
        """Put a group into the rotation, or take it out, as its state demands."""
        head = group.head()
        priority: int | None = None
        if head is not None and not group.waiting and group.in_flight < self.settings.group_limit:
            cold = self.cold.get(GROUPED) if self.cold else None
            if cold is None or head.order <= cold.floor:
                priority = head.batch.priority
            else:
                self.held.add(group.key)
        if priority != group.turn:
            if group.turn is not None:
                self._unseat(group.key, group.turn)
            group.turn = priority
            if priority is not None:
                self._seat(group.key, priority)
        if head is None and not group.in_flight and not group.waiting:
            del self.groups[group.key]
            if not self.groups and self.rotation:
                self.mark(TURNS_PAGE)
                self.rotation.clear()

    def reseat_all(self) -> None:
        """After a change of the group limit. Those that become eligible come by the order of their heads: the order
        of the dictionary is another one in a machine that was loaded from an image."""
        heads = [(head.order, group) for group in self.groups.values() if (head := group.head()) is not None]
        for _, group in sorted(heads, key=lambda pair: pair[0]):
            self.reseat(group)

    # --- what is cold ---------------------------------------------------------------------------------------
    def begin_cold(self, lane: int, floor: int) -> Cold:
        """A lane with something cold behind its hot messages."""
        self.mark(HEADER_PAGE)
        cold = self.cold[lane] = Cold(floor)
        if lane != GROUPED:
            self._open(lane)
        return cold

    def end_cold(self, lane: int) -> None:
        """Nothing of a lane is cold any more."""
        self.mark(HEADER_PAGE)
        del self.cold[lane]
        if lane != GROUPED and not self.levels[lane].ready:
            self._close(lane)
        elif lane == GROUPED:
            self.release_held()

    def border(self, priority: int) -> int | None:
        """Ungrouped messages of a higher order wait until those before them are back; None: none waits."""
        cold = self.cold.get(priority)
        grouped = self.cold.get(GROUPED)
        if grouped is None or priority not in grouped.mixed:
            return cold.floor if cold is not None else None
        return min(cold.floor, grouped.floor) if cold is not None else grouped.floor

    def is_dry(self, lane: int) -> bool:
        """Whether what comes next of a lane is cold, if anything of it is."""
        if lane == GROUPED:
            # A level whose next message stands among cold groups holds up all levels below it.
            waits = any(priority in self.levels and self.is_dry(priority) for priority in self.cold[GROUPED].mixed)
            return waits or (self.no_group_is_next and (bool(self.held) or not self.groups))
        level = self.levels[lane]
        fresh = next((batch for batch in level.fresh if batch.fresh), None)
        return self._is_dry(lane, fresh, head_of(level.returned))

    @property
    def no_group_is_next(self) -> bool:
        """All groups that are hot wait, for their own consumers or for what is cold."""
        return all(each is None for turns in self.rotation.values() for each in turns)

    def release_held(self) -> None:
        """The border of groups has moved: those whose head it lies behind now take part, in order of their heads."""
        if not self.held:
            return
        keys, self.held = self.held, set()
        heads = [
            (head.order, group)
            for key in keys
            if (group := self.groups.get(key)) is not None and (head := group.head()) is not None
        ]
        for _, group in sorted(heads, key=lambda pair: pair[0]):
            self.reseat(group)

    # --- putting limbo runs somewhere -----------------------------------------------------------------------
    def put_ready(self, run: Run) -> None:
        """To its own place among the ready ones."""
        batch = run.batch
        self.mark(batch.seq >> PAGE_SHIFT)
        self.add_piece(run)
        run.state = READY
        run.deadline = 0
        number = run.last - run.first + 1
        self.ready += number
        if run.group is None:
            level = self.levels.get(batch.priority)
            if level is None or not level.ready:
                level = self._open(batch.priority)
            level.ready += number
            heapq.heappush(level.returned, (run.order, next(tie), run))
        else:
            group = self._group(run.group)
            group.ready += number
            heapq.heappush(group.heap, (run.order, next(tie), run))
            self.reseat(group)

    def put_delayed(self, run: Run, due_ms: int) -> None:
        """Not before `due_ms` on the wall clock; blocks nobody."""
        self.mark(run.batch.seq >> PAGE_SHIFT)
        self.add_piece(run)
        run.state = DELAYED
        run.deadline = due_ms
        self.delayed += run.last - run.first + 1
        self.wall_timers.add(due_ms, self.uid, DUE, run.order, run)

    def put_backoff(self, run: Run, until_ms: int) -> None:
        """Not before `until_ms` on the lease clock; its group waits."""
        self.mark(run.batch.seq >> PAGE_SHIFT)
        self.add_piece(run)
        run.state = BACKOFF
        run.deadline = until_ms
        number = run.last - run.first + 1
        self.delayed += number
        if run.group is not None:
            group = self._group(run.group)
            group.waiting += number
            self.reseat(group)
        self.lease_timers.add(until_ms, self.uid, BACKOFF_ENDS, run.order, run)

    def put_parked(self, run: Run) -> None:
        """Dead without a dead-letter queue; `run.order` is its place in the order of death."""
        self.mark(run.batch.seq >> PAGE_SHIFT)
        self.add_piece(run)
        run.state = PARKED
        run.deadline = 0
        self.parked_runs[run.order] = run
        self.parked += run.last - run.first + 1

    def put_leased(self, run: Run, lease: Lease, deadline_ms: int) -> None:
        """Into a lease; the caller sets the timer."""
        batch = run.batch
        page = batch.seq >> PAGE_SHIFT
        if page not in self.dirty:
            self.first_touch(self, page)
        pieces = batch.pieces
        if pieces is None:
            batch.pieces = {run.first: run}
        else:
            pieces[run.first] = run
        run.state = LEASED
        run.deadline = deadline_ms
        run.lease = lease
        lease.add(run)
        number = run.last - run.first + 1
        self.leased += number
        if run.group is not None:
            group = self._group(run.group)
            group.in_flight += number
            self.reseat(group)

    # --- taking runs out ------------------------------------------------------------------------------------
    def withdraw(self, run: Run) -> None:
        """Take a run out of the place it is in, into limbo (it stays a piece until put or finished)."""
        self.mark(run.batch.seq >> PAGE_SHIFT)
        number = run.last - run.first + 1
        state = run.state
        run.state = GONE
        if state == READY:
            self._unready(run, number)
        elif state == LEASED:
            self.leased -= number
            lease = run.lease
            assert lease is not None
            run.lease = None
            lease.remove(run)
            if not lease.runs:
                del self.leases[lease.number]
                self.tally.leases -= 1
                if lease.task:
                    # inv: AckFenced  (a task number is valid for its one delivery)
                    del self.tally.tasks[lease.task]
            if run.group is not None:
                group = self.groups[run.group]
                group.in_flight -= number
                self.reseat(group)
        elif state == DELAYED:
            self.delayed -= number
        elif state == BACKOFF:
            self.delayed -= number
            if run.group is not None:
                group = self.groups[run.group]
                group.waiting -= number
                self.reseat(group)
        else:
            assert state == PARKED, state
            self.parked -= number
            del self.parked_runs[run.order]

    def _unready(self, run: Run, number: int) -> None:
        self.ready -= number
        if run.group is None:
            priority = run.batch.priority
            level = self.levels[priority]
            level.ready -= number
            if not level.ready:
                self._close(priority)
        else:
            group = self.groups[run.group]
            group.ready -= number
            self.reseat(group)

    def carve(self, run: Run, first: int, last: int) -> Run:
        """Withdraw only first..last of a run; what remains on either side stays where it is."""
        if first == run.first and last == run.last:
            self.withdraw(run)
            return run
        state = run.state
        lease = run.lease
        lane = self.groups.get(run.group) if run.group is not None else None
        deadline = run.deadline
        if lease is not None:
            self.leases.pop(lease.number)
        self._withdraw_quietly(run)
        pieces = run.batch.pieces
        assert pieces is not None
        del pieces[run.first]
        for a, b in ((run.first, first - 1), (last + 1, run.last)):
            if a <= b:
                self._put_back(run.part(a, b), state, deadline, lease)
        if lease is not None:
            self.leases[lease.number] = lease
        taken = run.part(first, last)
        self.add_piece(taken)
        if lane is not None:
            self.reseat(lane)
        return taken

    def _withdraw_quietly(self, run: Run) -> None:
        """As withdraw, for a run whose rest comes back at once: its lease and its lane's seat are kept."""
        self.mark(run.batch.seq >> PAGE_SHIFT)
        number = run.last - run.first + 1
        state = run.state
        run.state = GONE
        # A delayed or parked run stands outside its group, which may not even exist.
        group = self.groups.get(run.group) if run.group is not None else None
        if state == READY:
            self.ready -= number
            if group is not None:
                group.ready -= number
            else:
                self.levels[run.batch.priority].ready -= number
        elif state == LEASED:
            self.leased -= number
            assert run.lease is not None
            run.lease.remove(run)
            if group is not None:
                group.in_flight -= number
        elif state == PARKED:
            self.parked -= number
            del self.parked_runs[run.order]
        else:
            self.delayed -= number
            if state == BACKOFF and group is not None:
                group.waiting -= number

    def _put_back(self, run: Run, state: int, deadline: int, lease: Lease | None) -> None:
        self.add_piece(run)
        run.state = state
        run.deadline = deadline
        number = run.last - run.first + 1
        # A delayed or parked run stands outside its group, which may not even exist.
        group = self.groups.get(run.group) if run.group is not None else None
        if state == READY:
            self.ready += number
            if group is not None:
                group.ready += number
                heapq.heappush(group.heap, (run.order, next(tie), run))
            else:
                level = self.levels[run.batch.priority]
                level.ready += number
                heapq.heappush(level.returned, (run.order, next(tie), run))
        elif state == LEASED:
            assert lease is not None
            self.leased += number
            run.lease = lease
            lease.add(run)
            if group is not None:
                group.in_flight += number
        elif state == PARKED:
            self.parked += number
            self.parked_runs[run.order] = run
        elif state == BACKOFF:
            self.delayed += number
            if group is not None:
                group.waiting += number
            self.lease_timers.add(deadline, self.uid, BACKOFF_ENDS, run.order, run)
        else:
            self.delayed += number
            self.wall_timers.add(deadline, self.uid, DUE, run.order, run)

    # --- taking what is next --------------------------------------------------------------------------------
    def take(self, limit: int, bytes_limit: int, place: Callable[[Run], None]) -> int:
        """Hand the next ready messages to `place`, run by run, in order of delivery.

        At most `limit` messages; at least one if there is any, else as many as fit `bytes_limit`. `place` gets limbo
        runs and puts each somewhere before it returns. Returns how many messages were taken.
        """
        # inv: FirstDeliveryOrder
        left = limit
        while left > 0:
            must = left == limit
            # Asked anew each time: the last group may have gone with its last message.
            if self.groups:
                run = self._take_turn(left, bytes_limit, must, place)
                if run is None:
                    break
            elif self.tops:
                run = self._take_level(self.tops[-1], left, bytes_limit, must)
                if run is None:
                    break
                place(run)
            else:
                break
            left -= run.last - run.first + 1
            if left > 0:
                bytes_limit -= run.batch.bytes_of(run.first, run.last)
        if self.cold:
            self.thirst[self.uid] = None
        return limit - left

    def takeable(self) -> int:
        """How many messages `take` would hand out if each left the queue: all ready ones whose group does not wait."""
        if self.cold:
            return sum(1 for _ in self.upcoming())
        if not self.groups:
            return self.ready
        return self.ready - sum(group.ready for group in self.groups.values() if group.turn is None)

    def upcoming(self) -> Iterator[tuple[Batch, int]]:
        """(batch, offset) of what `take` would hand out, message by message, if each left the queue at once."""
        rotation = {p: list(turns) for p, turns in self.rotation.items()}
        if not self.groups:
            rotation = {priority: [None] for priority in self.tops}
        lines: dict[tuple[str | None, int], Iterator[tuple[int, Batch, int]]] = {}
        heads: dict[tuple[str | None, int], tuple[int, Batch, int]] = {}
        for priority, lanes in rotation.items():
            for lane in lanes:
                border = self._border_of(lane, priority)
                line = line_of(self.groups[lane].heap if lane is not None else self.levels[priority], border)
                key = (lane, priority if lane is None else -1)
                head = next(line, None)
                if head is not None:
                    heads[key] = head
                lines[key] = line
        while rotation:
            priority = max(rotation)
            lane = rotation[priority].pop(0)
            if not rotation[priority]:
                del rotation[priority]
            key = (lane, priority if lane is None else -1)
            if key not in heads:
                # What comes next is cold.
                return
            _, batch, offset = heads[key]
            yield batch, offset
            following = next(lines[key], None)
            if following is None and self.cold and lane is None and self.border(priority) is not None:
                rotation.setdefault(priority, []).append(lane)
                del heads[key]
            elif following is not None:
                heads[key] = following
                rotation.setdefault(following[1].priority, []).append(lane)

    def _border_of(self, lane: str | None, priority: int) -> int | None:
        if not self.cold:
            return None
        if lane is None:
            return self.border(priority)
        grouped = self.cold.get(GROUPED)
        return grouped.floor if grouped is not None else None

    def _take_level(self, priority: int, limit: int, bytes_limit: int, must: bool) -> Run | None:
        """Up to `limit` messages of one level as one run; None when not even one fits (unless it must)."""
        level = self.levels[priority]
        fresh = level.fresh
        while fresh and not fresh[0].fresh:
            fresh.popleft()
        returned = head_of(level.returned) if level.returned else None
        if self.cold and self._is_dry(priority, fresh[0] if fresh else None, returned):
            return None
        if returned is not None and (not fresh or returned.order < fresh[0].seq + fresh[0].cursor):
            batch = returned.batch
            number = min(limit, returned.last - returned.first + 1)
            if batch.size > bytes_limit:
                number = fitting(batch, returned.first, number, bytes_limit, must)
                if not number:
                    return None
            heapq.heappop(level.returned)
            return self._take_part(returned, number)
        batch = fresh[0]
        self.mark(batch.seq >> PAGE_SHIFT)
        first = batch.cursor
        number = batch.count - first
        if number > limit:
            number = limit
        if batch.size > bytes_limit:
            number = fitting(batch, first, number, bytes_limit, must)
            if not number:
                return None
        origin = batch.origin
        run = Run(
            batch, first, first + number - 1, batch.seq + first, 0 if origin is None else origin.delivery, 0, None
        )
        batch.cursor = first + number
        if batch.cursor == batch.count:
            batch.fresh = False
            fresh.popleft()
        self.ready -= number
        level.ready -= number
        if not level.ready:
            self._close(priority)
        pieces = batch.pieces
        if pieces is None:
            batch.pieces = {first: run}
        else:
            pieces[first] = run
        return run

    def _is_dry(self, priority: int, fresh: Batch | None, returned: Run | None) -> bool:
        """Whether what comes next of a level is cold."""
        if fresh is None and returned is None:
            return True
        border = self.border(priority)
        orders = ([] if fresh is None else [fresh.seq + fresh.cursor]) + ([] if returned is None else [returned.order])
        return border is not None and min(orders) > border

    def _take_part(self, run: Run, number: int) -> Run:
        """The first `number` messages of a ready run that was just popped from its heap."""
        if number == run.last - run.first + 1:
            self.withdraw(run)
            return run
        return self.carve(run, run.first, run.first + number - 1)

    def _take_turn(self, limit: int, bytes_limit: int, must: bool, place: Callable[[Run], None]) -> Run | None:
        """One turn of the lane that is next: what was taken and placed, None when nothing is eligible or fits."""
        if not self.rotation:
            return None
        # inv: GroupLimit  (a group at its limit has no seat in the rotation)
        priority = max(self.rotation)
        turns = self.rotation[priority]
        lane = next(iter(turns))
        if lane is None:
            taken = self._take_level(priority, limit if len(turns) == 1 else 1, bytes_limit, must)
            if taken is None:
                return None
            run = taken
        else:
            group = self.groups[lane]
            head = group.head()
            assert head is not None
            if not fitting(head.batch, head.first, 1, bytes_limit, must):
                return None
            heapq.heappop(group.heap)
            run = self._take_part(head, 1)
        place(run)
        # A lane that is still eligible after its turn goes to the end.
        if lane in self.rotation.get(priority, ()):
            self._seat(lane, priority)
        return run
