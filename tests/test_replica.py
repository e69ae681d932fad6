"""The seam: propose, take_batch, persist, complete, advance, and what happens between them."""

from __future__ import annotations

import errno

import attrs
import pytest

from tests.replica.story import CONFIG, Desk, columns, storage_config
from walrq import api, limits
from walrq.errors import CorruptRecord, DiskFull, NotLeader, StorageError
from walrq.queues import commands as c
from walrq.queues import effects
from walrq.queues.clocks import Reading
from walrq.queues.image import full_pages
from walrq.raft.entries import Kind
from walrq.raft.roles import Role
from walrq.replica import Replica
from walrq.storage.record import Record
from walrq.storage.storage import Storage
from walrq.testing.disk import SimDisk

NOW = Reading(1_000, 1_700_000_000_000)


def push(*payloads: bytes) -> c.Tagged:
    """A push into `q`."""
    return c.Tagged(c.Push("q", columns(*payloads)))


def lease(visibility_ms: int = 1_000) -> c.Tagged:
    """A poll of `q`."""
    return c.Tagged(c.Lease(("q",), 10, visibility_ms, 0, None))


def write(one: Replica, reading: Reading = NOW) -> list[tuple[int, effects.Result]]:
    """One turn."""
    batch = one.take_batch(reading)
    assert batch is not None
    one.persist(batch)
    return one.complete(batch).results


def fresh(disk: SimDisk | None = None, **changes: object) -> Replica:
    """A replica on an empty disk."""
    storage = Storage.open(disk if disk is not None else SimDisk(), storage_config())
    return Replica.open(storage, attrs.evolve(CONFIG, **changes), NOW)  # type: ignore[arg-type]


# --- start --------------------------------------------------------------------------------------------------
def test_a_new_node_leads_and_has_bootstrapped_its_cluster() -> None:
    """The secret of the receipts is in the log, so that every replica has the same one."""
    one = fresh()

    assert one.is_leader and one.leader == "n1" and one.term == 1
    assert one.machine.cluster == "cluster" and one.machine.secret == b"s" * 16
    assert one.commit_index == one.applied_index == 3


def test_a_restart_keeps_the_secret_and_does_not_bootstrap_again() -> None:
    """What the configuration says later does not matter."""
    disk = SimDisk()
    fresh(disk).close()
    one = fresh(disk.keep_all(), secret=b"other" * 4, cluster_id="other")

    assert one.machine.cluster == "cluster" and one.machine.secret == b"s" * 16
    assert one.term == 2 and one.applied_index == 4


def test_the_data_of_another_node_is_refused() -> None:
    """A copied directory must not vote under two names."""
    disk = SimDisk()
    fresh(disk).close()

    with pytest.raises(StorageError, match="belongs to node 'n1', not to 'n2'"):
        fresh(disk.keep_all(), node_id="n2")


def test_an_entry_of_an_unknown_kind_is_refused() -> None:
    """It comes from a newer version, and stepping over it would make this state another one."""
    disk = SimDisk()
    fresh(disk).close()
    storage = Storage.open(disk := disk.keep_all(), storage_config())
    storage.append_batch([Record(storage.last_index + 1, storage.last_term, 77, b"")])
    storage.close()

    with pytest.raises(CorruptRecord, match="kind 77"):
        fresh(disk.keep_all())


def test_a_start_without_any_room_says_so() -> None:
    """The no-op of the new term cannot be written: an error, not a refusal of somebody's push."""
    disk = SimDisk()
    fresh(disk).close()
    disk = disk.keep_all()
    disk.fail(0, errno.ENOSPC, name="pwritev")

    with pytest.raises(DiskFull):
        fresh(disk)
    assert fresh(disk.keep_all()).is_leader


# --- the seam -----------------------------------------------------------------------------------------------
def test_all_that_gathered_goes_into_one_stamped_entry() -> None:
    """Group commit needs no component."""
    one = fresh()
    tickets = [one.propose(push(b"a")), one.propose(push(b"b")), one.propose(lease())]
    assert one.has_work
    batch = one.take_batch(NOW)
    assert batch is not None and not one.has_work

    assert len(batch.records) == 1
    stamp, tagged = c.decode_entry(batch.records[0].body)
    assert stamp == batch.stamp and len(tagged) == 3
    one.persist(batch)
    results = one.complete(batch).results
    assert tickets == [ticket for ticket, _ in results]


def test_nothing_gathered_is_no_entry() -> None:
    """An idle node writes nothing."""
    one = fresh()

    assert not one.has_work
    assert one.take_batch(NOW) is None


def test_what_is_proposed_during_a_persist_is_the_next_batch() -> None:
    """And nothing of the running batch is answered before it is durable."""
    one = fresh()
    first = one.propose(push(b"a"))
    batch = one.take_batch(NOW)
    assert batch is not None
    second = one.propose(push(b"b"))
    assert one.advance().results == []
    one.persist(batch)
    assert one.advance().results == []

    assert [first] == [ticket for ticket, _ in one.complete(batch).results]
    assert [second] == [ticket for ticket, _ in write(one)]


def test_only_one_persist_is_in_flight() -> None:
    """Two would race for the end of the log."""
    one = fresh()
    one.propose(push(b"a"))
    batch = one.take_batch(NOW)
    one.propose(push(b"b"))

    with pytest.raises(AssertionError):
        one.take_batch(NOW)
    assert batch is not None
    one.persist(batch)
    one.complete(batch)
    with pytest.raises(AssertionError):
        one.complete(batch)


def test_a_node_that_does_not_lead_takes_no_proposals() -> None:
    """The error names the leader, if one is known."""
    one = fresh()
    one._raft.role = Role.FOLLOWER
    one._raft.lead = None
    one._raft.leader = "n9"

    with pytest.raises(NotLeader) as caught:
        one.propose(push(b"a"))
    assert caught.value.details["leader"] == "n9"
    assert not one.is_leader and one.leader == "n9"


def test_an_entry_has_a_bounded_number_of_commands() -> None:
    """The rest is the next entry; order is kept."""
    one = fresh()
    tickets = [one.propose(lease()) for _ in range(limits.ENTRY_COMMANDS_MAX + 3)]

    answered = [ticket for ticket, _ in write(one)]
    assert len(answered) == limits.ENTRY_COMMANDS_MAX
    answered += [ticket for ticket, _ in write(one)]
    assert answered == tickets


def test_an_entry_has_a_bounded_size_but_takes_any_single_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """One large push alone; small ones up to the target."""
    monkeypatch.setattr("walrq.replica.batch.ENTRY_BYTES_TARGET", 1_000)
    one = fresh()
    for size in (3_000, 600, 300, 200, 10):
        one.propose(push(b"x" * size))

    assert [1, 2, 2] == [len(write(one)) for _ in range(3)]
    assert not one.has_work


def test_expiry_can_be_asked_for_without_a_command() -> None:
    """An empty entry: its stamp expires what is due, no list of leases travels."""
    one = fresh()
    one.propose(push(b"a"))
    one.propose(lease(50))
    write(one)
    assert one.machine.queues["q"].leased == 1
    one.propose_expiry()
    assert one.has_work

    assert write(one, Reading(NOW.monotonic_ms + 50, NOW.wall_ms + 50)) == []
    assert one.machine.queues["q"].leased == 0


def test_effects_come_with_the_answers() -> None:
    """Whom to wake; a restart asks for nothing."""
    disk = SimDisk()
    one = fresh(disk)
    one.propose(push(b"a"))
    batch = one.take_batch(NOW)
    assert batch is not None
    one.persist(batch)

    assert one.complete(batch).effects.woken == {"q"}
    one.close()
    assert fresh(disk.keep_all()).advance().effects.woken == set()


def test_a_tick_changes_nothing_for_a_lone_voter() -> None:
    """There is no election to time and no heartbeat to send."""
    one = fresh()
    before = one.stats()

    one.tick(Reading(10**9, 10**12))

    assert one.stats() == before and not one.has_work


# --- time ---------------------------------------------------------------------------------------------------
def test_the_next_deadline_is_the_first_of_both_clocks() -> None:
    """In monotonic time, whichever clock it is measured by."""
    one = fresh()
    assert one.next_deadline(NOW) is None
    one.propose(c.Tagged(c.Push("q", columns(b"a"), delay_ms=500)))
    write(one)
    assert one.next_deadline(NOW) == NOW.monotonic_ms + 500
    later = Reading(NOW.monotonic_ms + 100, NOW.wall_ms + 100)
    one.propose(push(b"b"))
    one.propose(lease(50))
    write(one, later)

    assert one.next_deadline(later) == later.monotonic_ms + 50
    one.propose(c.Tagged(c.Touch("q", (c.Target(one.machine.queues["q"].uid, 1),), 10_000)))
    write(one, later)
    assert one.next_deadline(later) == NOW.monotonic_ms + 500


def test_what_is_overdue_is_due_now() -> None:
    """Never in the past by the wall clock."""
    one = fresh()
    one.propose(c.Tagged(c.Push("q", columns(b"a"), delay_ms=500)))
    write(one)
    late = Reading(NOW.monotonic_ms + 9_000, NOW.wall_ms + 9_000)

    assert one.next_deadline(late) == late.monotonic_ms


def test_the_lease_clock_goes_on_over_a_restart() -> None:
    """OneHolder: a lease may get longer by a restart, never shorter."""
    disk = SimDisk()
    one = fresh(disk)
    one.propose(push(b"a"))
    one.propose(lease(1_000))
    write(one, Reading(NOW.monotonic_ms + 700, NOW.wall_ms + 700))
    deadline_ms = one.machine.next_lease_deadline()
    stamp = one.stamp_now(Reading(NOW.monotonic_ms + 700, NOW.wall_ms + 700))
    again = Replica.open(Storage.open(disk.crash(1), storage_config()), CONFIG, Reading(5, NOW.wall_ms - 10**6))

    assert again.stamp_now(Reading(5, NOW.wall_ms - 10**6)) == stamp
    assert again.machine.next_lease_deadline() == deadline_ms
    assert again.next_deadline(Reading(5, 0)) == 5 + 1_000


# --- bodies -------------------------------------------------------------------------------------------------
def test_a_body_is_in_memory_after_its_push_and_in_the_log_for_ever() -> None:
    """The cache is bounded; what it dropped is read back, with its neighbours."""
    one = fresh(body_cache_bytes=3_000)
    one.propose(push(b"a" * 900))
    one.propose(lease())
    one.propose(push(b"b" * 900))
    write(one)
    index = one.applied_index
    assert one.body(index, 0) is not None and one.body(index, 1) is None
    for _ in range(4):
        one.propose(push(b"c" * 900))
        write(one)
    assert one.body(index, 0) is None

    assert one.load_body(index, 0).payloads == b"a" * 900
    assert one.body(index, 2) == columns(b"b" * 900)
    assert one.load_body(index, 2).payloads == b"b" * 900
    assert one.stats()["body_cache_bytes"] <= 3_000


def test_bodies_behind_the_asked_one_are_remembered_those_before_are_not() -> None:
    """A backlog is read forwards."""
    disk = SimDisk()
    one = fresh(disk)
    for payload in (b"a", b"b", b"c"):
        one.propose(push(payload))
    write(one)
    index = one.applied_index
    one.close()
    again = fresh(disk.keep_all())

    assert again.load_body(index, 1).payloads == b"b"
    assert again.body(index, 0) is None and again.body(index, 2) is not None


# --- snapshots ----------------------------------------------------------------------------------------------
def snapshot(one: Replica) -> None:
    """A whole one."""
    job = one.begin_snapshot()
    assert job is not None
    while job.step():
        job.write()
    job.write()
    job.finish()
    one.snapshot_done(job)


def test_a_snapshot_is_due_by_commands_or_by_bytes() -> None:
    """So that a restart replays a bounded tail."""
    one = fresh(snapshot_commands=4, snapshot_log_bytes=10**9)
    assert not one.snapshot_due()
    for _ in range(4):
        one.propose(lease())
        write(one)
    assert one.snapshot_due()
    snapshot(one)
    assert not one.snapshot_due()

    two = fresh(snapshot_commands=10**9, snapshot_log_bytes=2_000)
    two.propose(push(b"x" * 2_000))
    write(two)
    assert two.snapshot_due()


def test_a_replayed_tail_counts_towards_the_next_snapshot() -> None:
    """Else a node that restarts often would never take one."""
    disk = SimDisk()
    one = fresh(disk, snapshot_commands=6)
    for _ in range(3):
        one.propose(lease())
        write(one)
    assert not one.snapshot_due()
    again = fresh(disk.keep_all(), snapshot_commands=6)
    again.propose(lease())
    write(again)

    assert again.snapshot_due()


def test_one_snapshot_at_a_time_and_none_without_news() -> None:
    """A second one would freeze the image of the first."""
    one = fresh(snapshot_commands=1)
    one.propose(push(b"a"))
    write(one)
    job = one.begin_snapshot()
    assert job is not None and not one.snapshot_due()
    assert one.begin_snapshot() is None
    while job.step():
        pass
    job.write()
    job.finish()
    one.snapshot_done(job)

    assert one.begin_snapshot() is None
    assert one.stats()["snapshots"] == 1 and one.stats()["snapshot_index"] == one.applied_index


def test_a_snapshot_that_was_given_up_is_followed_by_a_whole_one() -> None:
    """Pages that changed before the failure are in it, though they did not change since."""
    disk = SimDisk()
    one = fresh(disk)
    for number in range(3):
        one.propose(c.Tagged(c.Push(f"q{number}", columns(b"a"))))
        write(one)
        job = one.begin_snapshot()
        assert job is not None
        job.step()
        job.write()
        job.abort()
        one.snapshot_failed(job)
    one.propose(c.Tagged(c.PurgeQueue("q0")))
    write(one)
    snapshot(one)
    expected = full_pages(one.machine)
    one.close()

    again = Storage.open(disk.keep_all(), storage_config())
    assert again.snapshot is not None
    assert dict(again.snapshot.pages()) == expected


def test_a_restart_begins_at_the_snapshot_and_gives_back_what_it_covers() -> None:
    """Segments below it in which nothing lives are recycled; the state is the same."""
    desk = Desk(SimDisk())
    for _ in range(30):
        desk.push(3_000)
        desk.lease(1)
        desk.settle(api.SettleKind.ACK, 1)
    desk.snapshot()
    before = len(desk.storage.stats().segments)

    assert desk.replica.reclaim() > 2
    assert len(desk.storage.stats().segments) < before
    assert desk.replica.reclaim() == 0


def test_a_record_kind_is_stored_as_its_number() -> None:
    """Kinds are never renumbered: logs on disks hold them."""
    numbers = {Kind.NOOP: 0, Kind.COMMANDS: 1, Kind.CONFIGURATION: 2, Kind.SNAPSHOT: 3}
    assert numbers == {kind: kind.value for kind in Kind}
