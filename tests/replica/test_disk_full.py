"""A full disk: pushes are refused, everything else goes on with the reserve, and all resumes when space returns."""

from __future__ import annotations

import errno

import pytest

from tests.replica.story import Desk, check_after_crash, columns, is_disk_full
from walrq import api
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.replica import Batch
from walrq.testing.disk import SimDisk

PUSH = c.Push("q", columns(b"x" * 1_000))


def full_desk() -> tuple[SimDisk, Desk]:
    """A replica with six messages on a disk that has no byte left."""
    disk = SimDisk()
    desk = Desk(disk)
    desk.push(1, 1, 1, 1, 1, 1)
    disk.quota_bytes = disk.used_bytes
    return disk, desk


def fill(desk: Desk) -> None:
    """Push until the last segment has no room for another."""
    while not any(map(is_disk_full, desk.do(PUSH))):
        pass


def test_pushes_are_refused_and_nothing_of_them_is_kept() -> None:
    """The answer is definite: after any crash and restart the message is not there."""
    disk, desk = full_desk()
    fill(desk)

    assert all(map(is_disk_full, desk.do(PUSH, PUSH)))
    assert not desk.storage.space.pushes_allowed
    check_after_crash(disk.keep_all(), desk.account, "all kept")
    check_after_crash(disk.crash(1), desk.account, "mixed")


def test_polls_settles_and_expiry_go_on_with_the_reserve() -> None:
    """Work can be finished on a full disk: that is what makes it less full."""
    _, desk = full_desk()
    fill(desk)

    (granted,) = desk.do(c.Lease(("q",), 2, 50, 0, None))
    assert isinstance(granted, effects.Granted) and granted.runs
    run = granted.runs[0]
    assert [api.Settled((0,))] == desk.do(c.Settle("q", api.SettleKind.ACK, (c.Target(run.uid, run.lease),)))
    (granted,) = desk.do(c.Lease(("q",), 1, 50, 0, None))
    desk.wait(100)
    queue = desk.replica.machine.queues["q"]
    assert queue.leased == 0


def test_a_push_is_refused_and_what_gathered_with_it_comes_again() -> None:
    """One entry carries both; the refusal of the one must not fail the other."""
    _, desk = full_desk()
    fill(desk)

    pushed, granted = desk.do(PUSH, c.Lease(("q",), 1, 1_000, 0, None))

    assert is_disk_full(pushed)
    assert isinstance(granted, effects.Granted) and len(granted.runs) == 1


def test_what_gathers_behind_a_refused_entry_keeps_its_place() -> None:
    """Order of proposals is order of answers, and each answer is the right one, also through a refusal."""
    _, desk = full_desk()
    fill(desk)
    replica = desk.replica
    first = replica.propose(c.Tagged(PUSH))
    second = replica.propose(c.Tagged(c.Lease(("q",), 1, 1_000, 0, None)))
    batch = desk.take()
    third = replica.propose(c.Tagged(c.DeleteQueue("q")))
    replica.persist(batch)

    assert [first] == [ticket for ticket, _ in desk.complete(batch).results]
    batch = desk.take()
    replica.persist(batch)
    (_, granted), (_, deleted) = results = desk.complete(batch).results
    assert [second, third] == [ticket for ticket, _ in results]
    assert isinstance(granted, effects.Granted) and granted.runs
    assert isinstance(deleted, api.Done)


def test_when_even_the_reserve_is_used_up_everything_is_refused_at_once() -> None:
    """A batch that had the reserve and found no room would otherwise come again for ever."""
    disk, desk = full_desk()
    fill(desk)
    refused = 0
    for _ in range(400):
        refused += sum(map(is_disk_full, desk.do(c.Lease(("q",), 1, 1, 0, "w" * 200))))
        if refused:
            break

    assert refused == 1
    assert not desk.replica.has_work
    disk.quota_bytes = None
    check_after_crash(disk.keep_all(), desk.account, "the reserve is used up")


def test_a_snapshot_uses_its_reserve_and_the_next_is_given_up() -> None:
    """Given up, it leaves nothing behind, and the one before stands."""
    disk, desk = full_desk()
    fill(desk)
    desk.lease(1)
    desk.snapshot()
    assert desk.account.snapshots == 1
    disk.quota_bytes = disk.used_bytes
    desk.lease(1)
    desk.snapshot()

    assert desk.account.snapshots == 1
    assert not desk.storage.space.snapshot_reserve
    check_after_crash(disk.keep_all(), desk.account, "after snapshots on a full disk")


@pytest.mark.parametrize("restart", [False, True], ids=["while it runs", "over a restart"])
def test_all_resumes_when_space_returns(restart: bool) -> None:
    """Nobody has to do anything but make room."""
    disk, desk = full_desk()
    fill(desk)
    assert not desk.storage.replenish()
    disk.quota_bytes = None
    if restart:
        desk.replica.close()
        account = desk.account
        disk = disk.keep_all()
        desk = Desk(disk, account)
    else:
        assert desk.storage.replenish()

    assert desk.storage.space.pushes_allowed
    (pushed,) = desk.do(PUSH)
    assert isinstance(pushed, api.Pushed)


def test_a_write_cut_short_by_a_full_disk_is_never_found() -> None:
    """The first half of the records reached the disk; the answer was a refusal."""
    for name in ("pwritev", "fdatasync"):
        disk = SimDisk()
        desk = Desk(disk)
        disk.fail(0, errno.ENOSPC, name="pwritev", short=True)
        pushed, _ = desk.do(PUSH, c.Lease(("absent",), 1, 1, 0, None))
        assert is_disk_full(pushed)
        after = disk.keep_all() if name == "pwritev" else disk.crash(3)
        check_after_crash(after, desk.account, f"a short write, {name}")


def test_a_batch_without_pushes_may_use_the_reserve() -> None:
    """The flag is the whole rule: one push in the entry and the reserve stays untouched."""
    desk = Desk(SimDisk())
    desk.replica.propose(c.Tagged(c.Lease(("q",), 1, 1, 0, None)))
    settling: Batch = desk.take()
    desk.replica.persist(settling)
    desk.complete(settling)
    desk.replica.propose(c.Tagged(c.Lease(("q",), 1, 1, 0, None)))
    desk.replica.propose(c.Tagged(PUSH))
    pushing = desk.take()

    assert settling.may_use_reserve and not pushing.may_use_reserve
