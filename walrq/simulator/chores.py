"""What a node does beside its turns: chores, snapshots, and reading back what is not in memory. Each takes its time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from walrq.errors import DiskFull
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.queues.image import stretch_key
from walrq.replica import Done, Job, ReadAhead, Replica, SnapshotJob, Sweep
from walrq.replica.waiting import FarWork
from walrq.simulator.clock import MS
from walrq.simulator.compacting import Compacting
from walrq.simulator.consensus import Stored
from walrq.simulator.hardware import Hardware
from walrq.simulator.processes import Request
from walrq.storage.storage import Storage

if TYPE_CHECKING:
    from walrq.simulator.cluster import Cluster


class Chores:
    """Part of `node.Node`."""

    name: str
    hardware: Hardware
    replica: Replica | None
    storage: Storage | None
    stored: Stored
    _cluster: Cluster
    _draw: random.Random
    _persisting: object
    _job: SnapshotJob | None
    _chore: Job | None
    _ahead: ReadAhead | Sweep | None
    _fetching: FarWork | None
    _fetcher_at: int | None
    _fetch_beyond: int | None
    _compacting: Compacting | None
    _waiting: dict[int, Request]
    # What was looked up for requests that name messages, by ticket of the last proposal.
    _looked: dict[int, c.Cancel | c.Reschedule]

    if TYPE_CHECKING:

        def _later(self, delay_us: int, action: Callable[[], None]) -> None: ...

        def _after(self) -> None: ...

        def _wake(self) -> None: ...

        def _done(self, done: Done) -> None: ...

        def reading(self) -> Reading: ...

    # --- not in memory --------------------------------------------------------------------------------------
    def _look_up(self, request: Request, ticket: int, result: effects.LookFar) -> None:
        """The broker: what a request names is looked up in a thread, and it is proposed again."""
        replica = self.replica
        assert replica is not None
        command = self._looked.pop(ticket, None) or request.process.tagged(request).command
        assert isinstance(command, c.Cancel | c.Reschedule)
        cold = replica.search_ids(command.queue, result.cold) if result.cold else None
        far = replica.find_far(result.ids) if result.ids else None
        self._cluster.mark("far message looked up", far is not None)
        self._cluster.mark("cold message looked up", cold is not None)

        def run() -> None:
            for search in (cold, far):
                if search is not None:
                    search.run()
            self._later(self._draw.randrange(20, 3 * MS), propose)

        def propose() -> None:
            replica = self.replica
            assert replica is not None
            if not replica.accepts:
                self._cluster.redirect(request, replica.leader)
                return
            found = command
            if far is not None:
                found = attrs.evolve(found, far=c.FarFound(far.seen, far.found))  # type: ignore[misc]
            if cold is not None:
                found = attrs.evolve(found, cold=cold.seen)  # type: ignore[misc]
                for each in cold.commands():
                    replica.propose(c.Tagged(each))
            tagged = request.process.tagged(request)
            again = replica.propose(c.Tagged(found, tagged.session, tagged.sequence, tagged.lowest))
            self._waiting[again] = request
            self._looked[again] = found
            self._wake()

        self._later(self._draw.randrange(50, 2 * MS), run)

    def _read_ahead(self) -> None:
        """What queues want from beyond their windows: read in a thread, then proposed."""
        assert self.replica is not None
        job = self.replica.read_ahead()
        if job is not None:
            self._ahead = job
            self._later(self._draw.randrange(20, 2 * MS), lambda: self._run_ahead(job))

    def _run_ahead(self, job: ReadAhead | Sweep) -> None:
        if self.hardware.stuck:
            self._later(5 * MS, lambda: self._run_ahead(job))
            return
        job.run()
        self._later(self._draw.randrange(20, MS), lambda: self._ahead_done(job))

    def _ahead_done(self, job: ReadAhead | Sweep) -> None:
        assert self.replica is not None
        self._ahead = None
        self._cluster.mark("cold messages read ahead", sum(1 for each in job.wanted if each.page is not None))
        self.replica.read_ahead_done(job)
        self._after()

    def read_page(self, uid: int, lane: int, number: int) -> bytes | None:
        """The page of a stretch that is on the disk."""
        assert self.storage is not None
        return self.storage.read_page(stretch_key(uid, lane, number))

    def _look_farther(self) -> None:
        """The fetcher: come back when the next thing comes over the horizon."""
        replica = self.replica
        if replica is None or self._fetching is not None:
            return
        deadline_ms = replica.far_deadline(self.reading())
        if deadline_ms is None:
            return
        now_us = self._cluster.now_us
        at_us = now_us + self.hardware.clock.until_us(deadline_ms, now_us)
        if self._fetcher_at is None or at_us < self._fetcher_at:
            self._fetcher_at = at_us
            self._later(at_us - now_us, lambda: self._fetch(at_us))

    def _fetch(self, at_us: int) -> None:
        if self._fetcher_at != at_us or self.replica is None or self._fetching is not None:
            return
        self._fetcher_at = None
        work = self.replica.far_work(self.reading())
        if work is None:
            self._look_farther()
            return
        self._fetching = work
        self._later(self._draw.randrange(50, 5 * MS), lambda: self._fetched(work))

    def _fetched(self, work: FarWork) -> None:
        if self.hardware.stuck:
            self._later(5 * MS, lambda: self._fetched(work))
            return
        work.run()
        self._later(self._draw.randrange(20, 2 * MS), self._propose_fetched)

    def _propose_fetched(self) -> None:
        replica, work = self.replica, self._fetching
        assert replica is not None and work is not None
        if replica.accepts:
            command = work.command()
            assert command is not None
            self._cluster.mark("far messages fetched")
            self._fetch_beyond = replica.last_index
            replica.propose(c.Tagged(command))
            self._wake()
        else:
            self._fetching = None
            self._look_farther()

    # --- in the background ----------------------------------------------------------------------------------
    def _begin_chore(self) -> None:
        """Loading, reading for others, storing and installing what others sent: each takes its time."""
        assert self.replica is not None
        chore = self.replica.background()
        if chore is not None:
            self._chore = chore
            self._later(self._draw.randrange(50, 2 * MS), lambda: self._run_chore(chore))

    def _run_chore(self, chore: Job) -> None:
        if self.hardware.stuck:
            self._later(5 * MS, lambda: self._run_chore(chore))
            return
        chore.run()
        self._later(self._draw.randrange(20, MS), lambda: self._chore_done(chore))

    def _chore_done(self, chore: Job) -> None:
        assert self.replica is not None and self.storage is not None
        before = self.stored.covered
        self._chore = None
        done = self.replica.background_done(chore)
        self._done(done)
        if self.stored.covered > before:
            self._installed()
        self._after()

    def _installed(self) -> None:
        storage = self.storage
        assert storage is not None
        self._cluster.mark("snapshot installed")
        self._cluster.say(f"{self.name} installed a snapshot of {self.stored.covered}")
        self._cluster.history.snapshot(self.name, storage)
        self.stored.terms = {record.index: record.term for record in storage.entries(1)}

    def _begin_snapshot(self) -> None:
        replica = self.replica
        assert replica is not None
        self._job = replica.begin_snapshot()
        if self._job is not None:
            self._cluster.history.frozen(self.name, self._job.index)
            self._later(100, self._snapshot)

    def _snapshot(self) -> None:
        """One step between turns, its writes at another time."""
        job = self._job
        assert job is not None
        more = job.step()
        self._later(self._draw.randrange(50, 3 * MS), lambda: self._write_snapshot(job, more))

    def _write_snapshot(self, job: SnapshotJob, more: bool) -> None:
        assert self.replica is not None and self.storage is not None
        try:
            job.write()
            if more:
                self._later(self._draw.randrange(50, 2 * MS), self._snapshot)
                return
            if self.storage.durable_index < job.index:
                # Under a weak policy; the thread that persists does it, when it is free.
                if self._persisting is not None or self.hardware.stuck:
                    self._later(MS, lambda: self._write_snapshot(job, more))
                    return
                self.storage.sync()
            job.finish()
        except DiskFull:
            job.abort()
            self.replica.snapshot_failed(job)
            self._job = None
            self._cluster.mark("snapshot given up")
            return
        self.replica.snapshot_done(job)
        self._job = None
        self._cluster.mark("snapshot written")
        self.stored.covered = job.index
        self._cluster.history.snapshot(self.name, self.storage)
        self._later(self._draw.randrange(2 * MS), self._reclaim)

    def _reclaim(self) -> None:
        assert self.replica is not None and self.storage is not None
        freed = self.replica.reclaim()
        if freed:
            self._cluster.say(f"{self.name} gives back {freed} segments")
        self._cluster.mark("segment reclaimed", freed)
        if self._compacting is not None:
            self._compacting.go()

    def _replenish(self) -> None:
        if self.storage is not None and self._persisting is None and not self.storage.space.pushes_allowed:
            if not self.storage.replenish():
                self._later(100 * MS, self._replenish)
