"""The promises of docs/guarantees.md as checks, each under its own name, for the simulator.

`check_machine` looks into one state machine: everything is counted again from its batches. `Ledger` reads the log,
entry by entry, with the answers it gave: who holds what, what was settled, what may not happen any more. Neither
knows how the machine decides. A broken promise raises `Broken`; its text starts with the promise's name.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import attrs

from walrq import api
from walrq.errors import Code
from walrq.far.rows import PageView, Row
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.batch import BACKOFF, DELAYED, LEASED, PARKED, READY, Batch, Run
from walrq.queues.horizon import opened, sequence_of
from walrq.queues.lanes import GROUPED, Cold, rows_of
from walrq.queues.machine import Machine
from walrq.queues.queue import LIVE_SHIFT, Queue
from walrq.queues.timers import owner

# What a session answers instead of executing; nothing happened because of it.
UNEXECUTED: Final = frozenset({int(Code.SESSION_ENDED), int(Code.OUTCOME_UNKNOWN), int(Code.OVERLOADED)})
# Rates of monotonic clocks differ by less than this many parts in a thousand in the simulator.
RATE_PER_MILLE: Final = 2


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 400
_brief.maxset = _brief.maxlist = _brief.maxtuple = 12


class Broken(AssertionError):
    """A promise does not hold; the text starts with its name."""


def promise(name: str, holds: bool, *facts: object) -> None:
    """Raise `Broken` unless `holds`."""
    if not holds:
        raise Broken(f"{name}: {', '.join(map(_brief.repr, facts))}")


# --- one machine --------------------------------------------------------------------------------------------
ReadPage: TypeAlias = Callable[[int, int, int], bytes | None]
"""(uid, lane, number) to the page of a stretch of cold batches."""


def check_machine(m: Machine, read: ReadPage | None = None) -> set[int]:
    """Count everything again and compare; the ids of all messages.

    Args:
        read: reads what is cold and not in memory.
    """
    ids: set[int] = set()
    blocks: dict[int, int] = {}
    for queue in m.queues.values():
        _check_queue(m, queue, ids)
        _count_blocks(queue, blocks)
        for lane, cold in queue.cold.items():
            _check_cold(queue, lane, cold, ids, blocks, read)
    promise("EveryLiveReadable", blocks == m.live_blocks, "live blocks", blocks, m.live_blocks)
    _check_sums(m)
    return ids


def _count_blocks(queue: Queue, blocks: dict[int, int]) -> None:
    for batch in queue.batches():
        block = batch.index >> LIVE_SHIFT
        blocks[block] = blocks.get(block, 0) + 1


def _check_cold(
    queue: Queue, lane: int, cold: Cold, ids: set[int], blocks: dict[int, int], read: ReadPage | None = None
) -> None:
    """What is cold of a lane is what its counters and its directory say, in order, and nowhere else."""
    counted: dict[int, int] = {}
    messages = size = rows = 0
    border = cold.floor
    for stretch in cold.stretches():
        page = cold.page(stretch.number)
        if page is None and read is not None:
            page = read(queue.uid, lane, stretch.number)
        promise("EveryLiveReadable", page is not None, "a stretch without a page", queue.name, lane, stretch.number)
        assert page is not None
        left = 0
        for row in rows_of(page):
            if sequence_of(row) in stretch.taken:
                continue
            batch = opened(row)
            promise("FirstDeliveryOrder", batch.seq > border, "cold out of order", queue.name, lane, batch.seq, border)
            border = batch.seq + batch.count - 1
            runs = list(batch.pieces.values()) if batch.pieces else []
            stretches = [(run.first, run.last) for run in runs] or [(0, batch.count - 1)]
            size += _check_batch(queue, batch, stretches, ids)
            left += batch.live
            rows += 1
            counted[batch.index >> LIVE_SHIFT] = counted.get(batch.index >> LIVE_SHIFT, 0) + 1
        promise("Conservation", left == stretch.messages, "a stretch", queue.name, lane, stretch.number, left)
        messages += left
    facts = (cold.messages + cold.owed, cold.batches, cold.bytes if not cold.owed else size, cold.blocks)
    promise("Conservation", facts == (messages, rows, size, counted), "cold", queue.name, lane, facts, messages, size)
    for block, number in counted.items():
        blocks[block] = blocks.get(block, 0) + number


def _check_sums(m: Machine) -> None:
    leases = sum(len(queue.leases) for queue in m.queues.values())
    promise("Exclusive", leases == m.tally.leases, "leases", leases, m.tally.leases)
    parked = {queue.uid for queue in m.queues.values() if queue.parked_runs}
    promise("Conservation", parked <= m.parked, "a queue with parked messages is not watched", parked, m.parked)
    for session in m.sessions.table.values():
        lowest = min(session.results, default=session.lowest)
        promise("AtMostOnce", lowest >= session.lowest, "a result below the lowest", session.number)


class Watch:
    """`check_machine` after every entry, of what the entry changed: a queue marks the pages of it that differ.

    The machine is one of which nobody takes images: the marks are this object's to clear. Now and then everything is
    counted, so that a mark that is missing is noticed as well.

    What waits beyond the horizon is counted as well: the machine keeps all its sealed pages in memory.

    Attributes:
        ids: of all messages in the machine.
    """

    ALL_EVERY: Final = 25

    def __init__(self, machine: Machine) -> None:
        self.ids: set[int] = set()
        self._far: set[int] = set()
        self._machine = machine
        self._of: dict[int, tuple[set[int], dict[int, int]]] = {}
        self._looks = 0

    def look(self) -> tuple[set[int], set[int]]:
        """After an entry: the ids that came, and those that went."""
        m = self._machine
        self._looks += 1
        came: set[int] = set()
        went: set[int] = set()
        for uid in [uid for uid in self._of if uid not in m.by_uid]:
            went |= self._of.pop(uid)[0]
        for queue in m.queues.values():
            if queue.dirty:
                queue.dirty.clear()
                ids: set[int] = set()
                blocks: dict[int, int] = {}
                _check_queue(m, queue, ids)
                _count_blocks(queue, blocks)
                for lane, cold in queue.cold.items():
                    _check_cold(queue, lane, cold, ids, blocks)
                before = self._of[queue.uid][0] if queue.uid in self._of else set[int]()
                came |= ids - before
                went |= before - ids
                self._of[queue.uid] = ids, blocks
        far = check_far(m)
        came |= far - self._far
        went |= self._far - far
        self._far = far
        moved = came & went
        self.ids = (self.ids - went) | came
        number = sum(len(ids) for ids, _ in self._of.values()) + len(far)
        promise("Conservation", number == len(self.ids), "an id in two places")
        total: dict[int, int] = {}
        for _, counts in self._of.values():
            for block, number in counts.items():
                total[block] = total.get(block, 0) + number
        promise("EveryLiveReadable", total == m.live_blocks, "live blocks", total, m.live_blocks)
        _check_sums(m)
        if self._looks % self.ALL_EVERY == 0:
            promise("Conservation", check_machine(m) == self.ids - far, "a change without a mark")
        return came - moved, went - moved


def far_rows(m: Machine) -> list[Row]:
    """Everything that waits beyond the horizon, of a machine whose sealed pages are all in memory."""
    far = m.far
    rows = list(far.tail())
    for page in far.pages.values():
        view = PageView(far.unsaved[page.number], page.rows)
        rows += [view.row(position) for position in range(page.rows) if page.is_there(position)]
    return [row for row in rows if owner(m, row) is not None]


def check_far(m: Machine) -> set[int]:
    """Count again what waits beyond the horizon; the ids of all messages there."""
    ids: set[int] = set()
    counts: dict[int, tuple[int, int]] = {}
    number = 0
    for row in far_rows(m):
        # inv: Conservation
        promise("DelayNotEarly", row.key >= m.far.frontier, "a row below the frontier", row, m.far.frontier)
        messages, size = counts.get(row.uid, (0, 0))
        counts[row.uid] = messages + row.count, size + row.weight
        ids.update(range(row.first_id, row.first_id + row.count))
        number += row.count
        promise("EveryLiveReadable", m.far.blocks.any_in(row.index, row.index), "a block that is not counted", row)
    promise("Conservation", len(ids) == number, "an id twice beyond the horizon")
    known = {uid: (queue.far_messages, queue.far_bytes) for uid, queue in m.by_uid.items() if queue.far_messages}
    promise("Conservation", known == counts, "counters beyond the horizon", known, counts)
    if not m.far.pages:
        # inv: Conservation  (nothing holds the log for ever)
        blocks = dict(m.far.blocks.items())
        rows = list(m.far.tail())
        promise("EveryLiveReadable", sum(blocks.values()) == len(rows), "blocks beyond the horizon", blocks, rows)
    return ids


def _check_queue(m: Machine, queue: Queue, ids: set[int]) -> None:
    counts = {READY: 0, DELAYED: 0, LEASED: 0, PARKED: 0, BACKOFF: 0}
    size = 0
    held: dict[int, list[Run]] = {}
    lanes: dict[object, int] = {}
    in_flight: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for batch in queue.batches():
        stretches = [(run.first, run.last) for run in batch.pieces.values()] if batch.pieces else []
        if batch.fresh:
            number = batch.count - batch.cursor
            stretches.append((batch.cursor, batch.count - 1))
            counts[READY] += number
            lanes[batch.priority] = lanes.get(batch.priority, 0) + number
        for run in batch.pieces.values() if batch.pieces else ():
            number = run.last - run.first + 1
            counts[run.state] += number
            if run.state == LEASED:
                assert run.lease is not None
                held.setdefault(run.lease.number, []).append(run)
            if run.state == READY:
                lane = batch.priority if run.group is None else run.group
                lanes[lane] = lanes.get(lane, 0) + number
            elif run.group is not None and run.state in (LEASED, BACKOFF):
                into = in_flight if run.state == LEASED else waiting
                into[run.group] = into.get(run.group, 0) + number
        size += _check_batch(queue, batch, stretches, ids)
    facts = (queue.ready, queue.delayed, queue.leased, queue.parked)
    counted = (counts[READY], counts[DELAYED] + counts[BACKOFF], counts[LEASED], counts[PARKED])
    promise("Conservation", facts == counted, "counters", queue.name, facts, counted)
    promise("Conservation", queue.bytes == size, "bytes", queue.name, queue.bytes, size)
    _check_leases(m, queue, held)
    _check_lanes(queue, lanes, in_flight, waiting)


def _check_batch(queue: Queue, batch: Batch, stretches: list[tuple[int, int]], ids: set[int]) -> int:
    """Each message of a batch is in one place, and nowhere else in the machine; the bytes of all."""
    size = number = 0
    next_free = 0
    known = len(ids)
    for first, last in sorted(stretches):
        promise("Conservation", next_free <= first <= last, "two places", queue.name, batch.seq, stretches)
        next_free = last + 1
        number += last - first + 1
        size += batch.bytes_of(first, last)
        ids.update(range(batch.id_of(queue.uid, first), batch.id_of(queue.uid, last) + 1))
    promise("Conservation", number == batch.live > 0, "live", queue.name, batch.seq, stretches, batch.live)
    promise("Conservation", len(ids) == known + number, "an id twice", queue.name, batch.seq)
    return size


def _check_leases(m: Machine, queue: Queue, held: dict[int, list[Run]]) -> None:
    promise("Exclusive", set(held) == set(queue.leases), "leases", queue.name, set(held), set(queue.leases))
    next_ms = m.next_lease_deadline()
    for number, runs in held.items():
        lease = queue.leases[number]
        agree = len(lease.runs) == len(runs) and all(any(run is other for other in lease.runs) for run in runs)
        promise("Exclusive", agree, "runs of a lease", queue.name, number)
        for run in runs:
            promise("NotEarly", next_ms is not None and next_ms <= run.deadline, "no timer", number, run.deadline)


def _check_lanes(queue: Queue, lanes: dict[object, int], in_flight: dict[str, int], waiting: dict[str, int]) -> None:
    known: dict[object, int] = {
        priority: level.ready for priority, level in queue.levels.items() if level.ready or priority not in queue.cold
    }
    beyond = queue.cold.get(GROUPED)
    known |= {key: group.ready for key, group in queue.groups.items() if group.ready}
    promise("Conservation", known == lanes, "lanes", queue.name, known, lanes)
    for key, group in queue.groups.items():
        facts = (group.in_flight, group.waiting)
        counted = (in_flight.get(key, 0), waiting.get(key, 0))
        promise("GroupLimit", facts == counted, "counters of a group", queue.name, key, facts, counted)
        ready = bool(group.ready) and not group.waiting and group.in_flight < queue.settings.group_limit
        head = group.head()
        if beyond is not None and head is not None and head.order > beyond.floor:
            # It waits for what is cold, if for nothing else.
            promise("FirstDeliveryOrder", not ready or key in queue.held, "nobody lets it go on", queue.name, key)
            ready = False
        promise("GroupLimit", (group.turn is not None) == ready, "the turn of a group", queue.name, key)


# --- the log ------------------------------------------------------------------------------------------------
@attrs.define
class Holding:
    """Who holds a message. `sure_until_us` is simulated true time: until then its client counts on the lease."""

    queue: str
    uid: int
    lease: int
    deadline_ms: int
    sure_until_us: int


@attrs.define
class Story:
    """What the log said of one message."""

    value: bytes
    due_ms: int
    mortal: bool
    limit: int | None
    holder: Holding | None = None
    delivery: int = 0
    fence: tuple[int, int] = (0, -1)
    # Counted attempts; None after it was moved, until the next delivery tells.
    attempts: int | None = 0
    queue: str = ""


@attrs.define
class Ledger:
    """What the log so far allows and forbids.

    Attributes:
        mark: told each time something worth covering happened, by its name.
        sent_us: when a request was first sent, in true time, by (session, sequence).
    """

    mark: Callable[[str], None]
    sent_us: dict[tuple[int, int], int] = attrs.field(factory=dict)
    stamp: c.Stamp = attrs.field(factory=lambda: c.Stamp(0, 0))
    stories: dict[int, Story] = attrs.field(factory=dict)
    values: dict[bytes, int] = attrs.field(factory=dict)
    known: dict[int, bytes] = attrs.field(factory=dict)
    gone: dict[int, str] = attrs.field(factory=dict)
    leases: dict[tuple[int, int], tuple[int, ...]] = attrs.field(factory=dict)
    answers: dict[tuple[int, int], effects.Result] = attrs.field(factory=dict)
    taken_us: int = 0
    offices: int = 0
    granted_in: dict[tuple[int, int], int] = attrs.field(factory=dict)
    _born: list[int] = attrs.field(factory=list)
    _ended: list[int] = attrs.field(factory=list)

    def entry(
        self,
        index: int,
        stamp: c.Stamp,
        tagged: Sequence[c.Tagged],
        results: Sequence[effects.Result],
        taken_us: int,
        watch: Watch,
    ) -> None:
        """Check one entry. `taken_us`: true time of its stamp; `watch`: of the machine that has just applied it."""
        old = self.stamp
        promise("ClockMonotonic", stamp.lease_ms >= old.lease_ms and stamp.wall_ms >= old.wall_ms, old, stamp)
        elapsed_us = taken_us - self.taken_us
        may_us = elapsed_us * (1000 + RATE_PER_MILLE) // 1000 + 2000
        gained_us = (stamp.lease_ms - old.lease_ms) * 1000
        promise("NotEarly", gained_us <= may_us, "the lease clock ran ahead", gained_us, may_us)
        self.stamp, self.taken_us = stamp, taken_us
        self._born, self._ended = [], []
        for ordinal, (one, result) in enumerate(zip(tagged, results, strict=True)):
            if not self._repeated(one, result):
                self._command((index, ordinal), one, result)
        came, went = watch.look()
        strange = [i for i in came if i not in self.stories] + [i for i in self._ended if i in watch.ids]
        told = [(i, self.gone.get(i)) for i in strange]
        promise("Conservation", not strange, "messages out of nowhere or back from the dead", told)
        absent = [i for i in (*went, *self._born) if i in self.stories and i not in watch.ids]
        lost = [self.stories[i].value for i in absent if not self.stories[i].mortal]
        promise("Conservation", not lost, "lost", lost)
        for identifier in dict.fromkeys(absent):
            self.mark("message ended by its ttl")
            self._end(identifier, "ttl")

    def _repeated(self, one: c.Tagged, result: effects.Result) -> bool:
        """AtMostOnce: a retried request answers as before and does nothing."""
        if one.session is None:
            return False
        if isinstance(result, api.Failed) and result.code in UNEXECUTED:
            return True
        key = (one.session, one.sequence)
        before = self.answers.get(key)
        if isinstance(result, effects.LookFar):
            promise("AtMostOnce", before is None, "answered before, and looked for now", before, result)
            return False
        if before is None:
            if not (isinstance(result, effects.Granted) and not result.runs):
                self.answers[key] = result
            return False
        self.mark("retry answered from the session table")
        if isinstance(before, effects.Granted):
            promise("AtMostOnce", isinstance(result, effects.Granted), before, result)
            assert isinstance(result, effects.Granted)
            promise("AtMostOnce", set(result.runs) <= set(before.runs), "another lease", before, result)
            named = {(run.uid, run.lease) for run in result.runs} | {(t.uid, t.lease) for t in result.ended}
            promise("AtMostOnce", named == {(run.uid, run.lease) for run in before.runs}, "run left out", named)
            for run in result.runs:
                for identifier in range(run.first_id, run.first_id + run.count):
                    promise("Exclusive", self._holds(identifier, run.uid, run.lease), "over, yet named", run)
        else:
            promise("AtMostOnce", before == result, before, result)
        return True

    def _command(self, address: tuple[int, int], one: c.Tagged, result: effects.Result) -> None:
        if isinstance(result, api.Failed):
            return
        sent_us = self.sent_us.get((one.session, one.sequence)) if one.session is not None else None
        match one.command, result:
            case c.Push() as command, api.Pushed():
                self._pushed(command, result)
            case c.Lease(), effects.Granted():
                for run in result.runs:
                    self._granted(run, address, result, sent_us)
            case c.Settle() as command, api.Settled():
                for target, code in zip(command.targets, result.codes, strict=True):
                    self._settled(command, target, code)
            case c.Touch() as command, api.Touched():
                for target, code in zip(command.targets, result.codes, strict=True):
                    self._touched(command, target, code, sent_us)
            case c.Forget() as command, api.Done(count=1):
                assert one.session is not None
                self._forgotten((one.session, command.request))
            case c.Cancel() as command, api.Outcomes():
                for identifier, outcome in zip(command.ids, result.outcomes, strict=True):
                    if outcome is api.Outcome.DONE:
                        self._free(identifier, "cancelled")
                        self.mark("message cancelled")
                        self._end(identifier, "cancelled")
            case c.Reschedule() as command, api.Outcomes((api.Outcome.DONE,)):
                self.stories[command.id].due_ms = command.deliver_at_ms
            case ((c.Redrive() | c.Move()), api.Moved(count=count)) if count:
                self.mark("dead messages redriven")
                for story in self.stories.values():
                    story.attempts = None
            case _:
                pass

    def _pushed(self, command: c.Push, result: api.Pushed) -> None:
        identifiers = result.ids or tuple(range(result.first_id, result.first_id + result.count))
        promise("AtMostOnce", len(identifiers) == command.columns.count, result)
        due_ms = command.deliver_at_ms or (self.stamp.wall_ms + command.delay_ms if command.delay_ms else 0)
        for position, (identifier, value) in enumerate(zip(identifiers, payloads(command.columns), strict=True)):
            if position in result.duplicates:
                self.mark("duplicate refused by its id")
                continue
            known = identifier in self.stories or identifier in self.gone
            promise("AtMostOnce", not known, "an id given twice", identifier)
            promise("AtMostOnce", value not in self.values, "stored twice", value)
            self.values[value] = identifier
            self.known[identifier] = value
            mortal = command.ttl_ms is not None
            self._born.append(identifier)
            self.stories[identifier] = Story(value, due_ms, mortal, command.max_attempts, queue=command.queue)

    def _granted(
        self, run: effects.Grant, fence: tuple[int, int], granted: effects.Granted, sent_us: int | None
    ) -> None:
        promise("ReceiptsRise", run.fence == fence, run.fence, fence)
        promise("ReceiptsRise", (run.uid, run.lease) not in self.leases, "a lease number twice", run)
        identifiers = tuple(range(run.first_id, run.first_id + run.count))
        self.leases[run.uid, run.lease] = identifiers
        self.granted_in[run.uid, run.lease] = self.offices
        deadline_ms = self.stamp.lease_ms + granted.visibility_ms
        length_us = (granted.parked_ms + granted.visibility_ms) * (1000 - RATE_PER_MILLE) - 2000
        sure_us = 0 if sent_us is None else sent_us + length_us
        if run.queue.endswith(".dlq"):
            self.mark("message in a dead-letter queue")
        for identifier in identifiers:
            promise("SettledIsFinal", identifier not in self.gone, self.gone.get(identifier), identifier)
            promise("NoPhantom", identifier in self.stories, "delivered, never pushed", run)
            story = self.stories[identifier]
            self._free(identifier, "leased again")
            promise("ReceiptsRise", run.delivery > story.delivery, "delivery must grow", run, story)
            promise("ReceiptsRise", fence > story.fence, "fence must grow", run, story)
            promise("NotEarly", story.due_ms <= self.stamp.wall_ms, "delivered before it was due", run, story)
            if story.due_ms and not story.delivery:
                self.mark("delayed message fired")
            self._count(story, run)
            story.delivery, story.fence, story.queue = run.delivery, fence, run.queue
            story.holder = Holding(run.queue, run.uid, run.lease, deadline_ms, sure_us)

    def _count(self, story: Story, run: effects.Grant) -> None:
        """Bound: attempts are the fails and expiries since the message came into this queue."""
        if story.holder is not None:
            self.mark("lease expired")
            if self.granted_in[story.holder.uid, story.holder.lease] != self.offices:
                self.mark("lease expired over a failover")
            if story.attempts is not None:
                story.attempts += 1
        if story.attempts is None or story.queue != run.queue:
            # A message that was moved counts afresh, by the settings of the queue it came into.
            story.attempts, story.limit = run.attempts, None
        promise("Bound", run.attempts == story.attempts, run, story)
        if story.limit is not None:
            promise("Bound", run.attempts < story.limit, run, story)

    def _free(self, identifier: int, event: str) -> None:
        """Exclusive, by the log's clock and by the clock of whoever holds it."""
        story = self.stories.get(identifier)
        holder = story.holder if story is not None else None
        if holder is not None:
            promise("Exclusive", holder.deadline_ms <= self.stamp.lease_ms, event, holder, self.stamp)
            promise("Exclusive", holder.sure_until_us <= self.taken_us, event, holder, self.taken_us)

    def _holds(self, identifier: int, uid: int, lease: int) -> bool:
        story = self.stories.get(identifier)
        holder = story.holder if story is not None else None
        return (
            holder is not None
            and (holder.uid, holder.lease) == (uid, lease)
            and holder.deadline_ms > self.stamp.lease_ms
        )

    def _named(self, target: c.Target) -> list[int]:
        """Ids that a target names: by its ranges, else all still held under it."""
        identifiers = self.leases.get((target.uid, target.lease), ())
        if target.ranges is not None:
            return [identifiers[k] for first, last in target.ranges for k in range(first, last + 1)]
        return [i for i in identifiers if self._holds(i, target.uid, target.lease)]

    def _judged(self, target: c.Target, code: int) -> list[int]:
        """AckFenced: accepted exactly when everything named is still held."""
        named = self._named(target)
        held = bool(named) and all(self._holds(i, target.uid, target.lease) for i in named)
        promise("AckFenced", held or code != 0, "accepted, but not held", target)
        promise("NotEarly", not held or code == 0, "refused while the lease runs", target, code)
        if code:
            self.mark("late settle refused")
            return []
        if self.granted_in[target.uid, target.lease] != self.offices:
            self.mark("lease outlived a failover")
        return named

    def _settled(self, command: c.Settle, target: c.Target, code: int) -> None:
        for identifier in self._judged(target, code):
            story = self.stories[identifier]
            story.holder = None
            match command.kind:
                case api.SettleKind.ACK:
                    self._end(identifier, "acked")
                case api.SettleKind.FAIL if story.attempts is not None:
                    self.mark("message failed")
                    story.attempts += 1
                case _:
                    pass

    def _touched(self, command: c.Touch, target: c.Target, code: int, sent_us: int | None) -> None:
        until_ms = self.stamp.lease_ms + command.visibility_ms
        length_us = command.visibility_ms * (1000 - RATE_PER_MILLE) - 2000
        for identifier in self._judged(target, code):
            holder = self.stories[identifier].holder
            assert holder is not None
            holder.deadline_ms = max(holder.deadline_ms, until_ms)
            if sent_us is not None:
                holder.sure_until_us = max(holder.sure_until_us, sent_us + length_us)
            self.mark("lease touched")

    def _forgotten(self, request: tuple[int, int]) -> None:
        before = self.answers.get(request)
        if isinstance(before, effects.Granted):
            for run in before.runs:
                for identifier in self._named(c.Target(run.uid, run.lease)):
                    self.stories[identifier].holder = None
                    self.mark("lease forgotten")

    def _end(self, identifier: int, how: str) -> None:
        self.gone[identifier] = how
        self._ended.append(identifier)
        self.stories.pop(identifier, None)


def payloads(columns: api.Columns) -> list[bytes]:
    """The payloads of a body, one by one."""
    ends = [int.from_bytes(columns.ends[k : k + 4], "little") for k in range(0, len(columns.ends), 4)]
    return [columns.payloads[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def values_of(bodies: Iterable[tuple[api.Columns, int, int]]) -> list[bytes]:
    """The values of some stretches of bodies: (columns, first, count)."""
    return [value for columns, first, count in bodies for value in payloads(columns)[first : first + count]]
