"""Backups of a running node: consistent under load, one at a time, and over when nobody wants them any more."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.backup.life import Life
from tests.daemon.harness import Client, World, columns, payloads, running
from walrq import api
from walrq.backup import archive, restoring
from walrq.backup.export import Export, Part
from walrq.errors import Code, StorageError
from walrq.limits import BACKUP_IDLE_S_MAX, BACKUP_READ_BYTES_MAX, BACKUP_S_MAX, SEGMENT_BYTES_MIN
from walrq.replica import ReplicaConfig
from walrq.testing.disk import SimDisk

pytestmark = pytest.mark.trio
SECONDS_MAX = 120


async def begin(client: Client) -> api.BackupBegun:
    """Begin one."""
    begun = await client.ask(api.BackupBegin())
    assert isinstance(begun, api.BackupBegun), begun
    return begun


async def copied(client: Client, begun: api.BackupBegun, limit: int = 50_000) -> bytes:
    """The file that a client makes of a backup."""
    parts = tuple(Part(name, size) for name, size in begun.parts)
    read: list[list[bytes]] = []
    for number, part in enumerate(parts):
        chunks = []
        for offset in range(0, part.size, limit):
            chunk = await client.ask(api.BackupRead(begun.backup, number, offset, limit))
            assert isinstance(chunk, api.BackupChunk), chunk
            chunks.append(chunk.data)
        read.append(chunks)
    file = io.BytesIO()
    archive.write(file, dict(begun.facts), parts, lambda number: read[number])
    return file.getvalue()


def revived(backup: bytes, data_dir: Path, begun: api.BackupBegun, monkeypatch: pytest.MonkeyPatch) -> Life:
    """The restored node's replica."""
    restoring.restore(io.BytesIO(backup), data_dir)
    config = ReplicaConfig(node_id=begun.facts["node_id"], cluster_id="", secret=b"")
    monkeypatch.setattr("tests.backup.life.CONFIG", config)
    return Life(data_dir, segment_bytes=SEGMENT_BYTES_MIN)


async def push(client: Client, *bodies: bytes) -> None:
    """One batch into jobs."""
    assert isinstance(await client.ask(api.Push("jobs", columns(*bodies))), api.Pushed)


async def settle_some(client: Client, most: int) -> list[bytes]:
    """Take and acknowledge up to `most`."""
    polled = await client.ask(api.Poll(("jobs",), most))
    if not polled.runs:
        return []
    items = tuple(api.Item(run.receipt) for run in polled.runs)
    settled = await client.ask(api.Settle("jobs", api.SettleKind.ACK, items))
    assert {0} == set(settled.codes)
    return payloads(polled)


def segments(world: World) -> int:
    """How many segments the log has."""
    return len(world.node.storage.index_ranges())


async def wait_over(world: World) -> None:
    """Until no backup is open; it is looked at once a second at the latest."""
    with trio.fail_after(SECONDS_MAX):
        while world.node.backups.is_open:
            await trio.lowlevel.checkpoint()


async def test_all_that_was_answered_before_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing that was settled before; what comes later changes nothing, snapshots and reclaim included."""
    async with running(snapshot_commands=20) as world:
        client = await world.connect()
        for number in range(60):
            await push(client, b"%d" % number, bytes(20_000))
        gone = await settle_some(client, 31)
        begun = await begin(client)
        before = segments(world)
        for _ in range(40):
            await push(client, bytes(20_000))
            await settle_some(client, 5)
        held = segments(world)
        backup = await copied(client, begun)
        assert isinstance(await client.ask(api.BackupEnd(begun.backup)), api.Done)
        after = segments(world)
    life = revived(backup, tmp_path / "b", begun, monkeypatch)
    there = life.drain("jobs")

    assert 31 == len(gone)
    assert 60 * 2 - 31 == len(there) == begun.facts["messages"]
    assert [b"%d" % number for number in range(16, 60)] == [each for each in there if len(each) < 10]
    assert held > before > 3
    assert after < held


async def test_what_dies_during_its_snapshot_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is of one moment, its writing takes longer: what is settled meanwhile is in it, body and all."""
    async with running() as world:
        client, other = await world.connect(), await world.connect()
        for _ in range(60):
            await push(client, bytes(20_000))
        snapshot = world.node.compactor.snapshot_locked

        async def slow() -> bool:
            written = await snapshot()
            while await settle_some(other, 100):
                pass
            return written

        monkeypatch.setattr(world.node.compactor, "snapshot_locked", slow)
        begun = await begin(client)
        backup = await copied(client, begun)
        left = (await world.info("jobs")).ready
    life = revived(backup, tmp_path / "b", begun, monkeypatch)

    assert 0 == left
    assert [bytes(20_000)] * 60 == life.drain("jobs")


async def test_a_push_does_not_wait_for_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is read in a thread: a slow one slows the backup only."""
    reading, go_on = threading.Event(), threading.Event()
    read = Export.read

    def slow(export: Export, *arguments: Any) -> bytes:
        reading.set()
        assert go_on.wait(60)
        return read(export, *arguments)

    monkeypatch.setattr(Export, "read", slow)
    async with running() as world:
        client, other = await world.connect(), await world.connect()
        begun = await begin(client)
        waiting = await client.send(api.BackupRead(begun.backup, 0, 0, 10))
        assert await trio.to_thread.run_sync(reading.wait, 60)
        await push(other, b"meanwhile")
        go_on.set()
        chunk = await client.answer(waiting)

    assert 10 == len(chunk.data)


async def test_one_at_a_time() -> None:
    """What a backup holds stays on the disk; two would hold twice as much. The next may begin when it is over."""
    async with running() as world:
        client, other = await world.connect(), await world.connect()
        first = await begin(client)
        refused = await other.ask(api.BackupBegin())
        await client.ask(api.BackupEnd(first.backup))
        second = await begin(other)

    assert Code.OVERLOADED == refused.code
    assert "one at a time" in refused.text
    assert first.backup != second.backup


async def test_any_connection_may_read_and_mistakes_are_told() -> None:
    """A client with several connections reads over all of them; a wrong number is one clear line."""
    async with running() as world:
        client, other = await world.connect(), await world.connect()
        begun = await begin(client)
        name, size = begun.parts[0]
        chunk = await other.ask(api.BackupRead(begun.backup, 0, 0, BACKUP_READ_BYTES_MAX))
        behind = await other.ask(api.BackupRead(begun.backup, 0, size + 7, 10))
        no_part = await other.ask(api.BackupRead(begun.backup, len(begun.parts), 0, 10))
        no_backup = await other.ask(api.BackupRead(begun.backup + 1, 0, 0, 10))
        assert isinstance(await other.ask(api.BackupEnd(begun.backup + 1)), api.Done)
        assert world.node.backups.is_open

    assert size == len(chunk.data)
    assert name.endswith(".mf")
    assert b"" == behind.data
    assert (Code.INVALID_ARGUMENT, "part") == (no_part.code, no_part.details["field"])
    assert (Code.INVALID_ARGUMENT, "backup") == (no_backup.code, no_backup.details["field"])


async def test_it_ends_with_the_connection_that_began_it(caplog: pytest.LogCaptureFixture) -> None:
    """A client that vanishes holds nothing: what its backup kept is given back at once, and the log says so."""
    caplog.set_level(logging.INFO, "walrq.backup")
    async with running() as world:
        client, other = await world.connect(), await world.connect()
        for _ in range(60):
            await push(client, bytes(20_000))
        await begin(client)
        while await settle_some(other, 100):
            pass
        await push(other, b"last")
        await world.node.compactor.snapshot()
        held = segments(world)
        await client.aclose()
        await wait_over(world)
        # Reclaim is behind the same lock.
        await world.node.compactor.reclaim()
        left = segments(world)

    assert held > 4
    assert 1 == left
    assert any("its connection ended" in record.getMessage() for record in caplog.records)


async def test_a_client_that_leaves_before_it_began_holds_nothing(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot takes a while; who asked for it may be gone when it is there."""
    async with running("stream") as world:
        client = await world.connect()
        snapshot, begun = world.node.compactor.snapshot_locked, trio.Event()
        go_on = trio.Event()

        async def slow() -> bool:
            begun.set()
            await go_on.wait()
            return await snapshot()

        monkeypatch.setattr(world.node.compactor, "snapshot_locked", slow)
        await client.send(api.BackupBegin())
        await begun.wait()
        await client.aclose()
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        while not world.node.backups.is_open:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(2)
        await wait_over(world)

        assert () == world.node.storage._wal.holds


async def test_a_draining_node_refuses_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait for a backup: its client is told so, and begins again with the next life."""
    async with running() as world:
        client = await world.connect()
        begun = await begin(client)
        world.node.broker.drain(lambda: None)
        refused = await client.ask(api.BackupRead(begun.backup, 0, 0, 10))

    assert Code.DRAINING == refused.code


@pytest.mark.parametrize("seconds", [BACKUP_IDLE_S_MAX, BACKUP_S_MAX])
async def test_it_ends_when_nobody_reads_and_when_it_never_ends(
    seconds: float, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that holds on without reading, or for ever, is no reason to keep a log for ever."""
    caplog.set_level(logging.INFO, "walrq.backup")
    async with running("stream") as world:
        client = await world.connect()
        begun = await begin(client)
        passed = 0.0
        while passed + 0.9 * BACKUP_IDLE_S_MAX < seconds:
            mock_clock.jump(0.9 * BACKUP_IDLE_S_MAX)
            passed += 0.9 * BACKUP_IDLE_S_MAX
            assert isinstance(await client.ask(api.BackupRead(begun.backup, 0, 0, 10)), api.BackupChunk)
        mock_clock.jump(BACKUP_IDLE_S_MAX)
        await wait_over(world)
        refused = await client.ask(api.BackupRead(begun.backup, 0, 0, 10))

    assert Code.INVALID_ARGUMENT == refused.code
    assert "is over" in refused.text
    assert 1 == sum("backup_over" in record.getMessage() for record in caplog.records)


async def test_it_gives_way_to_a_full_disk(mock_clock: trio.testing.MockClock) -> None:
    """What is held could be given back: pushes come before a backup that can be begun again."""
    disk = SimDisk()
    async with running("stream", disk=disk) as world:
        client = await world.connect()
        for _ in range(40):
            await push(client, bytes(20_000))
        await begin(client)
        while await settle_some(client, 100):
            pass
        disk.quota_bytes = disk.used_bytes
        reply: api.Reply = api.Pong()
        while not isinstance(reply, api.Failed):
            reply = await client.ask(api.Push("jobs", columns(bytes(20_000))))
        mock_clock.jump(2)
        await wait_over(world)

        assert Code.DISK_FULL == reply.code


async def test_no_room_for_its_snapshot_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is held by a backup that could not begin, and the node lives."""
    async with running() as world:
        client = await world.connect()

        async def full() -> bool:
            await trio.lowlevel.checkpoint()
            return False

        monkeypatch.setattr(world.node.compactor, "snapshot_locked", full)
        refused = await client.ask(api.BackupBegin())
        monkeypatch.undo()

        assert Code.DISK_FULL == refused.code
        assert not world.node.backups.is_open
        assert isinstance(await client.ask(api.BackupBegin()), api.BackupBegun)


async def test_a_disk_that_fails_and_a_mistake_of_ours_cost_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is no reason to end a node."""
    errors: Iterator[Exception] = iter([StorageError("cannot be read"), ZeroDivisionError("ours")])

    def broken(*_: object) -> bytes:
        raise next(errors)

    async with running() as world:
        client = await world.connect()
        begun = await begin(client)
        with monkeypatch.context() as patched:
            patched.setattr(Export, "read", broken)
            first = await client.ask(api.BackupRead(begun.backup, 0, 0, 10))
            second = await client.ask(api.BackupRead(begun.backup, 0, 0, 10))
        third = await client.ask(api.BackupRead(begun.backup, 0, 0, 10))

    assert [Code.STORAGE_FAILED, Code.INTERNAL] == [first.code, second.code]
    assert isinstance(third, api.BackupChunk)


async def test_stopping_releases_what_it_holds() -> None:
    """A node that stops under a backup stops in good order."""
    async with running(clean=True) as world:
        await begin(await world.connect())
        assert world.node.backups.is_open

    assert not world.node.backups.is_open
