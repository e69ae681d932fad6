"""What a replica does not take: snapshots that are not usable, points and entries it cannot read, full disks."""

from __future__ import annotations

import errno
import random
from typing import Any

import attrs
import cbor2
import pytest

from tests.replica.group import NAMES, Group, Node, lease, members, push
from tests.replica.test_catching_up import SHORT, bodies, busy
from walrq.errors import CorruptRecord, DiskFull, InvalidArgument, NotLeader, RemoteProtocolError, StorageError
from walrq.queues import commands as c
from walrq.queues.clocks import Reading
from walrq.raft.entries import Entry, Kind
from walrq.raft.membership import Member
from walrq.raft.messages import Append, SnapshotChunk
from walrq.raft.roles import Role, Status
from walrq.replica.images import decode_point, encode_point
from walrq.replica.office import Times, Walls, lower_median
from walrq.replica.recent import Recent
from walrq.storage.record import Record
from walrq.storage.storage import Storage


@pytest.fixture
def group() -> Group:
    """Three of which one was away for so long that it needs a snapshot."""
    group = Group(**SHORT)
    group.connect()
    leader = group.leader()
    group.ticks(4)
    group.others(leader)[0].crash()
    busy(leader, 16)
    return group


def away(group: Group) -> Node:
    """The one that was away, there again."""
    node = next(node for node in group.nodes.values() if not node.up)
    node.start()
    group.connect()
    return node


def test_a_stream_that_is_not_what_was_sent_is_refused_and_begun_again(group: Group) -> None:
    """Its bytes are checked, and somebody is told."""
    spoilt = 0
    send = group.send

    def spoil(node: Node, messages: Any) -> int:
        nonlocal spoilt
        for position, message in enumerate(messages):
            if isinstance(message, SnapshotChunk) and message.offset > 0 and not spoilt:
                spoilt = 1
                messages[position] = attrs.evolve(message, data=bytes(len(message.data)))
        return send(node, messages)

    group.send = spoil  # type: ignore[method-assign]
    node = away(group)
    group.converge(40)

    assert spoilt and [finding.split(":")[0] for finding in node.findings] == ["snapshot_refused"]
    assert bodies(node) == bodies(group.leader())


def test_a_follower_whose_disk_stays_full_is_offered_a_snapshot_now_and_then(group: Group) -> None:
    """Not in a loop as fast as both can, with a line in the log for each round."""
    node = away(group)
    receiving = node.replica._receiving
    store, tries = receiving.store, 0

    def full(chunk: Any) -> None:
        nonlocal tries
        tries += 1
        raise DiskFull("the disk is full")

    receiving.store = full  # type: ignore[method-assign]
    group.ticks(40)
    assert 3 <= tries <= 40
    assert [finding.split(":")[0] for finding in node.findings] == ["snapshot_refused"]

    receiving.store = store  # type: ignore[method-assign]
    group.converge(20)
    assert bodies(node) == bodies(group.leader())


def test_a_stream_that_keeps_more_than_there_is_is_refused(group: Group) -> None:
    """Its first bytes say up to where the own log stays."""
    send = group.send
    spoilt = 0

    def spoil(node: Node, messages: Any) -> int:
        nonlocal spoilt
        for position, message in enumerate(messages):
            if isinstance(message, SnapshotChunk) and message.offset == 0 and not spoilt:
                spoilt = 1
                messages[position] = attrs.evolve(message, data=b"\x7f" * 8 + message.data[8:])
        return send(node, messages)

    group.send = spoil  # type: ignore[method-assign]
    node = away(group)
    group.converge(40)

    assert "which is not here" in node.findings[0]


@pytest.mark.parametrize("when", (0, 3, 7, 12, 18))
def test_a_full_disk_refuses_a_snapshot_and_takes_it_later(when: int, group: Group) -> None:
    """Whatever of it was written; the node goes on."""
    node = away(group)
    for number in range(when, when + 3):
        node.disk.fail(number, errno.ENOSPC, name="pwrite")
    try:
        group.ticks(40)
    except (DiskFull, StorageError):
        # It was the log itself that did not fit, or the hard state: the node leaves.
        node.stop()
        node.disk.clear_faults()
        node.start()
        group.connect()
    node.disk.clear_faults()
    group.converge(60)

    assert bodies(node) == bodies(group.leader())


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_while_a_snapshot_comes_in_loses_nothing(seed: int, group: Group) -> None:
    """The state before or the state after, whatever was written."""
    rng = random.Random(seed)
    node = away(group)
    for _ in range(rng.randrange(1, 30)):
        for each in group.alive:
            each.work()
        group.deliver()
    node.crash(seed)
    node.start()
    group.connect()
    group.converge(60)

    assert bodies(node) == bodies(group.leader())
    assert not node.findings


def test_a_stream_whose_snapshot_was_replaced_begins_anew(group: Group) -> None:
    """The leader's next snapshot is sent in its place."""
    leader = group.leader()
    node = away(group)
    lead = leader.replica._raft.lead
    assert lead is not None
    for _ in range(200):
        for each in group.alive:
            each.replica.tick(each.reading())
            each.work()
        group.deliver()
        if lead.progress[node.name].outgoing is not None:
            break
    assert lead.progress[node.name].outgoing is not None
    busy(leader, 30)
    group.converge(40)

    assert bodies(node) == bodies(leader)


# --- entries ------------------------------------------------------------------------------------------------
def test_a_point_of_another_format_is_refused() -> None:
    """Rather than not compared."""
    assert decode_point(encode_point(7, b"r" * 16)) == (7, b"r" * 16)
    for body in (b"\xff", cbor2.dumps([2, 7, b"r"]), cbor2.dumps([1, 7])):
        with pytest.raises(CorruptRecord):
            decode_point(body)


@pytest.mark.parametrize("lease_ms", [0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63])
def test_a_stamp_is_read_without_the_rest(lease_ms: int) -> None:
    """Whatever the width of its numbers."""
    stamp = c.Stamp(lease_ms, 2**40 + lease_ms)
    body = c.encode_entry(stamp, [c.Tagged(push(b"m"))])

    assert c.stamp_of(body) == stamp == c.decode_entry(body)[0]


@pytest.mark.parametrize(
    "body", [b"", b"\x84", b"\x84\x01", b"\x84\x02\x00\x00", b"\x83\x01\x00\x00", b"\x84\x01\x1b00"]
)
def test_bytes_that_are_no_entry_have_no_stamp(body: bytes) -> None:
    """They never get so far: checksums and framing are before."""
    with pytest.raises(CorruptRecord):
        c.stamp_of(body)


def test_a_hole_that_storage_does_not_know_of_stops_a_member() -> None:
    """It would apply another history."""
    group = Group()
    group.connect()
    leader = group.leader()
    leader.do(push(b"m"))
    leader.stop()
    real = Storage.entries

    def holed(self: Storage, from_index: int) -> Any:
        return (record for record in real(self, from_index) if record.index != 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "entries", holed)
        with pytest.raises(CorruptRecord, match="entry 2 is missing"):
            leader.start()


def test_the_end_of_the_log_must_be_there_too() -> None:
    """As above, at the end."""
    group = Group()
    group.connect()
    leader = group.leader()
    leader.do(push(b"m"))
    last = leader.replica.last_index
    leader.stop()
    real = Storage.entries

    def holed(self: Storage, from_index: int) -> Any:
        return (record for record in real(self, from_index) if record.index != last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "entries", holed)
        with pytest.raises(CorruptRecord, match=f"entry {last} is missing"):
            leader.start()


# --- disks --------------------------------------------------------------------------------------------------
def test_a_leader_of_a_group_whose_disk_is_full_leaves() -> None:
    """Others may have the entry by now: it cannot be taken back."""
    group = Group()
    group.connect()
    leader = group.leader()
    group.ticks(4)
    leader.ask(push(b"m"))
    leader.disk.fail(0, errno.ENOSPC, name="pwritev")

    with pytest.raises(DiskFull):
        group.settle()


def test_a_node_that_gets_company_while_its_disk_refuses_a_batch_leaves() -> None:
    """What it would take back may have been sent."""
    group = Group(("a",))
    alone = group["a"]
    alone.ask(push(b"m"))
    batch = alone.replica.take_batch(alone.reading())
    assert batch is not None and batch.alone
    alone.disk.fail(0, errno.ENOSPC, name="pwritev")
    alone.replica.persist(batch)
    alone.replica.add_learner(Member("b", "b:1"))

    with pytest.raises(StorageError, match="others may have by now"):
        alone.replica.complete(batch)


# --- followers ----------------------------------------------------------------------------------------------
def test_a_follower_waits_for_nothing_and_stamps_nothing() -> None:
    """Deadlines are the leader's; what it would stamp is what it applied last."""
    group = Group()
    group.connect()
    leader = group.leader()
    leader.do(push(b"m"), lease(visibility_ms=5_000))
    group.ticks(3)
    follower = group.others(leader)[0].replica
    reading = Reading(10**9, 10**13)

    assert leader.replica.next_deadline(leader.reading()) is not None
    assert follower.next_deadline(reading) is None
    assert follower.stamp_now(reading) == follower.machine.last_stamp
    follower.propose_expiry()
    assert not follower.has_work and follower.take_batch(reading) is None
    assert follower.role is Role.FOLLOWER and follower.term == leader.replica.term
    assert follower.cluster_id == "cluster" and follower.status is Status.NORMAL
    assert follower.successor is None
    with pytest.raises(NotLeader):
        follower.transfer()


def test_hand_over_picks_the_best_follower_and_needs_one() -> None:
    """A node that is alone has nobody."""
    group = Group()
    group.connect()
    leader = group.leader()
    group.ticks(4)
    target = leader.replica.transfer()
    group.settle()
    assert group[target].replica.is_leader

    with pytest.raises(InvalidArgument, match="no other voter"):
        Group(("a",))["a"].replica.transfer()


def test_an_append_of_an_office_that_ended_is_not_filled() -> None:
    """What the log holds now may be another leader's."""
    group = Group(recent_bytes=0)
    group.connect()
    leader = group.leader()
    group.ticks(4)
    for number in range(10):
        leader.do(push(b"%d" % number * 100))
    append = Append("cluster", leader.name, "x", leader.replica.term, 3, 2, 6, 6)
    filled = leader.replica.fill(append)
    assert filled is not None and filled.is_filled
    assert leader.replica.fill(attrs.evolve(append, last_index=999)) is None
    group.elect(group.others(leader)[0].name)

    assert leader.replica.fill(append) is None


def test_a_message_that_contradicts_leaves_the_replica_whole() -> None:
    """The link is dropped; the term it brought counts."""
    group = Group()
    group.connect()
    leader = group.leader()
    other = group.others(leader)[0]
    wrong = Append("cluster", other.name, leader.name, leader.replica.term, 0, 0, 0, 0)
    with pytest.raises(RemoteProtocolError):
        leader.replica.receive(wrong, leader.reading())
    leader.do(push(b"m"))
    leader.replica.receive(attrs.evolve(wrong, cluster="another"), leader.reading())
    group.converge()


# --- time and memory ----------------------------------------------------------------------------------------
def test_the_lower_median_is_one_of_the_values() -> None:
    """Of two the lower: a wall clock that is ahead does not lead alone."""
    assert [lower_median([3]), lower_median([9, 2]), lower_median([5, 1, 9])] == [3, 2, 5]


def test_walls_go_on_at_the_own_rate() -> None:
    """What was told a while ago is as old as that."""
    walls = Walls()
    walls.tell("b", 5_000, Reading(100, 0))
    walls.tell("c", 9_000, Reading(200, 0))
    assert walls.agreed(Reading(1_100, 1)) == Reading(1_100, 6_000)
    walls.keep(["c"])
    assert walls.agreed(Reading(1_100, 1)) == Reading(1_100, 1)
    walls.clear()
    assert not walls


def test_a_lease_clock_told_by_an_older_leader_than_the_log_knows_is_not_used() -> None:
    """Another leader's clock may have stood still meanwhile, and leases run by that one."""
    reading = Reading(50, 70)
    stamps = [(4, c.Stamp(1_000, 60)), (6, c.Stamp(1_500, 65))]
    for term_before, expected in ((3, 9_000), (4, 1_500)):
        times = Times(list(stamps))
        times.tell_lease(3, 9_000)
        times.office(term_before)
        assert times.clock(reading, c.Stamp(1, 1), {}, [80, 90]).stamp(reading) == c.Stamp(expected, 80)


def test_recent_entries_are_bounded_but_for_those_that_are_needed() -> None:
    """Not durable, or not applied: they stay."""
    recent = Recent(1_000, 10)
    for index in range(11, 21):
        recent.put(index, Entry(1, Kind.COMMANDS, b"x" * 250))
    recent.trim(12, keep=True)
    assert recent.get(12) is None and recent.get(13) is not None
    recent.trim(20, keep=True)
    assert recent.bytes <= 1_000 and recent.get(20) is not None and recent.get(18) is None
    recent.cut(20)
    assert recent.last_index == 19 and recent.get(20) is None
    recent.put(20, Entry(2, Kind.NOOP, b""))
    assert recent.size_of(20) == 0 and recent.size_of(19) == 250
    assert [recent.first_within(20, size, 50) for size in (0, 40, 301, 10**9)] == [21, 20, 19, 11]


def test_records_of_a_new_cluster_are_the_same_everywhere() -> None:
    """Else its members would cut each other's first entry."""
    group = Group()
    first = {node.name: node.storage.read(1) for node in group.alive}

    assert set(first.values()) == {Record(1, 1, 2, members(*NAMES).encode())}
