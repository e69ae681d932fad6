"""Machine and oracle side by side, the machine with a horizon so near that most delays lie beyond it.

Between the entries the leader's part is played: work is read from what a snapshot would hold, and its command applied
to the machine alone, for the oracle keeps everything in memory. Some work is kept back and comes too late.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs

from tests.queues.pair import Pair, peek_all
from walrq import api
from walrq.far.rows import time_of
from walrq.far.shelf import PAGE_PREFIX
from walrq.queues import commands as c
from walrq.queues import effects, image, reads
from walrq.queues.machine import Bounds
from walrq.replica.waiting import FarWork, Waiting

HORIZON_MS = 16
BOUNDS = Bounds(far_horizon_ms=HORIZON_MS, far_tail_rows=5, far_page_rows=2)


class FarPair(Pair):
    """See the module."""

    def __init__(self, rng: random.Random, bounds: Bounds = BOUNDS) -> None:
        super().__init__(bounds)
        self.machine.version = 2
        self.rng = rng
        self.waiting = Waiting(self)  # type: ignore[arg-type]  # of a storage it needs `read_page` only
        self.late: list[FarWork] = []
        self.came_back = self.looked = 0

    def read_page(self, key: bytes) -> bytes | None:
        """As the storage does: what the newest snapshot holds."""
        return self.stored.get(key)

    # --- the leader's part ----------------------------------------------------------------------------------
    def work(self) -> None:
        """Fetch what comes near, and clear up."""
        while (work := self.waiting.work(self.machine, self.stamp.wall_ms)) is not None:
            work.run()
            if self.rng.random() < 0.1:
                self.late.append(work)
            self.far_entry(work.command())
        if self.late and self.rng.random() < 0.5:
            before = self.pages()
            assert self.far_entry(self.late.pop().command()) == api.Done(0)
            assert self.pages() == before, "work that came too late changed something"

    def pages(self) -> dict[bytes, bytes]:
        """Everything but the clocks."""
        return {key: page for key, page in image.full_pages(self.machine).items() if key != image.MACHINE_KEY}

    def far_entry(self, command: c.Command) -> effects.Result:
        """An entry that the oracle does not see."""
        self.index += 1
        _, (tagged,) = c.decode_entry(c.encode_entry(self.stamp, [c.Tagged(command)]))
        (result,) = self.machine.apply(self.index, self.stamp, [tagged])
        if isinstance(result, api.Done):
            self.came_back += result.count
        return result

    def advance(self, lease_ms: int, wall_ms: int) -> None:
        """Let both clocks go on, but not past what must be fetched on the way."""
        target = self.stamp.wall_ms + wall_ms
        while (key := self.machine.far.next_key()) is not None:
            at = max(self.stamp.wall_ms, time_of(key) - HORIZON_MS // 2)
            if at >= target:
                break
            super().advance(0, at - self.stamp.wall_ms)
            super().entry([], look=False)
            self.work()
        super().advance(lease_ms, target - self.stamp.wall_ms)

    def entry(self, entry: Sequence[c.Tagged], *, look: bool = True) -> list[effects.Result]:
        """As for both; cancel and reschedule one by one, as the broker asks for them."""
        results: list[effects.Result] = []
        for tagged in entry:
            if isinstance(tagged.command, c.Cancel | c.Reschedule):
                tagged = attrs.evolve(tagged, command=self.looked_up(tagged.command))
            results += super().entry([tagged], look=look)
            self.work()
            if self.rng.random() < 0.05:
                self.save()
        return results

    def looked_up(self, command: Any) -> Any:
        """The command with what is found of its messages in pages, if it needs that."""
        ids = command.ids if isinstance(command, c.Cancel) else (command.id,)
        if not any(self.machine.far.pages_for(identifier) for identifier in ids):
            return command
        look_up = self.waiting.look_up(self.machine.far, ids)
        look_up.run()
        self.looked += len(look_up.found)
        return attrs.evolve(command, far=c.FarFound(look_up.seen, look_up.found))

    def save(self) -> None:
        """A snapshot, whole and durable: sealed pages leave the memory."""
        for _ in range(2):
            # One that is under way is finished first.
            self.freeze()
            while self.imager.active:
                self.image_step(8)
            self.imager.kept()
        assert not self.machine.far.unsaved

    # --- looking --------------------------------------------------------------------------------------------
    def _equal(self, what: str, got: Any, want: Any) -> None:
        if what == "image":
            got = {key: page for key, page in got.items() if key[:1] != PAGE_PREFIX}
        if what == "pages after loading":
            want = {key: page for key, page in want.items() if key[:1] != PAGE_PREFIX}
        super()._equal(what, got, want)

    def peek_all(self, queue: str, state: api.State) -> list[effects.Seen]:
        """Every message of one state, those beyond the horizon included."""
        found = peek_all(self.machine, queue, state)
        if state is not api.State.DELAYED:
            return found
        after = 0
        while True:
            known = self.machine.queues[queue]
            listing = self.waiting.listing(self.machine.far, known.uid, known.far_floor, after, 7)
            listing.run()
            for row, first, last, _ in listing.found:
                found += reads.far_seen(row, first, last)
            after = listing.following
            if not after:
                return found

    def restart(self) -> None:
        """Go on with a machine loaded from a durable snapshot."""
        self.save()
        stored = dict(self.stored)
        self.late.clear()
        before = image.full_pages(self.machine)
        self.machine = image.load(list(stored.items()), self.bounds)
        self._equal("pages after loading", image.full_pages(self.machine), before)
        self.imager = image.Imager(self.machine, stored)
        self.compare()
