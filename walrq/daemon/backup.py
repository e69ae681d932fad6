"""Backups of the running node: one at a time, read in pieces over the native protocol, bound to who began it.

    begin   hold every segment ─ force a snapshot ─ hold only what it needs ─► parts
    read    a piece of a part, in a thread
    over    at its end; when the connection that began it is gone; when nobody reads for BACKUP_IDLE_S_MAX; after
            BACKUP_S_MAX; when the disk is full, because what is held could be given back

Nothing waits for a backup: pushes, snapshots and reclaim go on meanwhile, only what is held stays on the disk.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import trio

from walrq import __version__, api
from walrq.backup.export import Export
from walrq.daemon.broker import Broker
from walrq.daemon.clock import Clock
from walrq.daemon.pollers import Call, Port, to_failed
from walrq.errors import Code, DataDirInvalid, DiskFull, InvalidArgument, NotReady, Overloaded, StorageError, WalrqError
from walrq.limits import BACKUP_IDLE_S_MAX, BACKUP_READS_MAX, BACKUP_S_MAX
from walrq.replica import Replica
from walrq.storage import identity
from walrq.storage.segment import number_in
from walrq.storage.storage import Pin, Storage
from walrq.upkeep.compactor import Compactor

T = TypeVar("T")

log = logging.getLogger("walrq.backup")

# How often an open backup is looked at: whether it is idle, too old, or in a full disk's way.
LOOK_S: Final = 1.0


@attrs.define(eq=False)
class _Open:
    """A backup that can be read. Invariant: its pin is held until it is over."""

    number: int
    port: Port
    pin: Pin
    export: Export
    begun_ms: int
    read_ms: int


class Backups:
    """See the module. One per node; `run` is a task of the core."""

    def __init__(self, replica: Replica, storage: Storage, compactor: Compactor, broker: Broker, clock: Clock) -> None:
        self._replica = replica
        self._storage = storage
        self._compactor = compactor
        self._broker = broker
        self._clock = clock
        self._jobs: deque[tuple[Call, Any]] = deque()
        self._wake = trio.Event()
        self._open: _Open | None = None
        self._begun = 0
        broker.serve(
            dict.fromkeys((api.BackupBegin, api.BackupRead, api.BackupEnd), self._submit), on_closed=self._closed
        )

    @property
    def is_open(self) -> bool:
        """Whether one is being read."""
        return self._open is not None

    # --- the broker's side --------------------------------------------------------------------------------
    def _submit(self, call: Call, request: api.Request) -> None:
        if len(self._jobs) >= BACKUP_READS_MAX:
            raise Overloaded(
                f"{len(self._jobs)} requests for a backup wait already", limit="BACKUP_READS_MAX", retry_after_ms=100
            )
        self._jobs.append((call, request))
        self._wake.set()

    def _closed(self, port: Port) -> None:
        if self._open is not None and self._open.port is port:
            self._wake.set()

    # --- the task -----------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Serve backups for ever."""
        try:
            while True:
                if not self._jobs:
                    self._wake = trio.Event()
                    with trio.move_on_after(LOOK_S if self._open is not None else float("inf")):
                        await self._wake.wait()
                await self._look()
                if self._jobs:
                    await self._answer(*self._jobs.popleft())
                    self._broker.flush()
        finally:
            if self._open is not None:
                self._open.pin.release()
                self._open = None

    async def _answer(self, call: Call, request: Any) -> None:
        try:
            reply = await self._do(call, request)
        except WalrqError as error:
            reply = to_failed(error)
        except Exception as error:
            # A mistake of ours costs one request, not the node.
            log.exception("request_failed %s: %s", type(request).__name__, error)
            reply = api.Failed(int(Code.INTERNAL), f"the node failed at this request: {error}")
        self._broker.answer(call, reply)

    async def _do(self, call: Call, request: Any) -> api.Reply:
        if type(request) is api.BackupBegin:
            return await self._begin(call.port)
        if type(request) is api.BackupEnd:
            if self._open is not None and self._open.number == request.backup:
                await self._end("it was read")
            return api.Done()
        return await self._read(request)

    async def _begin(self, port: Port) -> api.BackupBegun:
        if self._open is not None:
            raise Overloaded("another backup is being taken; one at a time", limit="backups", retry_after_ms=5_000)
        await self._catch_up()
        pin, export = await self.take()
        now_ms = self._clock.monotonic_ms()
        self._begun += 1
        self._open = _Open(self._begun, port, pin, export, now_ms, now_ms)
        log.info(
            "backup_begun number=%d peer=%s index=%d bytes=%d",
            self._begun,
            getattr(port, "peer", "-"),
            export.facts["index"],
            export.size,
        )
        return api.BackupBegun(self._begun, export.facts, tuple((part.name, part.size) for part in export.parts))

    async def _catch_up(self) -> None:
        """Wait until this node has all that its cluster acknowledged before now; a node that is alone has.

        Raises:
            NotLeader: no leader is known. NotReady: nobody could tell.
        """
        confirmed: list[bool] = []
        told = trio.Event()

        def then(answer: bool) -> None:
            confirmed.append(answer)
            told.set()

        self._broker.confirm(then)
        await told.wait()
        if not confirmed[0]:
            raise NotReady("the leader of the cluster was lost meanwhile; begin again", retry_after_ms=500)

    async def take(self) -> tuple[Pin, Export]:
        """Snapshot the state of now and hold what a reader of it needs; the pin is the caller's to release.

        Raises:
            DiskFull: there is no room for a snapshot.
            StorageError: see `Export`.
        """
        async with self._compactor.lock:
            # Before the snapshot: what it refers to must not be given back by a later state's reclaim.
            pin = self._storage.pin()
            try:
                await trio.to_thread.run_sync(self._replica.leave_out_dead, pin)
                if not await self._compactor.snapshot_locked():
                    raise DiskFull("the disk is full: there is no room for the snapshot that a backup begins with")
                facts = self._facts()
                export = await trio.to_thread.run_sync(partial(self._fix, pin, facts))
            except BaseException:
                pin.release()
                raise
        return pin, export

    def _fix(self, pin: Pin, facts: dict[str, Any]) -> Export:
        pin.fix()
        return Export(pin, self._storage.disk_uuid, facts)

    def _facts(self) -> dict[str, Any]:
        hard_state = self._storage.hard_state
        if hard_state is None:
            raise StorageError("the node has no term yet")
        return {
            "walrq": __version__,
            "taken_ms": self._clock.read().wall_ms,
            "node_id": hard_state.node_id,
            "cluster_id": self._replica.machine.cluster,
            "term": hard_state.term,
            "vote": hard_state.vote,
            "messages": self._replica.snapshot_messages,
        }

    async def _read(self, request: api.BackupRead) -> api.BackupChunk:
        found = self._open
        if found is None or found.number != request.backup:
            raise InvalidArgument(
                f"backup {request.backup} is over: its connection ended, it was not read for {BACKUP_IDLE_S_MAX:g} s,"
                " or the disk is full; begin another",
                field="backup",
            )
        if request.part >= len(found.export.parts):
            raise InvalidArgument(
                f"this backup has the parts 0 to {len(found.export.parts) - 1}, not {request.part}",
                field="part",
                limit=len(found.export.parts) - 1,
            )
        data = await trio.to_thread.run_sync(found.export.read, request.part, request.offset, request.limit)
        found.read_ms = self._clock.monotonic_ms()
        return api.BackupChunk(data)

    async def _look(self) -> None:
        """End a backup that is over."""
        found = self._open
        if found is None:
            return
        now_ms = self._clock.monotonic_ms()
        if not found.port.open:
            await self._end("its connection ended")
        elif not self._broker.pushes_allowed:
            await self._end("the disk is full, and what it held can be given back")
        elif not self._jobs and now_ms - found.read_ms >= BACKUP_IDLE_S_MAX * 1000:
            await self._end(f"nobody read it for {BACKUP_IDLE_S_MAX:g} s")
        elif now_ms - found.begun_ms >= BACKUP_S_MAX * 1000:
            await self._end(f"it took longer than {BACKUP_S_MAX:g} s")

    async def _end(self, why: str) -> None:
        found = self._open
        assert found is not None
        self._open = None
        found.pin.release()
        log.info("backup_over number=%d: %s", found.number, why)
        await self._compactor.reclaim()


def with_stopped(data_dir: str, use: Callable[[Export], T]) -> T:
    """What `use` makes of the backup of a stopped node; its directory is locked, opened and closed in good order.

    Raises:
        DataDirInvalid: there is no node's directory. DataDirLocked: the node runs.
        Whatever else `open_node` and `use` raise.
    """
    # Here and not above: the supervisor wires this module in.
    from walrq.daemon.config import Config
    from walrq.daemon.supervisor import open_node

    if not os.path.exists(f"{data_dir}/{identity.NAME}"):
        raise DataDirInvalid(f"{data_dir} is no walrq data directory: it has no {identity.NAME} file")
    config = Config(data_dir=data_dir)
    size = _segment_bytes(f"{data_dir}/wal")
    if size is not None:
        config = attrs.evolve(config, max_wal_segment_size=size)

    async def run() -> T:
        node = await open_node(config)
        clean = False
        replica = node.replica
        if replica.applied_index < replica.last_index:
            log.warning(
                "backup_is_behind the entries %d to %d are left out: this node was a member of a cluster when it ended,"
                " and cannot tell alone whether they were decided; a backup of the running cluster has everything",
                replica.applied_index + 1,
                replica.last_index,
            )
        try:
            pin, export = await node.backups.take()
            try:
                found = await trio.to_thread.run_sync(use, export)
            finally:
                pin.release()
            clean = True
            return found
        finally:
            replica.close(clean=clean)

    return trio.run(run)


def _segment_bytes(folder: str) -> int | None:
    """The size of the files that wait for use in the log: the node's setting, which nothing else tells."""
    sizes = [
        os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder) if number_in(name, free=True) is not None
    ]
    return max(sizes) if sizes else None
