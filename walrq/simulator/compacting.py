"""The compactor of one node's life: a pass over the log after each snapshot, in slices with anything in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from walrq.compaction.compaction import Compaction
from walrq.compaction.thinning import bodies_of
from walrq.errors import CorruptRecord, Reclaimed
from walrq.simulator.clock import MS
from walrq.simulator.promises import promise

if TYPE_CHECKING:
    from walrq.simulator.node import Node

FOLDER = "data/wal"


class Compacting:
    """Drives a `Compaction` as the daemon does. Of one life: what power took away is gone with it."""

    def __init__(
        self,
        node: Node,
        later: Callable[[int, Callable[[], None]], None],
        draw: Callable[[int, int], int],
        mark: Callable[[str], None],
    ) -> None:
        self._later, self._draw, self._mark = later, draw, mark
        replica, storage = node.replica, node.storage
        assert replica is not None and storage is not None
        self._node = node
        self._storage = storage
        self._replica = replica
        self._compaction = Compaction(storage, lambda: replica.disposable_index, slice_records=4)
        self._comes = False
        self._passes = 0

    @staticmethod
    def was_cut_short(node: Node) -> bool:
        """Before a start: whether the end of the last life fell into a rewrite."""
        disk = node.hardware.disk
        return disk.exists(FOLDER) and any(name.startswith("flip-") for name in disk.list_directory(FOLDER))

    def go(self) -> None:
        """Something may be due."""
        if not self._comes and self._compaction.is_due:
            self._comes = True
            if self._node.restless and not self._node.is_weak and self._draw(0, 40) == 0:
                # In the middle of it, most likely.
                self._node.hardware.arm_power_loss(20)
            self._later(self._draw(20, 2 * MS), self._step)

    def _step(self) -> None:
        self._comes = False
        if self._node.hardware.stuck:
            self.go()
            return
        rewritten = self._storage.wal_counters.rewritten
        more = self._compaction.step()
        self._check_bound()
        if self._storage.wal_counters.rewritten > rewritten:
            self._mark("segment rewritten")
        if self._compaction.counts.passes > self._passes:
            self._passes = self._compaction.counts.passes
            self._check_bodies()
        if more:
            self.go()

    def _check_bound(self) -> None:
        # inv: DiskBounded
        usage = self._compaction.usage()
        promise("DiskBounded", usage.is_held, self._node.name, usage.as_json())

    def _check_bodies(self) -> None:
        """Every message that is alive here has its body, in whatever file it lies by now."""
        # inv: EveryLiveReadable
        if not (self._node.is_intact and self._replica.accepts):
            # Who follows may not have applied yet what made a message dead that it was not sent.
            return
        for queue in self._replica.machine.queues.values():
            for batch in queue.batches():
                if batch.index > self._compaction.index:
                    continue
                spans = [(run.first, run.last) for run in (batch.pieces or {}).values()]
                if batch.fresh:
                    spans.append((batch.cursor, batch.count - 1))
                try:
                    columns = bodies_of(self._storage.read(batch.index).body).get(batch.ordinal)
                except (Reclaimed, CorruptRecord) as error:
                    promise("EveryLiveReadable", False, self._node.name, queue.name, batch.index, str(error))
                    raise
                for first, last in spans:
                    there = columns is not None and columns.has(batch.base + first, last - first + 1)
                    promise("EveryLiveReadable", there, self._node.name, queue.name, batch.index, batch.ordinal, first)
