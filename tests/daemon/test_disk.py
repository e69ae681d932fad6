"""The daemon and its disk: policies, full disks, snapshots, names."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.daemon.harness import World, columns, mock_wall, payloads, running
from walrq import api
from walrq.daemon.config import Config
from walrq.daemon.supervisor import make_front, open_node, start_core
from walrq.errors import Code, DataDirLocked, StorageError
from walrq.limits import DELAY_MS_MAX, MIB, SEGMENT_BYTES_MIN
from walrq.queues.commands import Push, Tagged
from walrq.testing.disk import SimDisk

pytestmark = pytest.mark.trio


async def filled(world: World) -> list[int]:
    """Push until the disk is full; the ids that were confirmed."""
    client = await world.connect()
    ids = []
    while True:
        reply = await client.ask(api.Push("jobs", columns(b"x" * 20_000)))
        if isinstance(reply, api.Failed):
            assert Code.DISK_FULL == reply.code
            return ids
        ids.append(reply.first_id)


async def test_a_full_disk_lets_work_be_finished_and_recovers_by_itself(mock_clock: trio.testing.MockClock) -> None:
    """Pushes are refused, polls and acks go on, and once there is space pushes are taken without a restart."""
    disk = SimDisk()
    async with running(disk=disk) as world:
        disk.quota_bytes = disk.used_bytes + 2 * SEGMENT_BYTES_MIN
        ids = await filled(world)
        client = await world.connect()
        got = []
        while True:
            polled = await client.ask(api.Poll(("jobs",), 10))
            if not polled.runs:
                break
            got += [run.first_id for run in polled.runs]
            items = tuple(api.Item(run.receipt) for run in polled.runs)
            settled = await client.ask(api.Settle("jobs", api.SettleKind.ACK, items))
            assert {0} == set(settled.codes)
        assert ids == got

        disk.quota_bytes = None
        for _ in range(3):
            mock_clock.jump(2)
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert 1 == (await client.ask(api.Push("jobs", columns(b"y")))).count


async def test_snapshots_are_written_as_the_log_grows() -> None:
    """A restart replays a bounded tail: the compactor works between turns, nobody asks it to."""
    disk = SimDisk()
    async with running(disk=disk, snapshot_commands=30) as world:
        client = await world.connect()
        for number in range(100):
            await client.ask(api.Push("jobs", columns(b"%d" % number)))
        await trio.testing.wait_all_tasks_blocked(0.05)
        stats = world.node.replica.stats()
        assert stats["snapshots"] >= 2
        assert stats["applied_index"] - stats["snapshot_index"] < 80
    async with running(disk=disk) as world:
        polled = await (await world.connect()).ask(api.Poll(("jobs",), 1_000))

        assert [b"%d" % number for number in range(100)] == payloads(polled)


@pytest.mark.parametrize("fsync", ["always", ("interval", 20), "never"])
async def test_every_policy_serves(fsync: str | tuple[str, int], mock_clock: trio.testing.MockClock) -> None:
    """The policy changes when the disk is asked, not what is answered."""
    disk = SimDisk()
    config = Config(data_dir="data", fsync=fsync, max_wal_segment_size=SEGMENT_BYTES_MIN)  # type: ignore[arg-type]
    node = await open_node(config, disk=disk, clock=mock_wall())
    async with trio.open_nursery() as core:
        start_core(core, node)
        front = make_front(node)
        await core.start(front.run)
        world = World(node, front, disk)
        client = await world.connect()
        for number in range(20):
            await client.ask(api.Push("jobs", columns(b"%d" % number)))
        polled = await client.ask(api.Poll(("jobs",), 100))
        for _ in range(100):
            if node.storage.durable_index >= node.replica.applied_index:
                break
            mock_clock.jump(0.02)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await client.aclose()
        core.cancel_scope.cancel()
    crashed = disk.crash(1)
    node.replica.close(clean=False)
    assert 20 == len(payloads(polled))
    if fsync != "never":
        # Whatever the power loss did to writes without a sync: all of this had one.
        async with running(disk=crashed) as world:
            assert 20 == (await world.info("jobs")).leased


async def test_the_nodes_name_is_kept_in_its_directory() -> None:
    """A restart needs only the data directory; another name for the same data is refused."""
    disk = SimDisk()
    async with running(disk=disk, node_id="alpha") as world:
        assert "alpha" == world.node.node_id
    async with running(disk=disk) as world:
        assert "alpha" == world.node.node_id
    with pytest.raises(StorageError, match="belongs to node 'alpha', not to 'beta'"):
        async with running(disk=disk, node_id="beta"):
            pass
    # The refusal left no lock behind.
    async with running(disk=disk) as world:
        with pytest.raises(DataDirLocked):
            async with running(disk=disk):
                pass


async def test_a_failed_write_ends_the_core() -> None:
    """After EIO nobody knows what the disk holds: no reply is made up, the node ends."""
    disk = SimDisk()
    with pytest.RaisesGroup(StorageError, flatten_subgroups=True, allow_unwrapped=True):
        async with running(disk=disk) as world:
            client = await world.connect()
            await client.ask(api.Push("jobs", columns(b"a")))
            disk.fail(0, name="pwritev")
            await client.ask(api.Push("jobs", columns(b"b")))


async def test_small_segments_and_a_short_backlog_make_a_small_disk() -> None:
    """With segments of 4 MiB less than 40 MB, whatever passes through; and never above the bound."""
    disk = SimDisk()
    highest = 0
    async with running(disk=disk, max_wal_segment_size=4 * MIB) as world:
        client = await world.connect()
        late = await client.ask(api.Push("late", columns(b"kept"), delay_ms=DELAY_MS_MAX))
        for number in range(230):
            await client.ask(api.Push("jobs", columns(bytes([number]) * 150_000)))
            polled = await client.ask(api.Poll(("jobs",), 10))
            items = tuple(api.Item(run.receipt) for run in polled.runs)
            await client.ask(api.Settle("jobs", api.SettleKind.ACK, items))
            if number % 8 == 0:
                highest = max(highest, disk.used_bytes)
                stats = world.node.compactor.stats()
                # inv: DiskBounded
                assert stats["disk_used_bytes"] <= stats["disk_bound_bytes"], stats
        await trio.testing.wait_all_tasks_blocked(0.05)
        stats = world.node.compactor.stats()
        assert stats["wal_compactions"] > 3
        assert isinstance(late, api.Pushed)
        page = await client.ask(api.Peek("late", api.State.DELAYED))
        assert [b"kept"] == [message.payload for message in page.messages]
    print(f"at most {highest} bytes")
    assert highest < 40_000_000


async def test_what_was_taken_is_written_when_the_node_ends_at_that_moment() -> None:
    """The persist thread may have ended before the driver: the batch is written all the same, and nobody waits."""
    node = await open_node(Config(data_dir="data"), disk=SimDisk(), clock=mock_wall())
    try:
        await node.driver.turn(node.broker)
        before = node.replica.applied_index
        node.replica.propose(Tagged(Push("jobs", columns(b"a"))))
        with trio.CancelScope() as scope:
            scope.cancel()
            await node.driver.turn(node.broker)

        assert not node.driver.is_writing
        assert before < node.replica.applied_index
    finally:
        node.replica.close(clean=False)
