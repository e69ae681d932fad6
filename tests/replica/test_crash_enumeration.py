"""Power loss and failing operations at every point of a replica's life: nothing answered is lost or invented."""

from __future__ import annotations

import copy
import errno

import pytest

from tests.replica.story import Account, Desk, check_after_crash, short_story
from walrq.errors import DiskFull, StorageError
from walrq.testing.disk import PowerOff, SimDisk


def _points() -> int:
    """Disk operations of the whole story, the start included."""
    disk = SimDisk()
    short_story(Desk(disk))
    return disk.operation_count


def test_the_story_exercises_snapshots_and_the_reuse_of_segments() -> None:
    """A story that stopped covering them would let every check below pass for nothing."""
    desk = Desk(SimDisk())
    short_story(desk)
    stats = desk.storage.stats()

    assert desk.account.snapshots == 3
    assert stats.reclaimed > 0 and stats.recycled > 0 and stats.rotations > 2


@pytest.mark.slow
def test_power_loss_at_every_sync_loses_nothing_answered() -> None:
    """Each unsynced write is kept, dropped, torn, garbage, alone or mixed with others: the account holds."""
    disk = SimDisk()
    account = Account()
    tried = 0

    def power_loss(now: SimDisk) -> None:
        nonlocal tried
        for what, after in now.aftermaths(mixtures=2, seed=now.operation_count):
            check_after_crash(after, account, f"operation {now.operation_count}: {what}")
            tried += 1

    disk.before_sync = power_loss
    short_story(Desk(disk, account))

    print(f"crash points tried: {tried}")
    assert tried > 500


@pytest.mark.slow
def test_power_loss_before_every_operation_loses_nothing_answered() -> None:
    """Between the syncs too: with everything kept (the process died), and with a seeded mixture."""
    points = _points()
    for point in range(points):
        disk = SimDisk()
        disk.power_off_at = point
        account = Account()
        with pytest.raises(PowerOff):
            short_story(Desk(disk, account))
        check_after_crash(disk.keep_all(), account, f"power off before {point}, all kept")
        check_after_crash(disk.crash(point), account, f"power off before {point}, mixed")

    print(f"crash points tried: {2 * points}")


def test_power_loss_during_a_restart_loses_nothing_answered() -> None:
    """A start writes a term, a no-op and fences; losing power there, again and again, changes nothing."""
    disk = SimDisk()
    account = Account()
    short_story(Desk(disk, account))
    disk = disk.crash(1)
    tried = 0

    def power_loss(now: SimDisk) -> None:
        nonlocal tried
        for what, after in now.aftermaths(mixtures=1, seed=now.operation_count):
            check_after_crash(after, account, f"restart, operation {now.operation_count}: {what}")
            tried += 1

    disk.before_sync = power_loss
    Desk(disk, account)

    print(f"crash points tried: {tried}")
    assert tried > 20


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_the_nth_operation_failing_ends_the_process_or_refuses(code: int) -> None:
    """For every n: the story goes on after a refusal, or a StorageError ends it; what was answered stays."""
    ended = went_on = 0
    points = _points()
    for point in range(points):
        disk = SimDisk()
        disk.fail(point, code, short=bool(point % 2))
        account = Account()
        try:
            short_story(Desk(disk, account))
            went_on += 1
        except (StorageError, DiskFull):
            ended += 1
        for what, after in (("kept", disk.keep_all()), ("mixed", disk.crash(point))):
            check_after_crash(after, copy.deepcopy(account), f"operation {point} failed, {what}")

    print(f"operations failed: {points}; the process ended {ended} times, went on {went_on} times")
    assert ended > 20
    assert (went_on > 20) == (code == errno.ENOSPC)
