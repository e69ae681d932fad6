"""The simulated disk keeps what was synced and nothing else for sure: all crash tests rest on it."""

from __future__ import annotations

import errno
import random

import pytest

from walrq.storage.disk import Disk
from walrq.testing.disk import PowerOff, SimDisk


def written(disk: SimDisk, data: bytes, *, sync: bool) -> int:
    """A file `d/f`, its name durable, with these bytes."""
    disk.make_directory("d")
    handle = disk.open("d/f", create=True)
    disk.fsync_directory("d")
    disk.pwrite(handle, data, 0)
    if sync:
        disk.fdatasync(handle)
    return handle


def outcomes(disk: SimDisk, path: str, *, seeds: int = 200) -> set[bytes]:
    """Every content of a file over many crashes; absent counts as b'absent'."""
    disks = [disk.crash(seed) for seed in range(seeds)]
    return {after.content(path) if after.exists(path) else b"absent" for after in disks}


def test_it_is_a_disk() -> None:
    """The type checker agrees that the protocol is met."""
    disk: Disk = SimDisk()

    assert disk.boot_id()


def test_synced_bytes_survive_every_crash() -> None:
    """The one promise of fdatasync."""
    disk = SimDisk()
    written(disk, b"x" * 2000, sync=True)

    assert {b"x" * 2000} == outcomes(disk, "d/f")


def test_unsynced_bytes_are_kept_dropped_torn_or_garbage() -> None:
    """All four happen, and torn means at sector borders."""
    disk = SimDisk()
    handle = written(disk, b"a" * 2048, sync=True)
    disk.pwrite(handle, b"b" * 2048, 0)
    seen = outcomes(disk, "d/f")
    torn = {content for content in seen if set(content) == {ord("a"), ord("b")}}

    assert {b"a" * 2048, b"b" * 2048} < seen
    assert torn
    for content in torn:
        for start in range(0, 2048, 512):
            assert len(set(content[start : start + 512])) == 1
    assert [content for content in seen if not set(content) <= {ord("a"), ord("b")}]


def test_a_crash_never_harms_bytes_outside_a_write() -> None:
    """Powersafe overwrite is what storage assumes of a disk, so the model keeps it."""
    disk = SimDisk()
    handle = written(disk, b"a" * 2048, sync=True)
    disk.pwrite(handle, b"b" * 700, 300)

    for content in outcomes(disk, "d/f"):
        assert b"a" * 300 == content[:300]
        assert b"a" * 1048 == content[1000:]


def test_unsynced_writes_are_independent_of_each_other() -> None:
    """A later write may survive an earlier one: header and records reach the disk in any order."""
    disk = SimDisk()
    handle = written(disk, b"a" * 1024, sync=True)
    disk.pwrite(handle, b"b" * 512, 0)
    disk.pwrite(handle, b"c" * 512, 512)
    seen = outcomes(disk, "d/f")

    assert b"a" * 512 + b"c" * 512 in seen
    assert b"b" * 512 + b"a" * 512 in seen


def test_names_are_lost_without_a_directory_sync() -> None:
    """Create, rename and remove alike; after the sync none is."""
    disk = SimDisk()
    disk.make_directory("d")
    handle = disk.open("d/new", create=True)
    disk.pwrite(handle, b"x", 0)
    disk.fdatasync(handle)
    assert {b"x", b"absent"} == outcomes(disk, "d/new")
    disk.fsync_directory("d")
    assert {b"x"} == outcomes(disk, "d/new")
    disk.rename("d/new", "d/other")
    assert {b"x", b"absent"} == outcomes(disk, "d/other")
    for seed in range(50):
        after = disk.crash(seed)
        assert after.exists("d/new") != after.exists("d/other")
    disk.fsync_directory("d")
    disk.unlink("d/other")
    assert {b"x", b"absent"} == outcomes(disk, "d/other")
    disk.fsync_directory("d")
    assert {b"absent"} == outcomes(disk, "d/other")


def test_a_failed_sync_is_not_made_good_by_the_next_one() -> None:
    """As on Linux: the pages are gone, the retry says yes, the bytes are not there."""
    disk = SimDisk()
    handle = written(disk, b"a" * 512, sync=True)
    disk.pwrite(handle, b"b" * 512, 0)
    disk.fail(0, errno.EIO, name="fdatasync")
    with pytest.raises(OSError):
        disk.fdatasync(handle)
    disk.fdatasync(handle)

    assert b"a" * 512 in outcomes(disk, "d/f")


def test_the_nth_operation_fails_once() -> None:
    """By number from the start, or by name from now on."""
    disk = SimDisk()
    handle = written(disk, b"", sync=False)
    disk.fail(disk.operation_count + 1, errno.EIO)
    disk.pwrite(handle, b"one", 0)
    with pytest.raises(OSError) as caught:
        disk.pwrite(handle, b"two", 0)
    disk.pwrite(handle, b"six", 0)
    disk.fail(1, errno.ENOSPC, name="rename")
    disk.rename("d/f", "d/g")
    with pytest.raises(OSError) as full:
        disk.rename("d/g", "d/f")

    assert (errno.EIO, errno.ENOSPC) == (caught.value.errno, full.value.errno)
    assert b"six" == disk.content("d/g")


def test_a_short_write_leaves_half() -> None:
    """What EFBIG and ENOSPC look like from inside."""
    disk = SimDisk()
    handle = written(disk, b"....", sync=True)
    disk.fail(0, errno.EFBIG, name="pwritev", short=True)
    with pytest.raises(OSError):
        disk.pwritev(handle, [b"ab", b"cd"], 0)

    assert b"ab.." == disk.content("d/f")


def test_a_full_disk_refuses_growth_and_allows_overwriting() -> None:
    """Preallocated room can be written at any time: that is what the reserve relies on."""
    disk = SimDisk(quota_bytes=1000)
    handle = written(disk, b"", sync=False)
    disk.preallocate(handle, 900)
    with pytest.raises(OSError) as caught:
        disk.preallocate(handle, 1001)
    disk.pwrite(handle, b"x" * 900, 0)

    assert errno.ENOSPC == caught.value.errno
    assert 100 == disk.free_bytes("d")
    disk.unlink("d/f")
    assert 1000 == disk.free_bytes("d")


def test_the_power_goes_before_the_named_operation() -> None:
    """And no handler of OSError can go on."""
    disk = SimDisk()
    handle = written(disk, b"a", sync=True)
    disk.power_off_at = disk.operation_count
    with pytest.raises(PowerOff):
        disk.pwrite(handle, b"b", 0)

    assert b"a" == disk.content("d/f")
    assert not issubclass(PowerOff, Exception)


def test_the_aftermaths_cover_every_write_and_name_by_itself() -> None:
    """Kept, dropped, torn at either end, garbage: each of them with all the others kept."""
    disk = SimDisk()
    handle = written(disk, b"a" * 1024, sync=True)
    disk.pwrite(handle, b"b" * 512, 0)
    disk.pwrite(handle, b"c" * 512, 512)
    disk.unlink("d/f")
    names = [what for what, _ in disk.aftermaths(mixtures=2, seed=5)]

    for number in (0, 1):
        for fate in ("dropped", "torn", "headless", "garbage", "alone kept"):
            assert f"write {number} {fate}" in names
    assert {
        "all kept",
        "all dropped",
        "all torn",
        "all garbage",
        "name 0 lost",
        "mixture 5",
        "mixture 6",
    } < set(names)


def test_looking_at_the_aftermaths_changes_nothing() -> None:
    """The story goes on after each look at what might have been."""
    disk = SimDisk()
    handle = written(disk, b"a" * 100, sync=True)
    disk.pwrite(handle, b"b" * 100, 0)
    for _, after in disk.aftermaths():
        if after.exists("d/f"):
            other = after.open("d/f")
            after.pwrite(other, b"zzz", 0)
            after.fdatasync(other)

    assert b"b" * 100 == disk.content("d/f")
    disk.fdatasync(handle)
    assert {b"b" * 100} == outcomes(disk, "d/f", seeds=20)


def test_a_seed_repeats() -> None:
    """The same crash twice, and the same uuids."""
    contents = []
    for _ in range(2):
        disk = SimDisk(seed=9)
        handle = written(disk, disk.new_uuid() * 100, sync=False)
        disk.pwritev(handle, [b"x" * 300, b"y" * 600], 100)
        after = disk.crash(1234)
        contents.append(after.content("d/f"))

    assert contents[0] == contents[1]


def test_damage_is_durable() -> None:
    """Flips, zeros and cuts are there after any crash, as rot is."""
    disk = SimDisk()
    written(disk, b"a" * 100, sync=True)
    disk.flip_bit("d/f", 8 * 10)
    disk.zero("d/f", 20, 30)
    disk.overwrite("d/f", 40, b"zz")
    disk.cut("d/f", 50)

    assert {b"a" * 10 + b"`" + b"a" * 9 + bytes(10) + b"a" * 10 + b"zz" + b"a" * 8} == outcomes(disk, "d/f")


def test_a_lock_holds_until_it_is_closed_or_the_power_goes() -> None:
    """One holder at a time."""
    disk = SimDisk()
    disk.make_directory("d")
    handle = disk.lock("d/LOCK")
    with pytest.raises(BlockingIOError):
        disk.lock("d/LOCK")
    disk.keep_all().lock("d/LOCK")
    disk.close(handle)

    disk.lock("d/LOCK")


def test_slowness_is_counted_not_slept() -> None:
    """A slow disk costs virtual time only."""
    disk = SimDisk()
    disk.latency_ms = {"fdatasync": 200.0, "pwrite": 0.5}
    handle = written(disk, b"a", sync=True)
    disk.fdatasync(handle)

    assert 400.5 == disk.virtual_ms


def test_a_crash_is_a_reboot() -> None:
    """The boot id changes, the files' handles are gone."""
    disk = SimDisk()
    handle = written(disk, b"a", sync=True)
    after = disk.crash(0)

    assert disk.boot_id() != after.boot_id()
    with pytest.raises(KeyError):
        after.pread(handle, 1, 0)


def test_random_histories_keep_the_last_synced_content() -> None:
    """Many small writes and syncs against a plain byte string, crash after each step."""
    draw = random.Random(7)
    disk = SimDisk()
    handle = written(disk, bytes(1500), sync=True)
    content = bytearray(1500)
    synced = bytes(content)
    dirty: set[int] = set()
    for step in range(150):
        start = draw.randrange(1400)
        data = draw.randbytes(draw.randrange(1, 100))
        disk.pwrite(handle, data, start)
        content[start : start + len(data)] = data
        dirty |= set(range(start, start + len(data)))
        if draw.random() < 0.3:
            disk.fdatasync(handle)
            synced, dirty = bytes(content), set()
        after = disk.crash(step).content("d/f")
        assert [i for i in range(1500) if after[i] != synced[i] and i not in dirty] == []
