"""A full disk: pushes wait, settles go on, and everything resumes by itself."""

from __future__ import annotations

import errno

import pytest

from tests.storage.crash import SEGMENT_BYTES, config
from walrq.errors import DiskFull, StorageError
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

ROOM = 4 * SEGMENT_BYTES + 32 * 1024


def record(index: int) -> Record:
    """Three of these fill a segment."""
    return Record(index, 1, 1, b"x" * 1000)


def filled() -> tuple[SimDisk, Storage, int]:
    """A storage on a small disk, appended to until a push was refused."""
    disk = SimDisk(quota_bytes=ROOM)
    storage = Storage.open(disk, config())
    index = 0
    with pytest.raises(DiskFull):
        while True:
            storage.append_batch([record(index + 1)])
            index += 1
    return disk, storage, index


def test_a_full_disk_refuses_pushes_and_says_so() -> None:
    """The refusal is definite, and `space` tells the next push before it is tried."""
    _, storage, last = filled()

    assert not storage.space.pushes_allowed
    assert last == storage.last_index
    assert [record(index) for index in range(1, last + 1)] == list(storage.entries(1))


def test_the_reserve_takes_what_settles_work() -> None:
    """Acks, polls and expiry go on after the pushes stopped."""
    disk, storage, last = filled()
    for index in range(last + 1, last + 4):
        storage.append_batch([record(index)], may_use_reserve=True)

    assert last + 3 == storage.last_index
    assert not storage.space.log_reserve
    assert last + 3 == Storage.open(disk.keep_all(), config()).last_index


def test_a_restart_on_a_full_disk_serves_and_refuses_pushes() -> None:
    """It is not an error to start without room, only to push."""
    disk, storage, last = filled()
    storage.append_batch([record(last + 1)], may_use_reserve=True)

    again = Storage.open(disk.keep_all(), config())

    assert last + 1 == again.last_index
    assert not again.space.pushes_allowed


def test_a_snapshot_is_written_from_the_reserve_and_frees_the_log() -> None:
    """The way out of a full disk needs a little disk itself."""
    disk, storage, last = filled()
    disk.quota_bytes = disk.used_bytes
    writer = storage.begin_snapshot(last, 1, b"meta")
    writer.put(b"page", b"y" * 2000)
    writer.finish()
    assert not storage.space.snapshot_reserve
    assert storage.reclaim(last, lambda _first, _last: False) > 0
    disk.quota_bytes = ROOM

    assert storage.replenish()
    assert storage.space.pushes_allowed
    storage.append_batch([record(last + 1)])


def test_a_snapshot_without_any_room_leaves_the_one_before() -> None:
    """DiskFull, abort, and nothing of the attempt is left."""
    disk, storage, last = filled()
    disk.quota_bytes = disk.used_bytes
    writer = storage.begin_snapshot(last, 1, b"meta")
    with pytest.raises(DiskFull):
        for page in range(8):
            writer.put(b"page%d" % page, b"y" * (1 << 20))
    writer.abort()

    assert storage.snapshot is None
    assert [] == disk.list_directory("data/snapshots")
    storage.begin_snapshot(last, 1, b"").abort()


def test_pushes_resume_when_room_returns() -> None:
    """No restart, no command: the next replenish sees it."""
    disk, storage, last = filled()
    assert not storage.replenish()
    disk.quota_bytes = 2 * ROOM

    assert storage.replenish()
    assert storage.space.pushes_allowed
    storage.append_batch([record(last + 1)])
    assert record(last + 1) == storage.read(last + 1)


def test_refused_preallocation_leaves_no_litter() -> None:
    """A full disk is not made fuller by every attempt."""
    disk, storage, last = filled()
    before = disk.used_bytes
    for _ in range(5):
        with pytest.raises(DiskFull):
            storage.append_batch([record(last + 1)])

    assert before == disk.used_bytes


def test_a_new_directory_without_room_is_refused() -> None:
    """At the start, in one line, not at the first push."""
    with pytest.raises(DiskFull):
        Storage.open(SimDisk(quota_bytes=SEGMENT_BYTES + 8192), config())


@pytest.mark.parametrize("refused", [("pwritev", "pwrite"), ("pwrite",), ("fdatasync",)], ids=" and ".join)
def test_a_refusal_that_cannot_be_undone_is_final(refused: tuple[str, ...]) -> None:
    """The undoing write, the slot and the sync: what a start would find is unknown, so nobody is told a refusal."""
    disk = SimDisk()
    storage = Storage.open(disk, config())
    storage.append_batch([record(1)])
    for name in refused:
        disk.fail(0, errno.ENOSPC, name=name, short=name == "pwritev")

    with pytest.raises(StorageError) as first:
        storage.append_batch([record(2)])
    disk.clear_faults()
    with pytest.raises(StorageError, match="failed earlier"):
        storage.append_batch([record(2)])

    assert not isinstance(first.value, DiskFull)
    assert record(1) == Storage.open(disk.keep_all(), config()).read(1)
