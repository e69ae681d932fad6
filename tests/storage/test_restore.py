"""Records that another node still has are put back: all of them or as it was, whenever power is lost."""

from __future__ import annotations

import itertools

import pytest

from tests.storage.crash import config
from tests.storage.test_install import filled, install, opened, records, snapshot
from walrq.errors import CorruptRecord, DiskFull, Reclaimed, StorageError
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import PowerOff, SimDisk

LAST = 150
IMAGE = 120


def segments(disk: SimDisk) -> list[str]:
    """Paths of the segments, ascending."""
    return [f"data/wal/{name}" for name in disk.list_directory("data/wal") if name.startswith("seg-")]


def lived() -> tuple[SimDisk, list[Record]]:
    """A snapshot, and a log of four segments: the second has lost two records, the third is gone. What was lost."""
    disk = SimDisk()
    storage = filled(LAST, 1, disk)
    snapshot(storage, IMAGE)
    storage.close(clean=True)
    disk = disk.keep_all()
    firsts = [int(path[-24:-4]) for path in segments(disk)]
    assert len(firsts) > 3 and firsts[3] <= IMAGE
    whole = records(1, LAST, 1)
    damaged = [whole[firsts[1] + 4 - 1], whole[firsts[1] + 9 - 1]]
    for record in damaged:
        content = disk.content(segments(disk)[1])
        disk.flip_bit(segments(disk)[1], content.find(record.body) * 8)
    disk.unlink(segments(disk)[2])
    return disk.keep_all(), [*damaged, *whole[firsts[2] - 1 : firsts[3] - 1]]


def restore(storage: Storage, lost: list[Record]) -> None:
    """Put all of them back."""
    restorer = storage.begin_restore([record.index for record in lost])
    assert tuple(record.index for record in lost) == restorer.indexes
    for record in lost:
        restorer.record(record)
    restorer.finish()


def check_whole(storage: Storage) -> None:
    """Everything that was ever written can be read, once and in order."""
    whole = records(1, LAST, 1)
    assert whole == list(storage.entries(1))
    assert whole == [storage.read(record.index) for record in whole]
    assert () == storage.lost_spans()


def test_what_was_lost_is_there_again() -> None:
    """Now, after restarts, and with what is appended and cut behind it."""
    disk, lost = lived()
    storage = opened(disk)
    restore(storage, lost)
    check_whole(storage)
    storage.close(clean=False)
    storage = opened(disk.keep_all())
    assert () == storage.findings
    check_whole(storage)
    more = records(LAST + 1, LAST + 30, 2)
    storage.append_batch(more)
    storage.truncate_suffix(LAST + 11)
    assert more[:10] == list(storage.entries(LAST + 1))


def test_power_loss_at_any_operation_leaves_the_lost_or_the_restored() -> None:
    """Nothing that could be read before is ever lost by it, and it can be done again."""
    origin, lost = lived()
    names = {record.index for record in lost}
    kept = [record for record in records(1, LAST, 1) if record.index not in names]
    for point in itertools.count():
        disk = origin.keep_all()
        storage = opened(disk)
        before = disk.operation_count
        disk.power_off_at = before + point
        try:
            restore(storage, lost)
        except PowerOff:
            pass
        else:
            break
        for after in (disk.keep_all(), disk.crash(point)):
            again = opened(after)
            found = [record.index for record in again.entries(1)]
            assert found == sorted(set(found)), point
            assert all(again.read(record.index) == record for record in kept), point
            missing = [record for record in lost if not can_read(again, record)]
            if missing:
                restore(again, missing)
            check_whole(opened(after.keep_all()))
    assert point > 10


def can_read(storage: Storage, record: Record) -> bool:
    """Whether it is there; never as something else."""
    try:
        return storage.read(record.index) == record
    except (CorruptRecord, Reclaimed):
        return False


def test_a_part_of_what_was_lost_helps_as_well() -> None:
    """What did not come stays lost, as something dead would be; what was not asked for is refused."""
    disk, lost = lived()
    storage = opened(disk)
    restorer = storage.begin_restore([record.index for record in lost])
    for record in lost[1::2]:
        restorer.record(record)
    with pytest.raises(StorageError, match="not among those that were asked for"):
        restorer.record(records(IMAGE + 1, IMAGE + 1, 1)[0])
    restorer.finish()
    assert [can_read(storage, record) for record in lost] == [number % 2 == 1 for number in range(len(lost))]
    for record in records(1, LAST, 1):
        assert can_read(storage, record) or record in lost


def test_nothing_is_put_where_the_log_is_still_written_or_not_covered() -> None:
    """Behind the snapshot the log itself repairs; the segment that is being written has its own chain."""
    disk, lost = lived()
    storage = opened(disk)
    last = storage.stats().segments[-1].first_index
    restorer = storage.begin_restore([lost[0].index, last, IMAGE + 1, LAST])
    assert (lost[0].index,) == restorer.indexes
    with pytest.raises(StorageError, match="being received"):
        storage.begin_restore([lost[0].index])
    with pytest.raises(StorageError, match="being received"):
        install(storage, 0, LAST + 1, 2, [])
    restorer.abort()
    restorer.abort()
    assert storage.begin_restore([lost[0].index]).indexes
    assert not [name for name in disk.list_directory("data/wal") if name.startswith("new-")]


def test_a_segment_that_is_given_back_meanwhile_is_not_mended() -> None:
    """Nothing in it is alive any more."""
    disk, lost = lived()
    storage = opened(disk)
    restorer = storage.begin_restore([record.index for record in lost[:2]])
    restorer.record(lost[0])
    assert storage.reclaim(IMAGE, lambda first, last: False) > 1
    with pytest.raises(Reclaimed):
        restorer.record(lost[1])
        restorer.finish()
    restorer.abort()
    storage.append_batch(records(LAST + 1, LAST + 5, 2))
    assert records(LAST + 1, LAST + 5, 2) == list(opened(disk.keep_all()).entries(LAST + 1))


def test_a_full_disk_leaves_all_as_it_was() -> None:
    """Tried again when there is room."""
    disk, lost = lived()
    storage = opened(disk)
    disk.quota_bytes = disk.used_bytes
    restorer = storage.begin_restore([record.index for record in lost])
    with pytest.raises(DiskFull):
        for record in lost:
            restorer.record(record)
        restorer.finish()
    restorer.abort()
    disk.quota_bytes = None
    assert not any(can_read(storage, record) for record in lost)
    restore(storage, lost)
    check_whole(storage)


def test_a_snapshot_installed_later_replaces_what_was_restored_behind_its_base() -> None:
    """Its segments are of a later incarnation, and go as older ones do."""
    disk, lost = lived()
    storage = opened(disk)
    restore(storage, lost)
    live = records(60, 190, 3)[::9]
    install(storage, 59, 200, 3, live)
    for now in (storage, Storage.open(disk.keep_all(), config())):
        assert [*records(1, 59, 1), *live] == list(now.entries(1))


def test_a_segment_that_is_given_back_between_is_not_mended() -> None:
    """All that was to come had come: nothing of it takes a place that is not there any more."""
    disk, lost = lived()
    storage = opened(disk)
    first = storage.stats().segments[1]
    restorer = storage.begin_restore([record.index for record in lost])
    for record in lost:
        restorer.record(record)
    assert storage.reclaim(IMAGE, lambda low, high: low > first.last_index) > 1
    with pytest.raises(Reclaimed):
        restorer.finish()
    restorer.abort()
    assert not any(can_read(storage, record) for record in lost[:2])
