"""The facade: opening and refusing, appending and reading, policies, marks, giving back."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import attrs
import pytest

from tests.storage.crash import SEGMENT_BYTES, config
from walrq.errors import (
    ConfigError,
    CorruptRecord,
    DataDirInvalid,
    DataDirLocked,
    DiskFull,
    Reclaimed,
    StorageError,
)
from walrq.storage.config import StorageConfig, parse_fsync_policy
from walrq.storage.hard_state import HardState
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk


def record(index: int, body: bytes = b"body", term: int = 1) -> Record:
    """A small record."""
    return Record(index, term, 2, body)


def opened(disk: SimDisk) -> Storage:
    """Storage on a simulated disk with small segments."""
    return Storage.open(disk, config())


def test_a_fresh_directory_is_empty_and_writable() -> None:
    """The first start finds nothing and says so."""
    storage = opened(SimDisk())

    assert storage.recovered.hard_state is None
    assert storage.recovered.snapshot is None
    assert () == storage.recovered.report
    assert not storage.recovered.unclean_boot
    assert (1, 0, 0, 0) == (
        storage.first_index,
        storage.last_index,
        storage.durable_index,
        storage.last_term,
    )
    assert storage.space.pushes_allowed


def test_what_was_appended_is_read_back_after_a_restart() -> None:
    """Index, term, kind and body, by address and in order."""
    disk = SimDisk()
    storage = opened(disk)
    records = [record(i, bytes([i]) * (i * 37 % 500), term=1 + i // 10) for i in range(1, 60)]
    storage.append_batch(records[:7])
    for one in records[7:]:
        storage.append_batch([one])
    storage.close()

    again = opened(disk)

    assert records == list(again.recovered.entries(1))
    assert records[20:] == list(again.entries(21))
    assert records == [again.read(index) for index in range(1, 60)]
    assert [one.term for one in records] == [again.term_at(index) for index in range(1, 60)]
    assert (59, 59, 6) == (again.last_index, again.durable_index, again.last_term)


def test_a_record_larger_than_a_segment_gets_a_segment_of_its_own() -> None:
    """The segment size bounds no entry."""
    disk = SimDisk()
    storage = opened(disk)
    large = record(2, b"x" * (3 * SEGMENT_BYTES))
    storage.append_batch([record(1)])
    storage.append_batch([large])
    storage.append_batch([record(3)])

    assert large == storage.read(2)
    assert [record(1), large, record(3)] == list(opened(disk.keep_all()).entries(1))


def test_a_batch_with_more_records_than_one_write_takes_is_one_unit() -> None:
    """The kernel's bound on vectors is not the caller's concern."""
    disk = SimDisk()
    storage = Storage.open(disk, config(segment_bytes=1 << 20))
    records = [record(i) for i in range(1, 3001)]
    storage.append_batch(records)

    assert records == list(storage.entries(1))


def test_one_group_commit_costs_one_sync() -> None:
    """The whole point of group commit, counted."""
    disk = SimDisk()
    storage = opened(disk)
    before = disk.syncs
    storage.append_batch([record(1), record(2), record(3)])

    assert 1 == disk.syncs - before


def test_settling_costs_one_sync_and_then_nothing() -> None:
    """An idle log does not touch the disk again and again."""
    disk = SimDisk()
    storage = opened(disk)
    storage.append_batch([record(1)])
    before = disk.syncs

    assert [True, False, False] == [storage.settle() for _ in range(3)]
    assert 1 == disk.syncs - before


def test_under_interval_a_record_is_durable_after_the_next_sync() -> None:
    """Append returns without a sync; `durable_index` does not run ahead."""
    disk = SimDisk()
    storage = Storage.open(disk, config(("interval", 50)))
    before = disk.syncs
    storage.append_batch([record(1)])
    assert (0, 0) == (storage.durable_index, disk.syncs - before)
    storage.sync()

    assert (1, 1) == (storage.durable_index, disk.syncs - before)
    for seed in range(20):
        assert record(1) == opened(disk.crash(seed)).read(1)


def test_interval_settles_too() -> None:
    """Several appends between two syncs leave the older slot behind until the log is idle."""
    disk = SimDisk()
    storage = Storage.open(disk, config(("interval", 50)))
    storage.append_batch([record(1)])
    storage.append_batch([record(2)])
    storage.sync()

    assert [True, False] == [storage.settle(), storage.settle()]


def test_never_does_not_sync() -> None:
    """The kernel decides, the caller is told that everything is durable."""
    disk = SimDisk()
    storage = Storage.open(disk, config("never"))
    before = disk.syncs
    for index in range(1, 4):
        storage.append_batch([record(index)])
        storage.settle()

    assert (3, 0) == (storage.durable_index, disk.syncs - before)


def test_a_clean_stop_is_durable_under_every_policy() -> None:
    """After it a power loss takes nothing, and the next start knows."""
    for fsync in ("never", ("interval", 100), "always"):
        disk = SimDisk()
        storage = Storage.open(disk, config(fsync))  # type: ignore[arg-type]
        records = [record(i, b"x" * 900) for i in range(1, 12)]
        for one in records:
            storage.append_batch([one])
        storage.close(clean=True)
        for seed in range(10):
            again = Storage.open(disk.crash(seed), config(fsync))  # type: ignore[arg-type]

            assert records == list(again.entries(1)), (fsync, seed)
            assert not again.recovered.unclean_boot
            assert () == again.recovered.report


def test_a_reboot_without_a_clean_stop_is_noticed_and_a_restart_alone_is_not() -> None:
    """Under weak policies only a new boot can have cost records."""
    disk = SimDisk()
    opened(disk).close(clean=False)
    assert not opened(disk).recovered.unclean_boot

    assert opened(disk.crash(1)).recovered.unclean_boot


def test_hard_state_is_kept_and_survives_every_power_loss() -> None:
    """A vote that was answered is never forgotten."""
    disk = SimDisk()
    storage = Storage.open(disk, config("never"))
    state = HardState(term=7, vote="b", node_id="a", cluster_id="c", disk_uuid=storage.disk_uuid)
    storage.set_hard_state(state)

    assert state == storage.hard_state
    for seed in range(20):
        assert state == opened(disk.crash(seed)).recovered.hard_state


def test_a_vote_is_never_guessed() -> None:
    """With both copies damaged the node does not start; with one it knows exactly."""
    disk = SimDisk()
    storage = opened(disk)
    state = HardState(term=7, vote="b", node_id="a", cluster_id="c", disk_uuid=storage.disk_uuid)
    storage.set_hard_state(state)
    disk = disk.keep_all()
    disk.zero("data/hard-state", 0, 100)
    assert state == opened(disk.keep_all()).recovered.hard_state
    disk.zero("data/hard-state", 4096, 4196)

    with pytest.raises(CorruptRecord, match="not guessed"):
        opened(disk)


def test_a_hard_state_that_does_not_fit_is_refused_before_it_is_written() -> None:
    """The old one stands, and the storage goes on."""
    storage = opened(SimDisk())
    good = HardState(term=1, vote=None, node_id="a", cluster_id="c", disk_uuid=storage.disk_uuid)
    storage.set_hard_state(good)
    with pytest.raises(StorageError, match="exceeds"):
        storage.set_hard_state(attrs.evolve(good, term=2, vote="x" * 5000))
    assert good == storage.hard_state

    storage.set_hard_state(attrs.evolve(good, term=2))


def test_a_second_opening_is_refused_until_the_first_is_closed() -> None:
    """Two daemons on one directory would destroy it."""
    disk = SimDisk()
    first = opened(disk)
    with pytest.raises(DataDirLocked, match="in use by another"):
        opened(disk)
    first.close()

    opened(disk).close()


def test_a_failed_opening_releases_the_lock() -> None:
    """After the cause is gone the same process may try again."""
    disk = SimDisk()
    opened(disk).close()
    disk.fail(0, errno.EIO, name="fdatasync")
    with pytest.raises(StorageError):
        opened(disk)

    opened(disk).close()


def test_a_directory_of_somebody_else_is_refused_untouched() -> None:
    """A mistyped path must not fill a home directory with our files."""
    disk = SimDisk()
    disk.make_directory("data")
    disk.close(disk.open("data/thesis.txt", create=True))
    with pytest.raises(DataDirInvalid, match="thesis"):
        opened(disk)

    assert {"LOCK", "thesis.txt"} == set(disk.list_directory("data"))


def test_another_format_version_is_refused_by_number() -> None:
    """A newer directory is not read by an older program."""
    from crc32c import crc32c

    disk = SimDisk()
    opened(disk).close()
    uuid_line = disk.content("data/FORMAT").decode().split("\n")[1]
    text = f"walrq storage 9\n{uuid_line}\n"
    disk.cut("data/FORMAT", 0)
    disk.overwrite("data/FORMAT", 0, f"{text}{crc32c(text.encode()):08x}\n".encode())
    with pytest.raises(DataDirInvalid, match="format 9"):
        opened(disk)


def test_every_bit_flip_in_the_format_file_is_refused() -> None:
    """The uuid names the disk in the membership; a wrong one must not pass."""
    disk = SimDisk()
    opened(disk).close()
    for bit in range(8 * disk.size("data/FORMAT")):
        damaged = disk.keep_all()
        damaged.flip_bit("data/FORMAT", bit)
        with pytest.raises(DataDirInvalid):
            opened(damaged)


def test_a_lost_format_file_is_refused_and_nothing_is_deleted() -> None:
    """Unreadable metadata never turns data into an empty directory."""
    disk = SimDisk()
    storage = opened(disk)
    storage.append_batch([record(1)])
    storage.close()
    disk.unlink("data/FORMAT")
    before = disk.list_directory("data/wal")
    with pytest.raises(DataDirInvalid):
        opened(disk)

    assert before == disk.list_directory("data/wal")


def test_a_path_below_nothing_is_refused() -> None:
    """Only the last part of the path is created."""
    with pytest.raises(DataDirInvalid, match="parent"):
        Storage.open(SimDisk(), attrs.evolve(config(), data_dir="a/b/c"))


def test_after_a_failed_sync_every_later_call_raises() -> None:
    """What the disk holds is unknown then; nothing is acknowledged any more."""
    disk = SimDisk()
    storage = opened(disk)
    disk.fail(0, errno.EIO, name="fdatasync")
    with pytest.raises(StorageError):
        storage.append_batch([record(1)])
    disk.clear_faults()
    for call in (
        lambda: storage.append_batch([record(1)]),
        storage.sync,
        storage.settle,
        storage.replenish,
        lambda: storage.truncate_suffix(1),
        lambda: storage.reclaim(1, lambda _first, _last: False),
        storage.close,
    ):
        with pytest.raises(StorageError):
            call()


def test_a_dead_segment_is_given_back_also_from_the_middle() -> None:
    """What lives is read, what died is gone by name, and the files are used again."""
    disk = SimDisk()
    storage = opened(disk)
    for index in range(1, 22):
        storage.append_batch([record(index, b"x" * 1000)])
    storage.begin_snapshot(21, 1, b"").finish()
    live = {5}
    given = storage.reclaim(21, lambda first, last: bool(live & set(range(first, last + 1))))
    kept = [index for index in range(1, 22) if _is_readable(storage, index)]

    assert given == 5
    assert [4, 5, 6, 19, 20, 21] == kept
    assert ((4, 6), (19, 21)) == storage.index_ranges()
    again = opened(disk.keep_all())
    assert () == again.recovered.report
    assert kept == [one.index for one in again.entries(1)]


def _is_readable(storage: Storage, index: int) -> bool:
    try:
        return storage.read(index).index == index
    except Reclaimed:
        return False


def test_nothing_above_the_durable_snapshot_is_given_back() -> None:
    """Whatever index the caller names."""
    storage = opened(SimDisk())
    for index in range(1, 22):
        storage.append_batch([record(index, b"x" * 1000)])

    assert 0 == storage.reclaim(21, lambda _first, _last: False)
    storage.begin_snapshot(7, 1, b"").finish()
    assert 2 == storage.reclaim(21, lambda _first, _last: False)
    assert 7 == storage.first_index


def test_the_pool_and_the_log_stay_within_their_bound() -> None:
    """A log whose messages all die keeps its disk constant for ever."""
    disk = SimDisk()
    storage = opened(disk)
    largest = 0
    for index in range(1, 400):
        storage.append_batch([record(index, b"x" * 1000)])
        if index % 6 == 0:
            storage.begin_snapshot(index, 1, b"").finish()
            storage.reclaim(index, lambda _first, _last: False)
        largest = max(largest, storage.stats().log_bytes)

    assert largest <= (3 + 3 + 1) * SEGMENT_BYTES
    assert storage.stats().recycled > 50


def test_reading_beside_appending_gives_whole_records_or_none() -> None:
    """A reader in another thread never sees a record half published."""
    disk = SimDisk()
    storage = opened(disk)
    problems: list[str] = []
    done = threading.Event()

    def read_the_end() -> None:
        while not done.is_set():
            last = storage.last_index
            if last and storage.read(last).body != b"%08d" % last * 30:
                problems.append(f"record {last}")

    reader = threading.Thread(target=read_the_end)
    reader.start()
    for index in range(1, 1500):
        storage.append_batch([record(index, b"%08d" % index * 30)])
    done.set()
    reader.join()

    assert [] == problems


def test_a_snapshot_ahead_of_the_durable_log_is_not_finished() -> None:
    """It would promise what a crash may take away; after a sync the same snapshot may be finished."""
    storage = Storage.open(SimDisk(), config(("interval", 50)))
    storage.append_batch([record(1)])
    writer = storage.begin_snapshot(1, 1, b"")
    with pytest.raises(StorageError, match="ahead"):
        writer.finish()
    assert storage.snapshot is None
    storage.sync()
    writer.finish()

    assert storage.snapshot is not None


def test_the_log_goes_on_behind_a_snapshot_that_outlived_it() -> None:
    """Under `never` the log may end before the snapshot; indexes are not given twice."""
    disk = SimDisk()
    storage = Storage.open(disk, config("never"))
    for index in range(1, 6):
        storage.append_batch([record(index)])
    storage.begin_snapshot(5, 1, b"").finish()
    dropped = next(after for what, after in disk.aftermaths() if what == "all dropped")

    again = Storage.open(dropped, config("never"))

    assert 5 == again.last_index
    again.append_batch([record(6)])
    assert [record(6)] == list(again.entries(6))


@pytest.mark.parametrize("text", ["", "sometimes", "interval", "interval:0", "interval:x", "interval:99999999"])
def test_an_unknown_fsync_policy_is_refused(text: str) -> None:
    """With the choices in the message."""
    with pytest.raises(ConfigError, match="always, never, interval:MS"):
        parse_fsync_policy(text)


def test_the_fsync_policies_are_read() -> None:
    """All three."""
    assert ["always", "never", ("interval", 50)] == [
        parse_fsync_policy(text) for text in ("always", "never", "interval:50")
    ]


@pytest.mark.parametrize("size", [0, 4096, 1 << 31, (1 << 20) + 1])
def test_an_impossible_segment_size_is_refused(size: int) -> None:
    """At once, not at the first rotation."""
    with pytest.raises(ConfigError):
        StorageConfig(data_dir=Path("x"), segment_bytes=size)


def test_a_refused_append_changes_nothing_and_the_next_one_works() -> None:
    """ENOSPC in the middle of a write: the log is as before, also after a power loss."""
    disk = SimDisk()
    storage = opened(disk)
    storage.append_batch([record(1)])
    disk.fail(0, errno.ENOSPC, name="pwritev", short=True)
    with pytest.raises(DiskFull):
        storage.append_batch([record(2, b"refused"), record(3, b"refused" * 20)])
    for seed in range(20):
        assert [record(1)] == list(opened(disk.crash(seed)).entries(1))
    storage.append_batch([record(2)])

    assert [record(1), record(2)] == list(storage.entries(1))
