"""What was decided: every committed entry once, in log order, applied to a shadow machine.

The shadow never restarts, takes no snapshot and is never sent one. Whatever a replica applies is compared with it:
entry by entry with what others applied, answer by answer with the shadow's, image by image whenever both stand at the
same index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.horizon import opened, sequence_of
from walrq.queues.image import full_pages, sealed_pages
from walrq.queues.lanes import rows_of
from walrq.queues.machine import Bounds, Machine
from walrq.raft.core import Raft
from walrq.raft.entries import Kind
from walrq.replica import Replica
from walrq.simulator.clock import MS
from walrq.simulator.consensus import Consensus, Member
from walrq.simulator.promises import Ledger, ReadPage, Watch, check_machine, far_rows, promise
from walrq.storage.record import Record
from walrq.storage.storage import Storage

IMAGES_KEPT: Final = 12
# The horizon is near, and what lies beyond it is sealed soon, so that both sides of it are seen in every seed.
BOUNDS: Final = Bounds(far_horizon_ms=60, far_tail_rows=4, far_page_rows=3)


class World(Protocol):
    """What the history needs of its surroundings."""

    now_us: int

    def mark(self, name: str, times: int = 1) -> None: ...

    def say(self, text: str) -> None: ...

    def agreed_wall_ms(self, taken_us: int) -> int: ...


class History:
    """See the module.

    Attributes:
        records: committed entries by index, from 1 to `index` without gaps.
        ledger: what the log says of each message.
    """

    def __init__(self, world: World, members: dict[str, Member], check_every: int) -> None:
        self.shadow = Machine(BOUNDS)
        self.index = 0
        self.records: dict[int, Record] = {}
        self.ledger = Ledger(world.mark)
        self.consensus = Consensus(members, world.mark, world.say, self.records)
        self._world = world
        self._check_every = check_every
        self._taken_us: dict[tuple[int, int], int] = {}
        self._results: dict[int, list[effects.Result]] = {}
        # Images that snapshots of these indexes must show.
        self._images: dict[int, dict[bytes, bytes]] = {}
        self._oldest = 0
        self._compared: dict[str, int] = {}
        self._term = self._wall_term = 0
        self._watch = Watch(self.shadow)
        self._pages: tuple[int, dict[bytes, bytes], set[int]] = (-1, {}, set())

    # --- entries --------------------------------------------------------------------------------------------
    def taken(self, index: int, term: int) -> None:
        """A leader stamped an entry."""
        self._taken_us[index, term] = self._world.now_us

    def entry(self, node: Member, raft: Raft, record: Record) -> None:
        """A replica applied an entry."""
        known = self.records.get(record.index)
        if known is not None:
            same = (known.term, known.kind, known.body) == (record.term, record.kind, record.body)
            promise("StateMachineSafety", same, node.name, record.index, known, record)
            return
        promise("Contiguous", record.index == self.index + 1, node.name, record.index, self.index)
        self.consensus.committed(node, raft, record)
        self.index = record.index
        self.records[record.index] = record
        self._apply(record)

    def _apply(self, record: Record) -> None:
        index = record.index
        if record.term > self._term:
            self.ledger.offices += 1
            self._term = record.term
        if record.kind == Kind.COMMANDS:
            stamp, tagged = c.decode_entry(record.body)
            taken_us = self._taken_us.get((index, record.term))
            # A node that is alone writes these before it is asked anything.
            bootstrap = bool(tagged) and isinstance(tagged[0].command, c.Bootstrap | c.RaiseVersion | c.SetWindow)
            if taken_us is not None:
                self._check_wall(record.term, stamp, taken_us)
            promise("NoPhantom", taken_us is not None or bootstrap, "an entry that nobody took", index)
            results = self.shadow.apply(index, stamp, tagged)
            self.shadow.take_effects()
            self._results[index] = results
            taken_us = self._world.now_us if taken_us is None else taken_us
            self.ledger.entry(index, stamp, tagged, results, taken_us, self._watch)
        elif record.kind == Kind.SNAPSHOT:
            self._keep_image(index)

    def _check_wall(self, term: int, stamp: c.Stamp, taken_us: int) -> None:
        """No minority of wall clocks decides what the log takes for the time. inv: DelayNotEarly"""
        last = self.ledger.stamp
        elapsed_ms = (taken_us - self.ledger.taken_us) // MS
        # Clocks run at different rates; a leader's is slewed by a tenth.
        slack_ms = 20 + elapsed_ms // 8
        if term == self._wall_term:
            gained_ms = stamp.wall_ms - last.wall_ms
            promise("DelayNotEarly", gained_ms <= elapsed_ms + slack_ms, "the wall clock leapt", last, stamp)
        else:
            most_ms = max(last.wall_ms + elapsed_ms, self._world.agreed_wall_ms(taken_us)) + slack_ms
            promise("DelayNotEarly", stamp.wall_ms <= most_ms, "the wall clock of a minority", stamp, most_ms)
        self._wall_term = term

    def answered(self, index: int, position: int, result: effects.Result) -> None:
        """A replica answered what an entry's command did."""
        wanted = self._results[index][position]
        promise("StateMachineSafety", wanted == result, "answers differ", index, position, result, wanted)

    # --- images ---------------------------------------------------------------------------------------------
    def compare(self, name: str, replica: Replica, read: ReadPage, *, at_once: bool = False) -> None:
        """Snapshots, restarts, replays and installs change nothing. Compares now and then, or `at_once`."""
        index = self.index
        if replica.applied_index != index:
            return
        if not at_once and index - self._compared.get(name, 0) < self._check_every:
            return
        self._compared[name] = index
        self._world.mark("images compared")
        if self._pages[0] != index:
            self._pages = index, full_pages(self.shadow), check_machine(self.shadow)
        _, mine, ids = self._pages
        difference = ids ^ check_machine(replica.machine, read)
        told = [self.ledger.known.get(i) for i in difference]
        promise("StateMachineSafety", not difference, name, "messages differ", told)
        theirs = full_pages(replica.machine)
        differing = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
        promise("StateMachineSafety", not differing, name, "images differ at", index, differing)

    def check_bodies(self, name: str, read: Callable[[int, int], list[bytes]]) -> None:
        """Everything alive can be read, and is what was pushed. inv: EveryLiveReadable"""
        for queue in self.shadow.queues.values():
            cold = [
                opened(row)
                for lane in queue.cold.values()
                for stretch in lane.stretches()
                for row in rows_of(lane.page(stretch.number) or b"")
                if sequence_of(row) not in stretch.taken
            ]
            for batch in [*queue.batches(), *cold]:
                values = read(batch.index, batch.ordinal)
                for position in range(batch.count):
                    identifier = batch.id_of(queue.uid, position)
                    if identifier in self.ledger.stories:
                        wanted = self.ledger.known[identifier]
                        promise("EveryLiveReadable", values[batch.base + position] == wanted, name, batch.index, wanted)
        for row in far_rows(self.shadow):
            values = read(row.index, row.ordinal)
            wanted_values = [self.ledger.known[row.first_id + position] for position in range(row.count)]
            promise("EveryLiveReadable", values[row.base : row.base + row.count] == wanted_values, name, row)

    def _keep_image(self, index: int) -> None:
        self._images[index] = full_pages(self.shadow) | sealed_pages(self.shadow)
        while len(self._images) > IMAGES_KEPT:
            del self._images[min(self._images)]
        self._oldest = min(self._images)

    def frozen(self, name: str, index: int) -> None:
        """A snapshot was begun: this is what it must hold, whatever happens until it is written."""
        promise("SnapLeCommit", index <= self.index, name, index, self.index)
        if index == self.index:
            self._keep_image(index)

    def snapshot(self, name: str, storage: Storage) -> None:
        """A snapshot is there, written or installed: the state at its index, no more and no less."""
        reader = storage.snapshot
        assert reader is not None
        promise("SnapLeDurable", reader.index <= storage.durable_index, name, reader.index, storage.durable_index)
        wanted = self._images.get(reader.index)
        promise("NoMixedRead", wanted is not None or reader.index < self._oldest, name, "no point", reader.index)
        if wanted is not None:
            found = dict(reader.pages())
            differing = [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]
            promise("NoMixedRead", not differing, name, "snapshot", reader.index, differing)
            self._world.mark("snapshot checked")
