"""Power loss and failing operations at every point of a life: nothing acknowledged is lost or invented."""

from __future__ import annotations

import copy
import errno
import random

import pytest

from tests.storage.crash import (
    Account,
    check,
    check_after_crash,
    config,
    long_story,
    random_step,
    resume,
    start,
)
from walrq.errors import DiskFull, StorageError
from walrq.storage.config import FsyncPolicy
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import PowerOff, SimDisk


def _points() -> int:
    """Operations of the whole story, the opening included."""
    disk = SimDisk()
    long_story(start(disk, 1))
    return disk.operation_count


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["always", ("interval", 50)], ids=["always", "interval"])
def test_power_loss_at_every_sync_loses_nothing_acknowledged(fsync: FsyncPolicy) -> None:
    """Each unsynced write is kept, dropped, torn, garbage, alone or mixed: the account holds."""
    disk = SimDisk()
    tried = 0
    account = Account()

    def power_loss(now: SimDisk) -> None:
        nonlocal tried
        for what, after in now.aftermaths(seed=now.operation_count):
            check_after_crash(after, account, f"operation {now.operation_count}: {what}")
            tried += 1

    work = start(disk, 1, fsync)
    account = work.account
    disk.before_sync = power_loss
    long_story(work)

    print(f"crash points tried: {tried}")
    assert tried > 500


def test_power_loss_during_the_first_start_leaves_a_directory_that_starts() -> None:
    """Half-made data directories are finished, not refused."""
    disk = SimDisk()
    tried = 0

    def power_loss(now: SimDisk) -> None:
        nonlocal tried
        for what, after in now.aftermaths(seed=now.operation_count):
            check_after_crash(after, Account(), f"operation {now.operation_count}: {what}")
            tried += 1

    disk.before_sync = power_loss
    start(disk, 1)

    assert tried > 50


def test_power_loss_before_every_operation_loses_nothing_acknowledged() -> None:
    """Between the syncs too, with everything kept (the process died) and with everything dropped."""
    for point in range(_points()):
        disk = SimDisk()
        disk.power_off_at = point
        account = Account()
        with pytest.raises(PowerOff):
            work = start(disk, 1)
            account = work.account
            long_story(work)
        check_after_crash(disk.keep_all(), account, f"power off before {point}, all kept")
        check_after_crash(disk.crash(point), account, f"power off before {point}, mixed")


def test_power_loss_during_recovery_loses_nothing_acknowledged() -> None:
    """A node that crashes while it recovers from a crash recovers all the same."""
    disk = SimDisk()
    work = start(disk, 1)
    long_story(work)
    # A torn record behind the end, so that recovery has something to cut.
    disk.power_off_at = disk.operation_count + 1
    with pytest.raises(PowerOff):
        work.append(100, 100)
    torn = next(after for what, after in disk.aftermaths() if what == "write 0 torn")

    def power_loss(now: SimDisk) -> None:
        for what, after in now.aftermaths(seed=now.operation_count):
            check_after_crash(after, work.account, f"recovery operation {now.operation_count}: {what}")

    torn.before_sync = power_loss
    storage = Storage.open(torn, config())

    assert storage.last_index == max(work.account.acknowledged)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EFBIG], ids=errno.errorcode.get)
@pytest.mark.parametrize("short", [False, True])
def test_the_nth_operation_failing_is_final_or_changes_nothing(code: int, short: bool) -> None:
    """For every n: either DiskFull and the story goes on, or an error after which every call raises."""
    finals = 0
    for point in range(_points()):
        disk = SimDisk()
        disk.fail(point, code, short=short)
        account = Account()
        try:
            work = start(disk, 1)
        except (StorageError, DiskFull):
            check_after_crash(disk.keep_all(), account, f"operation {point} failed at the start")
            continue
        account = work.account
        try:
            long_story(work)
        except DiskFull:
            _forget_refused(account)
            check_after_crash(disk.keep_all(), account, f"operation {point} refused, all kept")
        except StorageError:
            finals += 1
            if _is_log_latched(work.storage):
                with pytest.raises(StorageError):
                    work.append(1)
        for name, after in [("all kept", disk.keep_all()), ("mixed", disk.crash(point))]:
            check_after_crash(after, copy.deepcopy(account), f"operation {point} failed: {name}")

    assert finals > 20


def _forget_refused(account: Account) -> None:
    """What DiskFull refused must never be seen: it is taken out of what was attempted."""
    for index in list(account.attempted):
        if index >= account.next_index:
            del account.attempted[index]


def _is_log_latched(storage: Storage) -> bool:
    try:
        storage.sync()
    except StorageError:
        return True
    return False


@pytest.mark.parametrize("life", range(12))
def test_a_life_of_many_crashes_loses_nothing_acknowledged(life: int) -> None:
    """Unplanned steps, power loss at an unplanned operation, recovery, on and on with the same disk."""
    draw = random.Random(life)
    policy: FsyncPolicy = draw.choice(["always", ("interval", 50)])
    disk, account = SimDisk(seed=life), Account()
    for crash in range(12):
        work = resume(Storage.open(disk, config(policy)), account, draw.randrange(2**32))
        disk.power_off_at = disk.operation_count + draw.randrange(1, 120)
        with pytest.raises(PowerOff):
            for _ in range(1000):
                random_step(work)
        disk = disk.crash(draw.randrange(2**32)) if draw.random() < 0.8 else disk.keep_all()
        what = f"life {life}, crash {crash}"
        check(Storage.open(disk.keep_all(), config(policy)), account, what)
        check_after_crash(disk.keep_all(), copy.deepcopy(account), what)


@pytest.mark.parametrize("seed", range(10))
def test_weak_policies_lose_a_suffix_at_most(seed: int) -> None:
    """Under `never` a power loss may cost records, but what remains is a prefix and nothing is invented."""
    disk = SimDisk()
    work = start(disk, seed, "never")
    for _ in range(12):
        work.append(100, 950)
    assert len(work.storage.stats().segments) > 2
    storage = Storage.open(disk.crash(seed), config("never"))
    entries: list[Record] = list(storage.entries(1))

    assert [record.index for record in entries] == list(range(1, len(entries) + 1))
    for record in entries:
        assert record in work.account.attempted[record.index]
    assert storage.recovered.unclean_boot
