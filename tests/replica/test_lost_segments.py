"""A segment below the snapshot is lost: the start names every live message in it, and a poll never steps over one."""

from __future__ import annotations

import attrs
import pytest

from tests.replica.story import CONFIG, SEGMENT_BYTES, Desk, storage_config
from walrq import api
from walrq.daemon.bodies import fill_page, fill_poll
from walrq.errors import Reclaimed
from walrq.queues import commands as c
from walrq.queues import effects, reads
from walrq.queues.clocks import Reading
from walrq.queues.commands import Tagged
from walrq.replica import Replica
from walrq.storage.findings import Finding, Verdict
from walrq.storage.segment import RECORDS_START
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

NOW = Reading(9_000, 1_800_000_000_000)
MESSAGES = 12


def lived() -> SimDisk:
    """Twelve messages over several segments, all below the snapshot; then the process died."""
    disk = SimDisk()
    desk = Desk(disk)
    for _ in range(MESSAGES):
        desk.push(2_000)
    desk.snapshot()
    desk.settle_log()
    return disk.keep_all()


def lose(disk: SimDisk, how: str) -> tuple[int, int]:
    """Take the second segment away; (first, last) of its indexes."""
    names = [name for name in disk.list_directory("data/wal") if name.startswith("seg-")]
    assert len(names) >= 3
    path = f"data/wal/{names[1]}"
    if how == "removed":
        disk.unlink(path)
        disk.fsync_directory("data/wal")
    elif how == "emptied":
        disk.cut(path, 0)
    else:
        disk.zero(path, 0, RECORDS_START if how == "header zeroed" else SEGMENT_BYTES)
    first, following = (int(name[4:24]) for name in names[1:3])
    return first, following - 1


def opened(disk: SimDisk) -> tuple[Replica, Storage]:
    """A start."""
    storage = Storage.open(disk, storage_config())
    return Replica.open(storage, CONFIG, NOW), storage


def missing(storage: Storage) -> list[Finding]:
    """What the start calls missing."""
    return [finding for finding in storage.findings if finding.verdict is Verdict.MISSING]


def do(replica: Replica, command: c.Command) -> effects.Result:
    """One command in one entry."""
    replica.propose(Tagged(command))
    batch = replica.take_batch(NOW)
    assert batch is not None
    replica.persist(batch)
    return replica.complete(batch).results[0][1]


@pytest.mark.parametrize("how", ["removed", "emptied", "header zeroed", "all zeroed"])
def test_every_live_message_of_a_lost_segment_is_named_and_delivered_as_lost(how: str) -> None:
    """No message turns into nothing: each is served whole, or says that its body is lost."""
    disk = lived()
    first, last = lose(disk, how)

    replica, storage = opened(disk)

    (finding,) = missing(storage)
    assert (first, last) == (finding.first_index, finding.last_index)
    assert f"{last - first + 1} live messages of queue 'q'" in finding.text
    assert "\n" not in str(finding) and f"entries {first}..{last}" in str(finding)
    granted = do(replica, c.Lease(("q",), 100, 60_000, 0, None))
    assert isinstance(granted, effects.Granted)
    filled = fill_poll(granted, replica.machine.secret, replica.load_body, replica.holds)
    assert MESSAGES == sum(run.count for run in filled.polled.runs)
    assert last - first + 1 == sum(run.count for run in filled.polled.runs if run.lost)
    assert () == filled.polled.ended
    seen, following = reads.peek(replica.machine, api.Peek("q", api.State.LEASED, 100, 0, True))
    page = fill_page(seen, following, lambda position: 0, replica.load_body, replica.may_be_live)
    assert MESSAGES == len(page.messages)
    assert last - first + 1 == sum(message.payload is None for message in page.messages)


def test_a_lease_that_ended_before_its_body_was_read_is_named_as_ended() -> None:
    """Purged and reclaimed meanwhile: nothing is lost, and nothing is said to be."""
    disk = lived()
    replica, _ = opened(disk)
    granted = do(replica, c.Lease(("q",), 100, 60_000, 0, None))
    assert isinstance(granted, effects.Granted)
    do(replica, c.DeleteQueue("q"))
    job = replica.begin_snapshot()
    assert job is not None
    while job.step():
        job.write()
    job.write()
    job.finish()
    replica.snapshot_done(job)
    assert replica.reclaim() > 0
    with pytest.raises(Reclaimed):
        replica.load_body(granted.runs[0].index, 0)

    filled = fill_poll(granted, replica.machine.secret, replica.load_body, replica.holds)

    assert not any(run.lost for run in filled.polled.runs)
    assert len(granted.runs) == len(filled.polled.runs) + len(filled.polled.ended)
    assert filled.polled.ended


def test_a_reclaimed_segment_is_no_loss() -> None:
    """Holes that nothing lives in are what reclaim is for."""
    disk = SimDisk()
    desk = Desk(disk)
    for _ in range(MESSAGES * 8):
        desk.push(1_500)
    desk.drain()
    desk.drain()
    desk.push(10)
    desk.snapshot()
    desk.reclaim()
    assert desk.storage.stats().reclaimed > 0

    _, storage = opened(disk.keep_all())

    assert () == storage.findings


def test_the_term_goes_on_behind_the_log_when_the_hard_state_is_gone() -> None:
    """A term never goes back; that nobody else voted is known of a single voter only, so it is said."""
    disk = SimDisk()
    for _ in range(3):
        replica, _ = opened(disk)
        disk = disk.keep_all()
    assert 3 == replica.term
    disk.unlink("data/hard-state")
    disk.fsync_directory("data")

    replica, storage = opened(disk := disk.keep_all())

    assert 4 == replica.term
    (finding,) = storage.findings
    assert "hard-state" == finding.file and "behind 3" in finding.text
    replica, storage = opened(disk.keep_all())
    assert 5 == replica.term
    assert () == storage.findings


def test_a_hard_state_older_than_the_log_does_not_take_the_term_back() -> None:
    """Somebody put an old copy of the file back."""
    disk = SimDisk()
    replica, storage = opened(disk)
    old = storage.hard_state
    assert old is not None
    for _ in range(2):
        disk = disk.keep_all()
        replica, storage = opened(disk)
    assert 3 == replica.term
    storage.set_hard_state(attrs.evolve(old, term=1))

    replica, storage = opened(disk.keep_all())

    assert 4 == replica.term
    assert ["hard-state"] == [finding.file for finding in storage.findings]
