"""Reads ahead of the consumers: before the hot window of a queue runs dry its leader brings back what comes next.

    take, settle, ...  --> machine.thirst: queues whose window may have room
    read_ahead         --> a job: the next stretches of some of them, in turn, from memory or from the newest snapshot
    read_ahead_done    --> proposes a Hydrate for each; when they are applied it is time to look again

One job at a time, and none while its proposals are on their way: a queue is never read twice. Nothing polls: a queue is
thirsty because something was taken from it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

import attrs
import cbor2

from walrq.errors import CorruptRecord, StorageError
from walrq.ids import id_parts
from walrq.queues.batch import Batch
from walrq.queues.commands import Hydrate
from walrq.queues.horizon import hot_ready, opened, sequence_of, stretch_of
from walrq.queues.image import stretch_key
from walrq.queues.lanes import GROUPED, SEALED_FIRST, TAIL, Cold, Stretch, page_of, rows_of
from walrq.queues.machine import Machine
from walrq.queues.queue import Queue
from walrq.storage.storage import Storage

# What a window is filled up to, and half of it is when: more than consumers take while it is read and decided.
TARGET_MESSAGES: Final = 32_768
# A window that holds nothing but groups that wait may grow so many times as large, to find others.
LOOK_AHEAD: Final = 4
# What one job brings: applying it takes some milliseconds, and nobody else is served meanwhile.
JOB_ROWS: Final = 1_024
JOB_MESSAGES: Final = 65_536
# Queues that one job looks at.
JOB_QUEUES: Final = 256


@attrs.define(eq=False)
class Wanted:
    """A stretch that is to come back. `page`: the bytes of a sealed one, once they are known; `why`: it is lost."""

    uid: int
    lane: int
    stretch: int
    page: bytes | None
    why: str = ""


class ReadAhead:
    """A job: stretches of some queues, as they come next in each."""

    def __init__(self, storage: Storage, wanted: Sequence[Wanted]) -> None:
        self._storage = storage
        self.wanted = wanted

    def run(self) -> None:
        """Read. Blocking; any thread."""
        for each in self.wanted:
            if each.stretch < SEALED_FIRST or each.page is not None:
                continue
            try:
                each.page = self._storage.read_page(stretch_key(each.uid, each.lane, each.stretch))
            except (CorruptRecord, StorageError) as error:
                each.why = error.text
            else:
                if each.page is None:
                    each.why = "no snapshot has it"

    def commands(self) -> list[Hydrate]:
        """What is to be proposed, in order."""
        found = []
        unread: set[tuple[int, int]] = set()
        for each in self.wanted:
            if each.why:
                unread.add((each.uid, each.lane))
            if (each.uid, each.lane) not in unread:
                found.append(Hydrate(each.uid, each.lane, each.stretch, each.page or b""))
        return found


class Ahead:
    """See the module. One per replica; works while it leads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._job: ReadAhead | Sweep | None = None
        # Stretches that could not be read: they are not swept again, and are lost when they come up.
        self._unreadable: set[tuple[int, int, int]] = set()
        # Messages that were read ahead so far.
        self.messages = 0
        # The ticket of the last proposal that is not applied yet.
        self._ticket = 0

    def office(self, machine: Machine | None) -> None:
        """An office begins with this state, or has ended."""
        self._job = None
        self._ticket = 0
        if machine is not None:
            machine.thirst.update(dict.fromkeys(sorted(uid for uid, queue in machine.by_uid.items() if queue.cold)))

    def is_idle(self) -> bool:
        """No job, and no proposal on its way."""
        return self._job is None and not self._ticket

    def applied(self, ticket: int) -> None:
        """Proposals up to this ticket were answered."""
        if ticket >= self._ticket:
            self._ticket = 0

    def work(self, machine: Machine) -> ReadAhead | Sweep | None:
        """The next job, if there is anything to read."""
        if self._job is not None or self._ticket:
            return None
        wanted = _plan(machine) if machine.thirst else []
        if wanted:
            self._job = ReadAhead(self._storage, [each for each, _ in wanted])
            self.messages += sum(messages for _, messages in wanted)
        elif machine.cold_ends:
            self._job = _sweep(self._storage, machine, self._unreadable)
        return self._job

    def done(self, job: ReadAhead | Sweep) -> list[Hydrate]:
        """A job was run. What is to be proposed; nothing of a job of an earlier office."""
        if job is not self._job:
            return []
        self._job = None
        self._unreadable |= {(each.uid, each.lane, each.stretch) for each in job.wanted if each.why}
        return job.commands()

    def proposed(self, ticket: int) -> None:
        """The last of it has this ticket."""
        self._ticket = ticket


def _plan(machine: Machine) -> list[tuple[Wanted, int]]:
    """The next stretches of thirsty queues and their messages, one of each in turn, as far as there is room."""
    wanted: list[tuple[Wanted, int]] = []
    window, tally = machine.window, machine.tally
    messages, size = tally.messages, tally.bytes
    lines: list[tuple[int, Iterator[tuple[Wanted, Stretch, bool]]]] = []
    for uid in list(machine.thirst)[:JOB_QUEUES]:
        queue = machine.by_uid.get(uid)
        if queue is None or not queue.cold:
            del machine.thirst[uid]
        else:
            lines.append((uid, _wishes(machine, queue)))
    rows = brought = 0
    while lines and rows < JOB_ROWS and brought < JOB_MESSAGES:
        rest = []
        for uid, line in lines:
            wish = next(line, None)
            if wish is None:
                # Satisfied: whoever takes something from it says so again.
                machine.thirst.pop(uid, None)
                continue
            each, stretch, is_dry = wish
            is_full = (window.messages is not None and messages + stretch.messages > window.messages) or (
                window.bytes is not None and size + stretch.bytes > window.bytes
            )
            if is_full and not is_dry:
                machine.thirst.pop(uid, None)
                continue
            if rows and (rows + stretch.rows > JOB_ROWS or brought + stretch.messages > JOB_MESSAGES):
                # The next job begins with it.
                continue
            wanted.append((each, stretch.messages))
            rows += stretch.rows
            brought += stretch.messages
            messages += stretch.messages
            size += stretch.bytes
            rest.append((uid, line))
            # Others come first the next time.
            machine.thirst.pop(uid, None)
            machine.thirst[uid] = None
        lines = rest
    return wanted


def _wishes(machine: Machine, queue: Queue) -> Iterator[tuple[Wanted, Stretch, bool]]:
    """(what a queue wants back, its stretch, whether nothing of its lane is there), in order, until it has enough."""
    for lane in sorted(queue.cold, reverse=True):
        cold = queue.cold[lane]
        target = _target(machine, queue, lane)
        ready = hot_ready(queue, lane)
        is_dry = queue.is_dry(lane) or cold.owed > 0
        if lane == GROUPED and not is_dry and queue.no_group_is_next:
            # All groups wait for their own consumers. So far is looked for others, and no farther.
            is_dry = ready < LOOK_AHEAD * target
        if is_dry or ready < max(1, target // 2):
            for stretch in _stretches(cold):
                if ready >= target and not is_dry:
                    break
                number = stretch.number if stretch.number >= SEALED_FIRST else TAIL
                yield Wanted(queue.uid, lane, number, cold.unsaved.get(number)), stretch, is_dry
                ready += stretch.messages
                # What waits beyond the border counts for nothing as long as something before it is cold.
                is_dry = False
            else:
                # All of it is on its way, so the next lane may be wanted soon.
                continue
        if lane != GROUPED:
            # Lower priorities wait until nothing of this one is cold.
            return


def _target(machine: Machine, queue: Queue, lane: int) -> int:
    """Ready messages that a lane is to have in the window."""
    target = TARGET_MESSAGES
    if machine.window.messages is not None:
        target = min(target, machine.window.messages // 2)
    if queue.settings.max_hot_messages is not None:
        target = min(target, queue.settings.max_hot_messages)
    return max(1, target)


def _stretches(cold: Cold) -> Iterator[Stretch]:
    """In order."""
    if cold.front_rows:
        yield cold.front
    yield from cold.sealed.values()
    if cold.tail_rows:
        yield cold.tail


# --- what expires -------------------------------------------------------------------------------------------
class Sweep:
    """A job: finds what has expired of one stretch."""

    def __init__(self, storage: Storage, wanted: Wanted, taken: frozenset[int], wall_ms: int) -> None:
        self._storage = storage
        self._wanted = wanted
        self._taken = taken
        self._wall_ms = wall_ms
        self.wanted = (wanted,)
        self._rows: list[list[Any]] = []
        self._soonest = 0

    def run(self) -> None:
        """Read. Blocking; any thread."""
        each = self._wanted
        if each.page is None:
            ReadAhead(self._storage, self.wanted).run()
        for row in rows_of(each.page) if each.page is not None else ():
            batch = opened(row)
            if batch.seq in self._taken or not batch.expire_ms:
                continue
            if batch.expire_ms <= self._wall_ms:
                self._rows.append(row)
            elif not 0 < self._soonest <= batch.expire_ms:
                self._soonest = batch.expire_ms

    def commands(self) -> list[Hydrate]:
        """What is to be proposed."""
        each = self._wanted
        if each.why:
            return []
        rows = page_of([cbor2.dumps(row) for row in self._rows]) if each.stretch >= SEALED_FIRST else b""
        picked = tuple(sequence_of(row) for row in self._rows)
        return [Hydrate(each.uid, each.lane, each.stretch, rows, picked, self._soonest)]


def _sweep(storage: Storage, machine: Machine, unreadable: Container[tuple[int, int, int]]) -> Sweep | None:
    """The next stretch with something that has expired."""
    for uid, lane in machine.cold_due():
        queue = machine.by_uid[uid]
        cold = queue.cold[lane]
        for stretch in _stretches(cold):
            is_due = 0 < stretch.soonest <= machine.wall and not cold.owed
            if is_due and (uid, lane, stretch.number) not in unreadable:
                wanted = Wanted(uid, lane, stretch.number, cold.page(stretch.number))
                return Sweep(storage, wanted, frozenset(stretch.taken), machine.wall)
    return None


# --- out of turn --------------------------------------------------------------------------------------------
@attrs.frozen
class Found:
    """A batch that was found: in which stretch, its row, and the batch that this makes, in no queue."""

    lane: int
    stretch: int
    row: list[Any]
    batch: Batch


class ColdSearch:
    """A job: looks for batches among what is cold of a queue, in order of sequence.

    Attributes:
        seen: stretches with lower numbers were looked at, as far as they can hold what is wanted.
        found: what was found.
        is_all: nothing more is wanted of what was cold when it began.
        why: not empty: a page cannot be read, and the rest was not looked at.
    """

    def __init__(
        self,
        storage: Storage,
        queue: Queue,
        wanted: Callable[[Batch], bool],
        *,
        messages_max: int | None = None,
        after: int = 0,
        ids: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            messages_max: as many are enough.
            after: from this sequence on.
            ids: only messages with these.
        """
        self._storage = storage
        self._wanted = wanted
        self._messages_max = messages_max
        self._after = after
        self.uid = queue.uid
        self.seen = queue.next_cold
        self.found: list[Found] = []
        self.is_all = True
        self.why = ""
        self._places: list[tuple[int, int, int, bytes | None, frozenset[int]]] = []
        for lane, cold in queue.cold.items():
            numbers = None if ids is None or cold.moved else _numbers(cold, queue.uid, ids)
            following = [*(each.first for each in cold.stretches()), 1 << 62][1:]
            for stretch, end in zip(cold.stretches(), following, strict=True):
                if end > after and (numbers is None or stretch.number in numbers or stretch.number < SEALED_FIRST):
                    page = cold.page(stretch.number)
                    self._places.append((stretch.first, lane, stretch.number, page, frozenset(stretch.taken)))
        self._places.sort(key=lambda place: place[0])

    def run(self) -> None:
        """Read until there is enough. Blocking; any thread."""
        messages = 0
        for position, (_, lane, number, page, taken) in enumerate(self._places):
            if page is None:
                try:
                    page = self._storage.read_page(stretch_key(self.uid, lane, number))
                except (CorruptRecord, StorageError) as error:
                    self.why = error.text
                if page is None:
                    # Gone: it came back meanwhile, all of it.
                    continue
            for row in rows_of(page):
                batch = opened(row)
                is_new = batch.seq not in taken and batch.seq + batch.count > self._after
                if is_new and self._wanted(batch):
                    self.found.append(Found(lane, number, row, batch))
                    messages += batch.live
            last = max((each.batch.seq for each in self.found), default=0)
            rest = self._places[position + 1 :]
            if self._messages_max is not None and messages >= self._messages_max and rest and rest[0][0] > last:
                self.is_all = False
                break
        self.found.sort(key=lambda each: each.batch.seq)
        if self._messages_max is not None:
            self._cut(self._messages_max)

    def _cut(self, messages_max: int) -> None:
        messages = 0
        for position, each in enumerate(self.found):
            if messages >= messages_max:
                del self.found[position:]
                self.is_all = False
                return
            messages += each.batch.live

    def commands(self) -> list[Hydrate]:
        """What brings back what was found."""
        by_stretch: dict[tuple[int, int], list[Found]] = {}
        for each in self.found:
            by_stretch.setdefault((each.lane, each.stretch), []).append(each)
        return [
            Hydrate(
                self.uid,
                lane,
                number,
                page_of([cbor2.dumps(each.row) for each in found]) if number >= SEALED_FIRST else b"",
                tuple(each.batch.seq for each in found),
            )
            for (lane, number), found in by_stretch.items()
        ]


def _numbers(cold: Cold, uid: int, ids: Sequence[int]) -> set[int]:
    """Sealed stretches that hold messages with these ids, if any do."""
    sequences = [sequence for _, owner, sequence in map(id_parts, ids) if owner == uid]
    return {number for sequence in sequences if (number := stretch_of(cold, sequence)) is not None}
